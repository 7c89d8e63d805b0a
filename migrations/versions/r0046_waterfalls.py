"""Where the time of each request went."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "r0046"
down_revision = "r0045"
branch_labels = None
depends_on = None

ID = postgresql.UUID().with_variant(sa.LargeBinary(16), "sqlite")
COUNT = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    op.create_table(
        "request_waterfall",
        sa.Column("id", COUNT, nullable=False, autoincrement=True),
        *(sa.Column(name, ID, nullable=False) for name in ("request_id", "tenant_id", "project_id")),
        sa.Column("at", COUNT, nullable=False),
        sa.Column("record", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_request_waterfall"),
        sqlite_strict=True,
    )
    op.create_index("ix_request_waterfall_request_id", "request_waterfall", ["request_id"], unique=True)


def downgrade() -> None:
    op.drop_table("request_waterfall")
