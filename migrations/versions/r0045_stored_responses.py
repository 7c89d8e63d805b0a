"""Responses that are kept: sealed, with the events of those in the background, and what projects keep of them."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "r0045"
down_revision = "r0044"
branch_labels = None
depends_on = None

STRICT = {"sqlite_strict": True}
_ID = sa.UUID().with_variant(sa.LargeBinary(16), "sqlite")
_COUNT = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
_KINDS = "kind IN ('chain', 'stored', 'background')"
_STATES = "status IN ('queued', 'in_progress', 'completed', 'incomplete', 'failed', 'cancelled')"


def upgrade() -> None:
    op.create_table(
        "stored_response",
        sa.Column("id", _ID, nullable=False),
        sa.Column("tenant_id", _ID, nullable=False),
        sa.Column("project_id", _ID, nullable=False),
        sa.Column("previous_id", _ID, nullable=True),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("status", sa.Text(), nullable=False),
        sa.Column("model", sa.Text(), nullable=False),
        sa.Column("created_at", _COUNT, nullable=False),
        sa.Column("expires_at", _COUNT, nullable=False),
        sa.Column("key_generation", sa.Integer(), nullable=False),
        sa.Column("bytes", _COUNT, nullable=False),
        sa.Column("request", sa.LargeBinary(), nullable=False),
        sa.Column("response", sa.LargeBinary(), nullable=False),
        sa.Column("worker", sa.Text(), nullable=True),
        sa.Column("beat_at", _COUNT, nullable=True),
        sa.Column("cancelling", sa.Integer(), nullable=False),
        sa.CheckConstraint(_KINDS, name=op.f("ck_stored_response_kind")),
        sa.CheckConstraint(_STATES, name=op.f("ck_stored_response_status")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_stored_response")),
        **STRICT,
    )
    op.create_index(op.f("ix_stored_response_expires_at"), "stored_response", ["expires_at"])
    op.create_index(op.f("ix_stored_response_worker"), "stored_response", ["worker"])
    op.create_index(op.f("ix_stored_response_project_id_id"), "stored_response", ["project_id", "id"])
    op.create_table(
        "stored_response_events",
        sa.Column("response_id", _ID, nullable=False),
        sa.Column("first", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("tenant_id", _ID, nullable=False),
        sa.Column("last", sa.Integer(), nullable=False),
        sa.Column("events", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("response_id", "first", name=op.f("pk_stored_response_events")),
        **STRICT,
    )
    op.create_table(
        "response_policy",
        sa.Column("project_id", _ID, nullable=False),
        sa.Column("tenant_id", _ID, nullable=False),
        sa.Column("retention_s", _COUNT, nullable=True),
        sa.Column("readable", sa.Integer(), nullable=False),
        sa.Column("changed_at", _COUNT, nullable=False),
        sa.CheckConstraint("readable IN (0, 1)", name=op.f("ck_response_policy_readable")),
        sa.PrimaryKeyConstraint("project_id", name=op.f("pk_response_policy")),
        **STRICT,
    )
    op.create_index(op.f("ix_response_policy_tenant_id"), "response_policy", ["tenant_id"])


def downgrade() -> None:
    op.drop_table("response_policy")
    op.drop_table("stored_response_events")
    op.drop_table("stored_response")
