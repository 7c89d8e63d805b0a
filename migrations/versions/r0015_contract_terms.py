"""Contract terms of tenants, and storage of cached prompts by the hour."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "r0015"
down_revision = "r0014"
branch_labels = None
depends_on = None

ID = postgresql.UUID().with_variant(sa.LargeBinary(16), "sqlite")
COUNT = sa.BigInteger().with_variant(sa.Integer(), "sqlite")

IMMUTABLE = ("contract_terms", "storage_event")


def upgrade() -> None:
    op.create_table(
        "contract_terms",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("tenant_id", ID, nullable=False),
        *(sa.Column(name, sa.Text, nullable=False) for name in ("from_period", "body", "author", "reason")),
        sa.Column("created_at", COUNT, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_contract_terms"),
        sqlite_strict=True,
    )
    op.create_index("ix_contract_terms_tenant_id_from_period", "contract_terms", ["tenant_id", "from_period"])
    op.create_table(
        "storage_event",
        sa.Column("tenant_id", ID, nullable=False),
        sa.Column("period", sa.Text, nullable=False),
        sa.Column("hour", COUNT, autoincrement=False, nullable=False),
        sa.Column("project_id", ID, nullable=False),
        sa.Column("model", sa.Text, nullable=False),
        sa.Column("price_version", sa.Integer(), nullable=False),
        *(sa.Column(name, COUNT, nullable=False) for name in ("token_seconds", "cost_pico")),
        sa.PrimaryKeyConstraint("tenant_id", "period", "hour", "project_id", "model", name="pk_storage_event"),
        *(
            sa.CheckConstraint(f"{name} >= 0", name=op.f(f"ck_storage_event_{name}"))
            for name in ("token_seconds", "cost_pico")
        ),
        sqlite_strict=True,
    )
    postgres = op.get_bind().dialect.name == "postgresql"
    for table in IMMUTABLE:
        if postgres:
            op.execute(
                f'CREATE TRIGGER immutable BEFORE UPDATE OR DELETE OR TRUNCATE ON "{table}" '
                "FOR EACH STATEMENT EXECUTE FUNCTION refuse_change()"
            )
            continue
        for verb in ("UPDATE", "DELETE"):
            op.execute(
                f'CREATE TRIGGER immutable_{table}_{verb.lower()} BEFORE {verb} ON "{table}" '
                f"BEGIN SELECT RAISE(ABORT, '{table} is immutable'); END"
            )


def downgrade() -> None:
    raise RuntimeError("contracts cannot be said in the earlier schema: restore a backup")
