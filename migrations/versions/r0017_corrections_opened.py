"""The view that opens an invoice's lines says of an adjustment which request it corrects."""

from __future__ import annotations

from alembic import op

revision = "r0017"
down_revision = "r0016"
branch_labels = None
depends_on = None

CLASSES = ("5m", "30m", "1h", "12h", "24h")
METERS = ("uncached", "read_automatic", *(f"read_{c}" for c in CLASSES), *(f"write_{c}" for c in CLASSES), "output")


def upgrade() -> None:
    units = f"CASE l.meter {' '.join(f'''WHEN '{meter}' THEN e.{meter}''' for meter in METERS)} END"
    op.execute("DROP VIEW invoice_usage")
    op.execute(f"""
        CREATE VIEW invoice_usage AS
        SELECT l.invoice_id, l.n, l.tenant_id, e.id AS request_id, e.corrects, e.project_id, e.key_id, e.admitted_at,
            e.admitted_at - e.admitted_at % 86400000000 AS day, e.admitted_at - e.admitted_at % 3600000000 AS hour,
            l.price_micro, {units} AS units
        FROM invoice_line l JOIN usage_event e ON e.tenant_id = l.tenant_id AND e.period = l.period
            AND e.admitted_at >= l.service_start AND e.admitted_at < l.service_end AND e.model = l.model
            AND e.lane = l.lane AND e.context_from = l.context_from AND e.price_version = l.price_version
            AND (l.project_id IS NULL OR e.project_id = l.project_id)
        WHERE l.kind = 'usage' AND l.of = 0 AND {units} <> 0
    """)  # noqa: S608  # names of columns


def downgrade() -> None:
    raise RuntimeError("invoices are not thrown away: restore a backup")
