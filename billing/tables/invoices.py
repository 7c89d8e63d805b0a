"""The tables of invoices and payments: sellers, billing profiles, documents, and export jobs."""

from __future__ import annotations

from sqlalchemy import (
    CheckConstraint,
    Column,
    ForeignKey,
    Index,
    Integer,
    MetaData,
    Table,
    Text,
    UniqueConstraint,
    text,
)

from storage.database.base import STRICT, Base, Count, Id, Pico

STATES = "'draft', 'finalized', 'partially_paid', 'paid', 'credited', 'void', 'uncollectible'"

legal_entity = Table(
    "legal_entity",
    Base.metadata,
    Column("id", Text, primary_key=True),
    Column("profile", Text, nullable=False),
    Column("updated_at", Count, nullable=False),
    **STRICT,
)
"""Who sells; `profile` is a Seller as canonical JSON, as it was set last."""

billing_profile = Table(
    "billing_profile",
    Base.metadata,
    Column("tenant_id", Id, primary_key=True),
    Column("seller", Text, ForeignKey("legal_entity.id"), nullable=False),
    Column("profile", Text, nullable=False),
    Column("updated_at", Count, nullable=False),
    **STRICT,
)
"""Who a tenant's invoices are for; `profile` is a Buyer as canonical JSON. Its row is the lock of the tenant's
documents: whoever makes or changes one holds it."""

party_change = Table(
    "party_change",
    Base.metadata,
    Column("id", Integer, primary_key=True, autoincrement=True),
    Column("seller", Text, ForeignKey("legal_entity.id"), nullable=True, index=True),
    Column("tenant_id", Id, nullable=True, index=True),
    Column("valid_from", Text, nullable=False),
    Column("facts", Text, nullable=False),
    Column("reason", Text, nullable=False),
    Column("created_at", Count, nullable=False),
    CheckConstraint("(seller IS NULL) <> (tenant_id IS NULL)", name="party"),
    **STRICT,
)
"""From which day on tax-relevant facts of a seller or of a tenant's billing profile hold
(`billing.invoices.parties.dated`): canonical JSON of those that change then. A party whose facts never changed has no
row; the first row of another has all facts from before, valid from "". Append-only: triggers refuse UPDATE and DELETE.
"""

number_series = Table(
    "number_series",
    Base.metadata,
    Column("seller", Text, ForeignKey("legal_entity.id"), primary_key=True),
    Column("series", Text, primary_key=True),
    Column("year", Integer, nullable=False),
    Column("next", Integer, nullable=False),
    Column("issued", Text, nullable=False),
    Column("head", Text, nullable=False),
    CheckConstraint("next >= 1", name="next"),
    **STRICT,
)
"""Where a series stands: its year (0 where its numbers have none), the next number, and date and SHA-256 of the last
document. A row that is locked while a number is taken, and no sequence: one that was taken and not used would be lost.
"""

