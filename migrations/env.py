"""What Alembic runs: our tables, on the connection that `storage.database.migrate` hands over."""

from __future__ import annotations

from alembic import context

import audit_log.tables
import batch_store.tables
import billing.tables.books
import billing.tables.invoices
import billing.tables.money
import billing.tables.payments
import billing.tables.prices
import file_store.tables
import prompt_cache.tables
import response_store.tables
import storage.database.outbox
import storage.database.test_clock
import tenancy.identity.tables
import tenancy.tables
import tenancy.users.tables
import waterfall.tables
import webhooks.tables
from storage.database.base import Base

ROOMS = (
    audit_log.tables,
    batch_store.tables,
    file_store.tables,
    billing.tables.books,
    billing.tables.books,
    billing.tables.invoices,
    billing.tables.money,
    billing.tables.payments,
    billing.tables.invoices,
    billing.tables.books,
    billing.tables.books,
    billing.tables.books,
    billing.tables.prices,
    billing.tables.prices,
    billing.tables.books,
    billing.tables.books,
    billing.tables.books,
    billing.tables.money,
    billing.tables.payments,
    prompt_cache.tables,
    response_store.tables,
    storage.database.outbox,
    storage.database.test_clock,
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
