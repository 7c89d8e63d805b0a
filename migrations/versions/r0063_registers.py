"""What registers answered about VAT ids, and the exchange rates that were published."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "r0063"
down_revision = "r0062"
branch_labels = None
depends_on = None

ID = postgresql.UUID().with_variant(sa.LargeBinary(16), "sqlite")
COUNT = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
TABLES = ("vat_check", "exchange_rate")


def upgrade() -> None:
    op.create_table(
        "vat_check",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("tenant_id", ID, nullable=False),
        *(
            sa.Column(name, sa.Text(), nullable=False)
            for name in ("vat_id", "answer", "name", "address", "consultation", "registry")
        ),
        sa.Column("at", COUNT, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_vat_check"),
        sa.CheckConstraint("answer IN ('valid', 'invalid', 'unavailable')", name=op.f("ck_vat_check_answer")),
        sqlite_strict=True,
    )
    op.create_index("ix_vat_check_tenant_id", "vat_check", ["tenant_id"])
    op.create_table(
        "exchange_rate",
        *(sa.Column(name, sa.Text(), nullable=False) for name in ("day", "currency", "rate", "source")),
        sa.Column("recorded_at", COUNT, nullable=False),
        sa.PrimaryKeyConstraint("day", "currency", name="pk_exchange_rate"),
        sqlite_strict=True,
    )
    for table in TABLES:
        if op.get_bind().dialect.name == "postgresql":
            op.execute(
                f"CREATE TRIGGER immutable BEFORE UPDATE OR DELETE OR TRUNCATE ON {table} "
                "FOR EACH STATEMENT EXECUTE FUNCTION refuse_change()"
            )
            continue
        for verb in ("UPDATE", "DELETE"):
            op.execute(
                f"CREATE TRIGGER immutable_{table}_{verb.lower()} BEFORE {verb} ON {table} "
                f"BEGIN SELECT RAISE(ABORT, '{table} is immutable'); END"
            )


def downgrade() -> None:
    for table in TABLES:
        op.drop_table(table)
