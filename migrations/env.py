"""What Alembic runs: our tables, on the connection that `storage.migrate` hands over."""

from __future__ import annotations

from alembic import context

import billing.budget_tables
import billing.chain_tables
import billing.export_tables
import billing.invoice_tables
import billing.period_tables
import billing.price_tables
import billing.rating_tables
import billing.reconciliation_tables
import billing.tables
import billing.webhook_tables
import gateway.tenancy.tables
from storage.base import Base

ROOMS = (
    billing.chain_tables,
    billing.export_tables,
    billing.budget_tables,
    billing.invoice_tables,
    billing.period_tables,
    billing.price_tables,
    billing.rating_tables,
    billing.reconciliation_tables,
    billing.tables,
    billing.webhook_tables,
    gateway.tenancy.tables,
)
"""Imported for the tables that they add to the one metadata."""

connection = context.config.attributes.get("connection")
if connection is None:
    raise RuntimeError("migrations run through storage.migrate, which hands over a connection")
context.configure(
    connection=connection,
    target_metadata=Base.metadata,
    compare_type=True,
    compare_server_default=True,
    render_as_batch=False,
    transactional_ddl=True,
)
with context.begin_transaction():
    context.run_migrations()
