"""A tenant's requests' times in their order."""

from __future__ import annotations

from alembic import op

revision = "r0049"
down_revision = "r0048"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_index("ix_request_waterfall_tenant_id_id", "request_waterfall", ["tenant_id", "id"])


def downgrade() -> None:
    op.drop_index("ix_request_waterfall_tenant_id_id", "request_waterfall")