invoice = Table(
    "invoice",
    Base.metadata,
    Column("id", Id, primary_key=True),
    Column("kind", Text, nullable=False),
    Column("seller", Text, ForeignKey("legal_entity.id"), nullable=False),
    Column("tenant_id", Id, nullable=False),
    Column("period", Text, nullable=False),
    Column("currency", Text, nullable=False),
    Column("state", Text, nullable=False),
    Column("series", Text, nullable=False),
    Column("year", Integer, nullable=True),
    Column("n", Integer, nullable=True),
    Column("number", Text, nullable=True),
    Column("issued", Text, nullable=True),
    Column("due", Text, nullable=True),
    Column("net", Count, nullable=False),
    Column("tax", Count, nullable=False),
    Column("gross", Count, nullable=False),
    Column("prepaid", Count, nullable=False),
    Column("payable", Count, nullable=False),
    Column("usage_pico", Pico, nullable=False),
    Column("promo_pico", Pico, nullable=False),
    Column("charges_pico", Pico, nullable=False),
    Column("prepaid_pico", Pico, nullable=False),
    Column("returned_pico", Pico, nullable=False, server_default=text("0")),
    Column("advance_tax", Count, nullable=False, server_default=text("0")),
    Column("drawn", Count, nullable=False, server_default=text("0")),
    Column("deferred_pico", Pico, nullable=False, server_default=text("0")),
    Column("carry_in", Pico, nullable=False),
    Column("carry_out", Pico, nullable=False),
    Column("prepaid_carry_in", Pico, nullable=False),
    Column("prepaid_carry_out", Pico, nullable=False),
    Column("corrects", Id, ForeignKey("invoice.id"), nullable=True),
    Column("content", Text, nullable=False),
    Column("sha256", Text, nullable=True),
    Column("drafted_at", Count, nullable=False),
    Column("finalized_at", Count, nullable=True),
    Column("paid", Count, nullable=False, server_default=text("0")),
    Column("credited", Count, nullable=False, server_default=text("0")),
    Column("settled_pico", Pico, nullable=False, server_default=text("0")),
    CheckConstraint("kind IN ('invoice', 'credit_note', 'advance')", name="kind"),
    CheckConstraint(f"state IN ({STATES})", name="state"),
    CheckConstraint("(state = 'draft') = (number IS NULL)", name="draft"),
    CheckConstraint("(number IS NULL) = (sha256 IS NULL)", name="sha256"),
    CheckConstraint("(kind = 'credit_note') = (corrects IS NOT NULL)", name="corrects"),
    CheckConstraint("paid >= 0 AND credited >= 0 AND paid <= payable AND credited <= gross", name="settled"),
    UniqueConstraint("seller", "number"),
    UniqueConstraint("seller", "series", "year", "n"),
    Index(
        "ix_invoice_one_of_a_period",
        "tenant_id",
        "period",
        unique=True,
        sqlite_where=text("kind = 'invoice' AND state <> 'void'"),
        postgresql_where=text("kind = 'invoice' AND state <> 'void'"),
    ),
    Index(None, "corrects"),
    Index("ix_invoice_tenant_id_drafted_at", "tenant_id", "drafted_at"),
    **STRICT,
)
"""Invoices, credit notes and advance-payment invoices. `content` is a Document as canonical JSON, `sha256` its hash.

Amounts are in minor units, exact ones in pico-units:

- `usage_pico`: what the events of the period cost; `promo_pico` of it was given, `prepaid_pico` was paid in advance
- `charges_pico`: all lines that are no usage
- `advance_tax`: VAT of advance-payment invoices that it deducts; `drawn`: paid from credit for what is no usage
- `deferred_pico`: what of a commitment is asked for and not earned yet, less what was earned of it
- `returned_pico`: usage that was given back by lines that lower it (`billing.invoices.accounting.balance_returns`)

After finalizing only these change: `paid`, `credited`, and `settled_pico`, the owed usage that both of them settled.
"""

ISSUED = (invoice.c.kind == "invoice") & invoice.c.state.not_in(("draft", "void"))
"""The SQL condition of invoices that bill their period."""

invoice_line = Table(
    "invoice_line",
    Base.metadata,
    Column("invoice_id", Id, ForeignKey("invoice.id"), primary_key=True),
    Column("n", Integer, primary_key=True, autoincrement=False),
    Column("tenant_id", Id, nullable=False),
    Column("period", Text, nullable=False),
    Column("kind", Text, nullable=False),
    Column("text", Text, nullable=False),
    Column("project_id", Id, nullable=True),
    Column("model", Text, nullable=True),
    Column("meter", Text, nullable=True),
    Column("lane", Text, nullable=True),
    Column("context_from", Count, nullable=False),
    Column("price_version", Integer, nullable=True),
    Column("price_micro", Count, nullable=True),
    Column("units", Count, nullable=False),
    Column("exact_pico", Pico, nullable=False),
    Column("net", Count, nullable=False),
    Column("category", Text, nullable=False),
    Column("rate", Integer, nullable=False),
    Column("service_start", Count, nullable=False),
    Column("service_end", Count, nullable=False),
    Column("corrects", Text, nullable=True),
    Column("of", Integer, nullable=False),
    **STRICT,
)
"""The lines of a document as rows. A usage line's requests are the events of `period` that agree with it and were
admitted from `service_start` (included) to `service_end` (excluded)."""

einvoice = Table(
    "einvoice",
    Base.metadata,
    Column("invoice_id", Id, ForeignKey("invoice.id"), primary_key=True),
    Column("syntax", Text, primary_key=True),
    Column("tenant_id", Id, nullable=False),
    Column("profile", Text, nullable=False),
    Column("content", Text, nullable=False),
    Column("sha256", Text, nullable=False),
    Column("at", Count, nullable=False),
    CheckConstraint("syntax IN ('ubl', 'cii')", name="syntax"),
    **STRICT,
)
"""An issued document as XML of EN 16931 in a syntax and a profile, with its hash: what was sent stays what it was,
whatever later releases would write. A document that the standard cannot express has no row. Append-only: triggers
refuse UPDATE and DELETE."""

