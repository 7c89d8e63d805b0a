"""The rule by which the prices of a version make a cost: that of all versions until now is the first."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "r0064"
down_revision = "r0063"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("price_version", sa.Column("formula", sa.Integer(), nullable=False, server_default=sa.text("1")))


def downgrade() -> None:
    op.drop_column("price_version", "formula")
