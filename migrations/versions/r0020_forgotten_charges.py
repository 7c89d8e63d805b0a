"""What budget windows spent by requests of which is forgotten in which budgets they counted."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "r0020"
down_revision = "r0019"
branch_labels = None
depends_on = None

PICO = sa.Numeric(38, 0).with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    op.add_column("budget_window", sa.Column("forgotten", PICO, nullable=False, server_default=sa.text("0")))


def downgrade() -> None:
    raise RuntimeError("what was forgotten does not come back: restore a backup")
