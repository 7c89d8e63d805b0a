"""The tables of payments: customers at a payment provider, top-ups, what came in, what was pushed, paid back and
disputed, and the work that is left to do.

Our rows decide: amount, currency and tenant of a payment come from here. What a provider says only points to a row.
"""

from __future__ import annotations

from sqlalchemy import CheckConstraint, Column, ForeignKey, Index, Integer, Table, Text, UniqueConstraint, text

from storage.database.base import STRICT, Base, Count, Id, Pico

payment_customer = Table(
    "payment_customer",
    Base.metadata,
    Column("tenant_id", Id, primary_key=True),
    Column("provider", Text, nullable=False),
    Column("provider_id", Text, nullable=True),
    Column("collection", Text, nullable=False),
    Column("method_id", Text, nullable=False, server_default=text("''")),
    Column("method_text", Text, nullable=False, server_default=text("''")),
    Column("connected_at", Count, nullable=False),
    Column("updated_at", Count, nullable=False),
    CheckConstraint("collection IN ('charge', 'send', 'none')", name="collection"),
    UniqueConstraint("provider", "provider_id"),
    **STRICT,
)
"""A tenant that is connected to a provider. `provider_id`: its customer there, None until it is made. `collection` of
invoices: `charge` the saved method, `send` a page on which to pay, `none`: they are paid by bank transfer. `method_id`
and `method_text` are the saved method."""

auto_top_up = Table(
    "auto_top_up",
    Base.metadata,
    Column("tenant_id", Id, primary_key=True),
    Column("currency", Text, nullable=False),
    Column("threshold_pico", Pico, nullable=False),
    Column("amount", Count, nullable=False),
    Column("state", Text, nullable=False),
    Column("reason", Text, nullable=False, server_default=text("''")),
    Column("failures", Integer, nullable=False, server_default=text("0")),
    Column("next_at", Count, nullable=False, server_default=text("0")),
    Column("updated_at", Count, nullable=False),
    CheckConstraint("state IN ('on', 'paused', 'off')", name="state"),
    CheckConstraint("amount > 0", name="positive"),
    CheckConstraint("threshold_pico >= 0", name="threshold"),
    **STRICT,
)
"""When what a tenant has left falls below the threshold, `amount` (minor units) is charged. `paused`: we stopped it,
for `reason`. After soft declines nothing is tried before `next_at`."""

IN_FLIGHT = "kind = 'automatic' AND state IN ('created', 'sent', 'unknown')"

top_up = Table(
    "top_up",
    Base.metadata,
    Column("id", Id, primary_key=True),
    Column("tenant_id", Id, nullable=False),
    Column("provider", Text, nullable=False),
    Column("kind", Text, nullable=False),
    Column("amount", Count, nullable=False),
    Column("currency", Text, nullable=False),
    Column("credit_pico", Pico, nullable=False),
    Column("state", Text, nullable=False),
    Column("payment_id", Text, nullable=True),
    Column("session_id", Text, nullable=True),
    Column("url", Text, nullable=False, server_default=text("''")),
    Column("method_id", Text, nullable=False, server_default=text("''")),
    Column("code", Text, nullable=False, server_default=text("''")),
    Column("replaces", Id, ForeignKey("top_up.id"), nullable=True),
    Column("created_at", Count, nullable=False),
    Column("updated_at", Count, nullable=False),
    CheckConstraint("kind IN ('checkout', 'automatic')", name="kind"),
    CheckConstraint(
        "state IN ('created', 'sent', 'granted', 'needs_customer', 'declined', 'unknown', 'canceled')", name="state"
    ),
    CheckConstraint("amount > 0 AND credit_pico > 0", name="positive"),
    UniqueConstraint("provider", "payment_id"),
    UniqueConstraint("provider", "session_id"),
    Index("ix_top_up_tenant_id_created_at", "tenant_id", "created_at"),
    Index(
        "ix_top_up_one_in_flight",
        "tenant_id",
        unique=True,
        sqlite_where=text(IN_FLIGHT),
        postgresql_where=text(IN_FLIGHT),
    ),
    **STRICT,
)
"""Money that a tenant was asked for in advance. `amount` (minor units) is charged, `credit_pico` is put in when it
came: then there is a grant of this id. `replaces`: the top-up that the customer had to authenticate instead."""

pushed_document = Table(
    "pushed_document",
    Base.metadata,
    Column("document_id", Id, ForeignKey("invoice.id"), primary_key=True),
    Column("tenant_id", Id, nullable=False, index=True),
    Column("provider", Text, nullable=False),
    Column("revision", Integer, nullable=False, server_default=text("1")),
    Column("state", Text, nullable=False),
    Column("provider_id", Text, nullable=True),
    Column("lines", Integer, nullable=False, server_default=text("0")),
    Column("url", Text, nullable=False, server_default=text("''")),
    Column("problem", Text, nullable=False, server_default=text("''")),
    Column("updated_at", Count, nullable=False),
    CheckConstraint("state IN ('queued', 'drafted', 'pushed', 'skipped', 'differs', 'refused')", name="state"),
    UniqueConstraint("provider", "provider_id"),
    **STRICT,
)
"""An issued invoice or credit note at a provider. `lines`: how many it has there by now. `revision` is a part of the
idempotency keys: a changed request takes the next one."""