invoice_payment = Table(
    "invoice_payment",
    Base.metadata,
    Column("id", Id, primary_key=True),
    Column("invoice_id", Id, ForeignKey("invoice.id"), nullable=False, index=True),
    Column("tenant_id", Id, nullable=False),
    Column("amount", Count, nullable=False),
    Column("currency", Text, nullable=False),
    Column("usage_pico", Pico, nullable=False),
    Column("reference", Text, nullable=False),
    Column("at", Count, nullable=False),
    CheckConstraint("amount > 0", name="positive"),
    **STRICT,
)
"""Money that came in for an invoice, in minor units; `usage_pico` of it paid for usage, and is a grant of the same id.
The id follows from the invoice and the reference: a payment that is told twice counts once."""

advance_deduction = Table(
    "advance_deduction",
    Base.metadata,
    Column("invoice_id", Id, ForeignKey("invoice.id"), primary_key=True),
    Column("n", Integer, primary_key=True, autoincrement=False),
    Column("tenant_id", Id, nullable=False),
    Column("advance_id", Id, ForeignKey("invoice.id"), nullable=False, index=True),
    Column("exact_pico", Pico, nullable=False),
    Column("net", Count, nullable=False),
    Column("tax", Count, nullable=False),
    **STRICT,
)
"""What invoices deduct of advance-payment invoices, as rows (`billing.invoices.document.Deduction`)."""

invoice_usage = Table(
    "invoice_usage",
    MetaData(),
    *(Column(name, Id) for name in ("invoice_id", "tenant_id", "request_id", "corrects", "project_id", "key_id")),
    Column("n", Integer),
    *(Column(name, Count) for name in ("admitted_at", "day", "hour", "price_micro", "units")),
)
"""The view of what usage lines are made of: each request, and each adjustment with the request that it `corrects`, with
its units of the line's meter. `day` and `hour` are the first instants of those, in UTC."""

export_job = Table(
    "export_job",
    Base.metadata,
    Column("id", Id, primary_key=True),
    Column("tenant_id", Id, nullable=False),
    Column("key_id", Id, nullable=False),
    Column("dataset", Text, nullable=False),
    Column("period", Text, nullable=False),
    Column("format", Text, nullable=False),
    Column("state", Text, nullable=False),
    Column("rows", Count, nullable=False),
    Column("attempts", Count, nullable=False),
    Column("error", Text, nullable=True),
    Column("manifest", Text, nullable=True),
    Column("created_at", Count, nullable=False),
    Column("started_at", Count, nullable=True),
    Column("finished_at", Count, nullable=True),
    Column("leased_until", Count, nullable=False),
    CheckConstraint("state IN ('queued', 'running', 'done', 'failed', 'expired')", name="state"),
    CheckConstraint("(state IN ('done', 'expired')) = (manifest IS NOT NULL)", name="manifest"),
    Index(None, "tenant_id", "id"),
    Index(
        "ix_export_job_unfinished",
        "id",
        sqlite_where=text("state IN ('queued', 'running')"),
        postgresql_where=text("state IN ('queued', 'running')"),
    ),
    **STRICT,
)
"""A file that a tenant asked for. A running job is its worker's until `leased_until`; then another may take it up. A
file that was removed after its time is `expired`; its manifest stays, and the same job makes the same file again."""

vat_check = Table(
    "vat_check",
    Base.metadata,
    Column("id", Integer, primary_key=True, autoincrement=True),
    Column("tenant_id", Id, nullable=False, index=True),
    Column("vat_id", Text, nullable=False),
    Column("answer", Text, nullable=False),
    Column("name", Text, nullable=False),
    Column("address", Text, nullable=False),
    Column("consultation", Text, nullable=False),
    Column("registry", Text, nullable=False),
    Column("at", Count, nullable=False),
    CheckConstraint("answer IN ('valid', 'invalid', 'unavailable')", name="answer"),
    **STRICT,
)
"""What a register said of a buyer's VAT id, and when. `consultation`: by which the register knows the question again.
Append-only: triggers refuse UPDATE and DELETE."""

exchange_rate = Table(
    "exchange_rate",
    Base.metadata,
    Column("day", Text, primary_key=True),
    Column("currency", Text, primary_key=True),
    Column("rate", Text, nullable=False),
    Column("source", Text, nullable=False),
    Column("recorded_at", Count, nullable=False),
    **STRICT,
)
"""Units of a currency for one euro as published for a day, a decimal number as text. Append-only: triggers refuse
UPDATE and DELETE."""
