"""An index of a tenant's invoices by the time they were drafted: lists of them go from page to page."""

from __future__ import annotations

from alembic import op

revision = "r0038"
down_revision = "r0037"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_index("ix_invoice_tenant_id_drafted_at", "invoice", ["tenant_id", "drafted_at"])


def downgrade() -> None:
    op.drop_index("ix_invoice_tenant_id_drafted_at", "invoice")
