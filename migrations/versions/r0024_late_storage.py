"""An hour of cache storage is recorded once, also where it is booked in a later period than its own."""

from __future__ import annotations

from alembic import op

revision = "r0024"
down_revision = "r0023"
branch_labels = None
depends_on = None


def upgrade() -> None:
    columns = ["tenant_id", "hour", "project_id", "model"]
    op.create_index(op.f("ix_storage_event_tenant_id_hour_project_id_model"), "storage_event", columns, unique=True)


def downgrade() -> None:
    raise RuntimeError("revisions are not taken back: restore a backup")