cash_receipt = Table(
    "cash_receipt",
    Base.metadata,
    Column("id", Id, primary_key=True),
    Column("provider", Text, nullable=False),
    Column("provider_id", Text, nullable=False),
    Column("tenant_id", Id, nullable=True, index=True),
    Column("amount", Count, nullable=False),
    Column("currency", Text, nullable=False),
    Column("purpose", Text, nullable=False),
    Column("subject_id", Id, nullable=True),
    Column("payer", Text, nullable=False),
    Column("reference", Text, nullable=False),
    Column("state", Text, nullable=False),
    Column("problem", Text, nullable=False),
    Column("received_at", Count, nullable=False),
    Column("updated_at", Count, nullable=False),
    CheckConstraint("purpose IN ('top_up', 'invoice', 'unmatched')", name="purpose"),
    CheckConstraint("state IN ('applied', 'unapplied', 'returned')", name="state"),
    CheckConstraint("(state = 'applied') = (subject_id IS NOT NULL)", name="applied"),
    CheckConstraint("amount > 0", name="positive"),
    UniqueConstraint("provider", "provider_id"),
    Index(
        "ix_cash_receipt_unapplied",
        "id",
        sqlite_where=text("state = 'unapplied'"),
        postgresql_where=text("state = 'unapplied'"),
    ),
    **STRICT,
)
"""Money that came in, by card or by bank transfer, once: `provider_id` is the payment's or the bank entry's. The row
and what it pays for are written in one transaction. `subject_id`: the top-up or invoice. What nobody can be said to owe
is `unapplied` until somebody decides: the suspense account."""

payment_refund = Table(
    "payment_refund",
    Base.metadata,
    Column("id", Id, primary_key=True),
    Column("tenant_id", Id, nullable=False, index=True),
    Column("receipt_id", Id, ForeignKey("cash_receipt.id"), nullable=False, index=True),
    Column("amount", Count, nullable=False),
    Column("currency", Text, nullable=False),
    Column("state", Text, nullable=False),
    Column("provider", Text, nullable=False),
    Column("provider_id", Text, nullable=True),
    Column("reason", Text, nullable=False),
    Column("problem", Text, nullable=False, server_default=text("''")),
    Column("created_at", Count, nullable=False),
    Column("updated_at", Count, nullable=False),
    CheckConstraint("state IN ('created', 'sent', 'succeeded', 'failed')", name="state"),
    CheckConstraint("amount > 0", name="positive"),
    UniqueConstraint("provider", "provider_id"),
    **STRICT,
)
"""Money of a top-up that goes back by the way it came. The credit is taken when the row is written; a refund that fails
puts it back."""

payment_dispute = Table(
    "payment_dispute",
    Base.metadata,
    Column("id", Id, primary_key=True),
    Column("provider", Text, nullable=False),
    Column("provider_id", Text, nullable=False),
    Column("receipt_id", Id, ForeignKey("cash_receipt.id"), nullable=True),
    Column("tenant_id", Id, nullable=True, index=True),
    Column("amount", Count, nullable=False),
    Column("currency", Text, nullable=False),
    Column("state", Text, nullable=False),
    Column("reason", Text, nullable=False),
    Column("moved", Count, nullable=False, server_default=text("0")),
    Column("created_at", Count, nullable=False),
    Column("updated_at", Count, nullable=False),
    CheckConstraint("state IN ('open', 'withdrawn', 'won', 'lost')", name="state"),
    CheckConstraint("amount > 0", name="positive"),
    CheckConstraint("moved >= 0", name="moved"),
    UniqueConstraint("provider", "provider_id"),
    **STRICT,
)
"""A cardholder's objection. `moved`: minor units that were taken from the tenant's balance, since the provider took
them from us; a dispute that is won puts them back."""

payment_inbox = Table(
    "payment_inbox",
    Base.metadata,
    Column("provider", Text, primary_key=True),
    Column("event_id", Text, primary_key=True),
    Column("type", Text, nullable=False),
    Column("object_id", Text, nullable=False),
    Column("created", Count, nullable=False),
    Column("received_at", Count, nullable=False),
    Column("via", Text, nullable=False),
    CheckConstraint("via IN ('webhook', 'list')", name="via"),
    Index(None, "received_at"),
    **STRICT,
)
"""Events of a provider, each once. They only say what to look at: the worker asks the provider for the object."""

