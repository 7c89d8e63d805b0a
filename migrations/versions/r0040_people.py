"""Who proposed a change, by what stays; that the same change waits once; and the user whose an operator's key is."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "r0040"
down_revision = "r0039"
branch_labels = None
depends_on = None

ID = postgresql.UUID().with_variant(sa.LargeBinary(16), "sqlite")
PENDING = sa.text("state = 'pending'")


def upgrade() -> None:
    op.add_column("api_key", sa.Column("user_id", ID, nullable=True))
    op.add_column("pending_change", sa.Column("author_person", sa.Text(), nullable=True))
    op.add_column("pending_change", sa.Column("sha256", sa.Text(), nullable=True))
    op.create_index(
        "ix_pending_change_sha256",
        "pending_change",
        ["sha256"],
        unique=True,
        postgresql_where=PENDING,
        sqlite_where=PENDING,
    )


def downgrade() -> None:
    op.drop_index("ix_pending_change_sha256", "pending_change")
    op.drop_column("pending_change", "sha256")
    op.drop_column("pending_change", "author_person")
    op.drop_column("api_key", "user_id")
