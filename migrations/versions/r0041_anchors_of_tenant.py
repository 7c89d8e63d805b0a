"""An index by which the anchors of one chain of the audit log are found."""

from __future__ import annotations

from alembic import op

revision = "r0041"
down_revision = "r0040"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_index("ix_audit_anchor_tenant_id_entries", "audit_anchor", ["tenant_id", "entries"])


def downgrade() -> None:
    op.drop_index("ix_audit_anchor_tenant_id_entries", "audit_anchor")
