"""Beginnings of prompts whose KV operators share."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "r0039"
down_revision = "r0038"
branch_labels = None
depends_on = None

ID = postgresql.UUID().with_variant(sa.LargeBinary(16), "sqlite")
COUNT = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    op.create_table(
        "shared_prefix",
        sa.Column("id", ID, nullable=False),
        sa.Column("reach", sa.Text(), nullable=False),
        sa.Column("tenant_id", ID, nullable=False),
        sa.Column("model", sa.Text(), nullable=False),
        sa.Column("tokens", COUNT, nullable=False),
        sa.Column("digest", sa.LargeBinary(), nullable=False),
        *(sa.Column(name, sa.Text(), nullable=False) for name in ("shared_by", "reason")),
        sa.Column("shared_at", COUNT, nullable=False),
        sa.Column("ended_at", COUNT, nullable=True),
        *(sa.Column(name, sa.Text(), nullable=True) for name in ("ended_by", "end_reason")),
        sa.PrimaryKeyConstraint("id", name="pk_shared_prefix"),
        sqlite_strict=True,
    )


def downgrade() -> None:
    op.drop_table("shared_prefix")
