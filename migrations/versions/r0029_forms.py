"""The form of a batch's leaves, and of a seal: what exists is of form 1, whatever columns its table gets later."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "r0029"
down_revision = "r0028"
branch_labels = None
depends_on = None

TABLES = ("usage_batch", "seal")


def upgrade() -> None:
    for table in TABLES:
        op.add_column(table, sa.Column("form", sa.Integer(), nullable=False, server_default=sa.text("1")))


def downgrade() -> None:
    for table in TABLES:
        op.drop_column(table, "form")
