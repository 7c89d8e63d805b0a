"""From which day on the facts of sellers and billing profiles hold that tax follows from."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "r0052"
down_revision = "r0051"
branch_labels = None
depends_on = None

ID = postgresql.UUID().with_variant(sa.LargeBinary(16), "sqlite")
COUNT = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
TABLE = "party_change"


def upgrade() -> None:
    op.create_table(
        TABLE,
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("seller", sa.Text(), nullable=True),
        sa.Column("tenant_id", ID, nullable=True),
        *(sa.Column(name, sa.Text(), nullable=False) for name in ("valid_from", "facts", "reason")),
        sa.Column("created_at", COUNT, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_party_change"),
        sa.ForeignKeyConstraint(["seller"], ["legal_entity.id"], name="fk_party_change_seller_legal_entity"),
        sa.CheckConstraint("(seller IS NULL) <> (tenant_id IS NULL)", name=op.f("ck_party_change_party")),
        sqlite_strict=True,
    )
    op.create_index("ix_party_change_seller", TABLE, ["seller"])
    op.create_index("ix_party_change_tenant_id", TABLE, ["tenant_id"])
    if op.get_bind().dialect.name == "postgresql":
        op.execute(
            f"CREATE TRIGGER immutable BEFORE UPDATE OR DELETE OR TRUNCATE ON {TABLE} "
            "FOR EACH STATEMENT EXECUTE FUNCTION refuse_change()"
        )
        return
    for verb in ("UPDATE", "DELETE"):
        op.execute(
            f"CREATE TRIGGER immutable_{TABLE}_{verb.lower()} BEFORE {verb} ON {TABLE} "
            f"BEGIN SELECT RAISE(ABORT, '{TABLE} is immutable'); END"
        )


def downgrade() -> None:
    op.drop_table(TABLE)
