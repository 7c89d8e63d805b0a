"""How often a response in the background was taken over from a worker that died."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "r0047"
down_revision = "r0046"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("stored_response", sa.Column("taken_over", sa.Integer(), nullable=False, server_default=sa.text("0")))


def downgrade() -> None:
    op.drop_column("stored_response", "taken_over")
