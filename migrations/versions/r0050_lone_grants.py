"""What one person alone gave a tenant lately."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "r0050"
down_revision = "r0049"
branch_labels = None
depends_on = None

ID = postgresql.UUID().with_variant(sa.LargeBinary(16), "sqlite")
PICO = sa.Numeric(38, 0).with_variant(sa.Integer(), "sqlite")
COUNT = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    op.create_table(
        "lone_grant",
        *(sa.Column(name, ID, nullable=False) for name in ("grant_id", "tenant_id")),
        sa.Column("amount_pico", PICO, nullable=False),
        sa.Column("at", COUNT, nullable=False),
        sa.PrimaryKeyConstraint("grant_id", name="pk_lone_grant"),
        sa.ForeignKeyConstraint(["grant_id"], ["grant.id"], name="fk_lone_grant_grant_id_grant"),
        sqlite_strict=True,
    )
    op.create_index("ix_lone_grant_tenant_id_at", "lone_grant", ["tenant_id", "at"])


def downgrade() -> None:
    op.drop_table("lone_grant")
