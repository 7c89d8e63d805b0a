"""Who made a one-time link, by id: an invitation ends with its inviter's right."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "r0042"
down_revision = "r0041"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("one_time_token", sa.Column("created_by_id", sa.Text(), nullable=False, server_default=sa.text("''")))
    # Nobody knows any more who made these: they end when their user gains a role.
    op.execute("UPDATE one_time_token SET created_by_id = 'unknown' WHERE kind IN ('password_reset', 'sign_in')")


def downgrade() -> None:
    op.drop_column("one_time_token", "created_by_id")
