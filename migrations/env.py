"""What Alembic runs: our tables, on the connection that `storage.database.migrate` hands over."""

from __future__ import annotations

from alembic import context

import audit_log.tables
import billing.tables.approvals
import billing.tables.budgets
import billing.tables.chain
import billing.tables.exports
import billing.tables.invoices
import billing.tables.journals
import billing.tables.money
import billing.tables.periods
import billing.tables.platform
import billing.tables.prices
import billing.tables.rating
import billing.tables.reconciliation
import billing.tables.seals
import billing.tables.service
import prompt_cache.tables
import response_store.tables
import storage.database.outbox
import tenancy.tables
import tenancy.users.tables
import waterfall.tables
import webhooks.tables
from storage.database.base import Base

ROOMS = (
    audit_log.tables,
    billing.tables.approvals,
    billing.tables.chain,
    billing.tables.exports,
    billing.tables.budgets,
    billing.tables.invoices,
    billing.tables.journals,
    billing.tables.periods,
    billing.tables.platform,
    billing.tables.prices,
    billing.tables.rating,
    billing.tables.reconciliation,
    billing.tables.seals,
    billing.tables.service,
    billing.tables.money,
    prompt_cache.tables,
    response_store.tables,
    storage.database.outbox,
    tenancy.users.tables,
    waterfall.tables,
    webhooks.tables,
    tenancy.tables,
)
"""Imported for the tables that they add to the one metadata."""

connection = context.config.attributes.get("connection")
if connection is None:
    raise RuntimeError("migrations run through storage.database.migrate, which hands over a connection")
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
