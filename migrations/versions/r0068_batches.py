"""Files that clients upload, and batches of requests: the batches, their lines, and the parts of their results."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

from storage.database.base import STRICT

revision = "r0068"
down_revision = "r0067"
branch_labels = None
depends_on = None

_ID = sa.LargeBinary(16).with_variant(postgresql.UUID(), "postgresql")
_COUNT = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    op.create_table(
        "stored_file",
        sa.Column("id", _ID, nullable=False),
        sa.Column("tenant_id", _ID, nullable=False),
        sa.Column("project_id", _ID, nullable=False),
        sa.Column("key_generation", sa.Integer(), nullable=False),
        sa.Column("purpose", sa.Text(), nullable=False),
        sa.Column("filename", sa.LargeBinary(), nullable=False),
        sa.Column("bytes", _COUNT, nullable=False),
        sa.Column("created_at", _COUNT, nullable=False),
        sa.Column("expires_at", _COUNT, nullable=True),
        sa.CheckConstraint(
            "purpose IN ('batch', 'batch_output', 'user_data', 'message_batch')", name=op.f("ck_stored_file_purpose")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_stored_file")),
        **STRICT,
    )
    op.create_index(op.f("ix_stored_file_expires_at"), "stored_file", ["expires_at"])
    op.create_index(op.f("ix_stored_file_project_id_id"), "stored_file", ["project_id", "id"])
    op.create_table(
        "batch",
        sa.Column("id", _ID, nullable=False),
        sa.Column("tenant_id", _ID, nullable=False),
        sa.Column("project_id", _ID, nullable=False),
        sa.Column("key", sa.Text(), nullable=False),
        sa.Column("surface", sa.Text(), nullable=False),
        sa.Column("endpoint", sa.Text(), nullable=False),
        sa.Column("status", sa.Text(), nullable=False),
        sa.Column("input_file_id", _ID, nullable=False),
        sa.Column("output_file_id", _ID, nullable=True),
        sa.Column("error_file_id", _ID, nullable=True),
        sa.Column("output_lifetime_s", _COUNT, nullable=False),
        sa.Column("details", sa.LargeBinary(), nullable=False),
        sa.Column("errors", sa.LargeBinary(), nullable=True),
        sa.Column("worker", sa.Text(), nullable=True),
        sa.Column("beat_at", _COUNT, nullable=True),
        sa.Column("created_at", _COUNT, nullable=False),
        sa.Column("expires_at", _COUNT, nullable=False),
        sa.Column("in_progress_at", _COUNT, nullable=True),
        sa.Column("finalizing_at", _COUNT, nullable=True),
        sa.Column("cancelling_at", _COUNT, nullable=True),
        sa.Column("ended_at", _COUNT, nullable=True),
        *(
            sa.Column(name, _COUNT, nullable=False, server_default=sa.text("0"))
            for name in (
                *("total", "completed", "failed", "cancelled", "expired"),
                *("input_tokens", "cached_tokens", "output_tokens", "reasoning_tokens"),
            )
        ),
        sa.Column("next_part", sa.Integer(), nullable=False, server_default=sa.text("0")),
        sa.CheckConstraint("surface IN ('openai', 'anthropic')", name=op.f("ck_batch_surface")),
        sa.CheckConstraint(
            "status IN ('validating', 'in_progress', 'finalizing', 'cancelling', 'completed', 'failed', 'expired', "
            "'cancelled')",
            name=op.f("ck_batch_status"),
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_batch")),
        **STRICT,
    )
    op.create_index(op.f("ix_batch_input_file_id"), "batch", ["input_file_id"])
    op.create_index(op.f("ix_batch_project_id_id"), "batch", ["project_id", "id"])
    op.create_index(op.f("ix_batch_worker"), "batch", ["worker"])
    op.create_table(
        "batch_line",
        sa.Column("batch_id", _ID, nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("tenant_id", _ID, nullable=False),
        sa.Column("offset", _COUNT, nullable=False),
        sa.Column("length", _COUNT, nullable=False),
        sa.Column("place", sa.LargeBinary(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False, server_default=sa.text("0")),
        sa.Column("state", sa.Text(), nullable=False, server_default=sa.text("'waiting'")),
        sa.CheckConstraint("state IN ('waiting', 'taken', 'done')", name=op.f("ck_batch_line_state")),
        sa.PrimaryKeyConstraint("batch_id", "number", name=op.f("pk_batch_line")),
        **STRICT,
    )
    op.create_index(
        op.f("ix_batch_line_batch_id_state_place_number"), "batch_line", ["batch_id", "state", "place", "number"]
    )
    op.create_table(
        "batch_part",
        sa.Column("batch_id", _ID, nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("tenant_id", _ID, nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("content", sa.LargeBinary(), nullable=False),
        sa.CheckConstraint("kind IN ('output', 'error')", name=op.f("ck_batch_part_kind")),
        sa.PrimaryKeyConstraint("batch_id", "number", name=op.f("pk_batch_part")),
        **STRICT,
    )


def downgrade() -> None:
    for table in ("batch_part", "batch_line", "batch", "stored_file"):
        op.drop_table(table)
