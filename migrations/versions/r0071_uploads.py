"""Uploads in parts, and the media types of files."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

from storage.database.base import STRICT

revision = "r0071"
down_revision = "r0070"
branch_labels = None
depends_on = None

_ID = sa.LargeBinary(16).with_variant(postgresql.UUID(), "postgresql")
_COUNT = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    op.add_column("stored_file", sa.Column("mime_type", sa.Text(), nullable=True))
    op.create_table(
        "upload",
        sa.Column("id", _ID, nullable=False),
        sa.Column("tenant_id", _ID, nullable=False),
        sa.Column("project_id", _ID, nullable=False),
        sa.Column("purpose", sa.Text(), nullable=False),
        sa.Column("filename", sa.LargeBinary(), nullable=False),
        sa.Column("mime_type", sa.Text(), nullable=False),
        sa.Column("bytes", _COUNT, nullable=False),
        sa.Column("lifetime_s", _COUNT, nullable=True),
        sa.Column("status", sa.Text(), nullable=False),
        sa.Column("file_id", _ID, nullable=True),
        sa.Column("created_at", _COUNT, nullable=False),
        sa.Column("expires_at", _COUNT, nullable=False),
        sa.CheckConstraint("purpose IN ('batch', 'user_data')", name=op.f("ck_upload_purpose")),
        sa.CheckConstraint("status IN ('pending', 'completed', 'cancelled')", name=op.f("ck_upload_status")),
        sa.CheckConstraint("(status = 'completed') = (file_id IS NOT NULL)", name=op.f("ck_upload_file")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_upload")),
        **STRICT,
    )
    op.create_index(op.f("ix_upload_expires_at"), "upload", ["expires_at"])
    op.create_index(op.f("ix_upload_project_id_id"), "upload", ["project_id", "id"])
    op.create_table(
        "upload_part",
        sa.Column("id", _ID, nullable=False),
        sa.Column("upload_id", _ID, nullable=False),
        sa.Column("tenant_id", _ID, nullable=False),
        sa.Column("bytes", _COUNT, nullable=False),
        sa.Column("created_at", _COUNT, nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_upload_part")),
        **STRICT,
    )
    op.create_index(op.f("ix_upload_part_upload_id"), "upload_part", ["upload_id"])


def downgrade() -> None:
    op.drop_table("upload_part")
    op.drop_table("upload")
    op.drop_column("stored_file", "mime_type")