payment_job = Table(
    "payment_job",
    Base.metadata,
    Column("id", Id, primary_key=True),
    Column("kind", Text, nullable=False),
    Column("subject", Text, nullable=False),
    Column("state", Text, nullable=False),
    Column("attempts", Integer, nullable=False, server_default=text("0")),
    Column("due_at", Count, nullable=False),
    Column("leased_until", Count, nullable=False, server_default=text("0")),
    Column("problem", Text, nullable=False, server_default=text("''")),
    Column("created_at", Count, nullable=False),
    Column("finished_at", Count, nullable=True),
    CheckConstraint("state IN ('queued', 'done', 'failed')", name="state"),
    Index(
        "ix_payment_job_one_queued",
        "kind",
        "subject",
        unique=True,
        sqlite_where=text("state = 'queued'"),
        postgresql_where=text("state = 'queued'"),
    ),
    Index(
        "ix_payment_job_due",
        "due_at",
        sqlite_where=text("state = 'queued'"),
        postgresql_where=text("state = 'queued'"),
    ),
    **STRICT,
)
"""What the worker has to do at a provider. A job is its worker's until `leased_until`; then another may take it up."""

finance_task = Table(
    "finance_task",
    Base.metadata,
    Column("id", Id, primary_key=True),
    Column("kind", Text, nullable=False),
    Column("subject", Text, nullable=False),
    Column("tenant_id", Id, nullable=True),
    Column("text", Text, nullable=False),
    Column("state", Text, nullable=False),
    Column("created_at", Count, nullable=False),
    Column("closed_at", Count, nullable=True),
    CheckConstraint("state IN ('open', 'done')", name="state"),
    CheckConstraint("(state = 'done') = (closed_at IS NOT NULL)", name="closed"),
    Index(
        "ix_finance_task_one_open",
        "kind",
        "subject",
        unique=True,
        sqlite_where=text("state = 'open'"),
        postgresql_where=text("state = 'open'"),
    ),
    **STRICT,
)
"""What somebody has to look at: a document that differs at the provider, an invoice that was voided there by hand."""

payment_reminder = Table(
    "payment_reminder",
    Base.metadata,
    Column("id", Id, primary_key=True),
    Column("tenant_id", Id, nullable=False, index=True),
    Column("invoice_id", Id, ForeignKey("invoice.id"), nullable=False),
    Column("level", Integer, nullable=False),
    Column("state", Text, nullable=False),
    Column("recipient", Text, nullable=False),
    Column("subject", Text, nullable=False),
    Column("problem", Text, nullable=False),
    Column("attempts", Integer, nullable=False),
    Column("due_at", Count, nullable=False),
    Column("sent_at", Count, nullable=True),
    Column("created_at", Count, nullable=False),
    Column("updated_at", Count, nullable=False),
    CheckConstraint("state IN ('queued', 'sending', 'sent', 'refused', 'unknown', 'canceled')", name="state"),
    CheckConstraint("level >= 1", name="level"),
    CheckConstraint("state <> 'sent' OR sent_at IS NOT NULL", name="sent"),
    UniqueConstraint("invoice_id", "level"),
    Index(
        "ix_payment_reminder_waiting",
        "due_at",
        sqlite_where=text("state IN ('queued', 'sending')"),
        postgresql_where=text("state IN ('queued', 'sending')"),
    ),
    **STRICT,
)
"""An e-mail about an invoice that is overdue: of each level one. `sending` is a worker's claim, made before anything is
sent; what became of it is `unknown` where the claim was never ended."""

reminder_policy = Table(
    "reminder_policy",
    Base.metadata,
    Column("tenant_id", Id, primary_key=True),
    Column("enabled", Integer, nullable=False),
    Column("updated_at", Count, nullable=False),
    CheckConstraint("enabled IN (0, 1)", name="enabled"),
    **STRICT,
)
"""Whether a tenant gets reminders; without a row it does."""

payment_reconciliation = Table(
    "payment_reconciliation",
    Base.metadata,
    Column("id", Id, primary_key=True),
    Column("provider", Text, nullable=False),
    Column("since", Count, nullable=False),
    Column("until", Count, nullable=False),
    Column("differences", Integer, nullable=False),
    Column("report", Text, nullable=False),
    Column("at", Count, nullable=False),
    CheckConstraint("differences >= 0", name="differences"),
    Index(None, "provider", "at"),
    **STRICT,
)
"""A comparison of our rows with the provider's objects in both directions; `report` is JSON."""

bank_statement = Table(
    "bank_statement",
    Base.metadata,
    Column("sha256", Text, primary_key=True),
    Column("name", Text, nullable=False),
    Column("account", Text, nullable=False),
    Column("entries", Integer, nullable=False),
    Column("new_entries", Integer, nullable=False),
    Column("imported_at", Count, nullable=False),
    **STRICT,
)
"""A file of a bank that was read: the same one again is known by its hash."""
