"""Keys that were revoked since somebody else may have them."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "r0070"
down_revision = "r0069"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("api_key", sa.Column("leaked", sa.Integer(), nullable=False, server_default="0"))


def downgrade() -> None:
    op.drop_column("api_key", "leaked")
