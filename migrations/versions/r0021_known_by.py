"""How it is known who changed prices."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "r0021"
down_revision = "r0020"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("price_change", sa.Column("via", sa.Text(), nullable=False, server_default=sa.text("''")))


def downgrade() -> None:
    raise RuntimeError("the log of prices is not forgotten: restore a backup")
