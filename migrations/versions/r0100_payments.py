"""Payments: customers at a provider, top-ups, cash that came in, pushed documents, refunds, disputes, and work."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "r0100"
down_revision = "r0055"
branch_labels = None
depends_on = None

ID = postgresql.UUID().with_variant(sa.LargeBinary(16), "sqlite")
PICO = sa.Numeric(38, 0).with_variant(sa.Integer(), "sqlite")
COUNT = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
EMPTY, ZERO = sa.text("''"), sa.text("0")
TABLES = (
    "payment_customer",
    "auto_top_up",
    "top_up",
    "pushed_document",
    "cash_receipt",
    "payment_refund",
    "payment_dispute",
    "payment_inbox",
    "payment_job",
    "finance_task",
    "payment_reconciliation",
    "bank_statement",
)


def _text(*names: str) -> list[sa.Column[Any]]:
    return [sa.Column(name, sa.Text(), nullable=False) for name in names]


def _count(*names: str) -> list[sa.Column[Any]]:
    return [sa.Column(name, COUNT, nullable=False) for name in names]


def _id(name: str, *, null: bool = False) -> sa.Column[Any]:
    return sa.Column(name, ID, nullable=null)


def _maybe(name: str) -> sa.Column[Any]:
    return sa.Column(name, sa.Text(), nullable=True)


def _empty(*names: str) -> list[sa.Column[Any]]:
    return [sa.Column(name, sa.Text(), nullable=False, server_default=EMPTY) for name in names]


def _table(name: str, key: tuple[str, ...], *parts: Any, **checks: str) -> None:
    constraints = [sa.CheckConstraint(said, name=op.f(f"ck_{name}_{check}")) for check, said in checks.items()]
    op.create_table(name, *parts, sa.PrimaryKeyConstraint(*key, name=f"pk_{name}"), *constraints, sqlite_strict=True)


def _unique(table: str, *columns: str) -> sa.UniqueConstraint:
    return sa.UniqueConstraint(*columns, name=f"uq_{table}_{'_'.join(columns)}")


def _refers(table: str, column: str, to: str) -> sa.ForeignKeyConstraint:
    return sa.ForeignKeyConstraint([column], [f"{to}.id"], name=f"fk_{table}_{column}_{to}")


def _index(name: str, table: str, *columns: str, where: str | None = None, unique: bool = False) -> None:
    condition = None if where is None else sa.text(where)
    op.create_index(name, table, list(columns), unique=unique, sqlite_where=condition, postgresql_where=condition)


def upgrade() -> None:
    _customers()
    _top_ups()
    _documents()
    _cash()
    _work()


def _customers() -> None:
    _table(
        "payment_customer",
        ("tenant_id",),
        _id("tenant_id"),
        *_text("provider"),
        _maybe("provider_id"),
        *_text("collection"),
        *_empty("method_id", "method_text"),
        *_count("connected_at", "updated_at"),
        _unique("payment_customer", "provider", "provider_id"),
        collection="collection IN ('charge', 'send', 'none')",
    )
    _table(
        "auto_top_up",
        ("tenant_id",),
        _id("tenant_id"),
        *_text("currency"),
        sa.Column("threshold_pico", PICO, nullable=False),
        *_count("amount"),
        *_text("state"),
        *_empty("reason"),
        sa.Column("failures", sa.Integer(), nullable=False, server_default=ZERO),
        sa.Column("next_at", COUNT, nullable=False, server_default=ZERO),
        *_count("updated_at"),
        state="state IN ('on', 'paused', 'off')",
        positive="amount > 0",
        threshold="threshold_pico >= 0",
    )


def _top_ups() -> None:
    _table(
        "top_up",
        ("id",),
        *(_id("id"), _id("tenant_id")),
        *_text("provider", "kind"),
        *_count("amount"),
        *_text("currency"),
        sa.Column("credit_pico", PICO, nullable=False),
        *_text("state"),
        *(_maybe("payment_id"), _maybe("session_id")),
        *_empty("url", "method_id", "code"),
        _id("replaces", null=True),
        *_count("created_at", "updated_at"),
        _refers("top_up", "replaces", "top_up"),
        _unique("top_up", "provider", "payment_id"),
        _unique("top_up", "provider", "session_id"),
        kind="kind IN ('checkout', 'automatic')",
        state="state IN ('created', 'sent', 'granted', 'needs_customer', 'declined', 'unknown', 'canceled')",
        positive="amount > 0 AND credit_pico > 0",
    )
    in_flight = "kind = 'automatic' AND state IN ('created', 'sent', 'unknown')"
    _index("ix_top_up_tenant_id_created_at", "top_up", "tenant_id", "created_at")
    _index("ix_top_up_one_in_flight", "top_up", "tenant_id", where=in_flight, unique=True)


def _documents() -> None:
    _table(
        "pushed_document",
        ("document_id",),
        *(_id("document_id"), _id("tenant_id")),
        *_text("provider"),
        sa.Column("revision", sa.Integer(), nullable=False, server_default=sa.text("1")),
        *_text("state"),
        _maybe("provider_id"),
        sa.Column("lines", sa.Integer(), nullable=False, server_default=ZERO),
        *_empty("url", "problem"),
        *_count("updated_at"),
        _refers("pushed_document", "document_id", "invoice"),
        _unique("pushed_document", "provider", "provider_id"),
        state="state IN ('queued', 'drafted', 'pushed', 'skipped', 'differs', 'refused')",
    )
    _index("ix_pushed_document_tenant_id", "pushed_document", "tenant_id")


def _cash() -> None:
    _table(
        "cash_receipt",
        ("id",),
        _id("id"),
        *_text("provider", "provider_id"),
        _id("tenant_id", null=True),
        *_count("amount"),
        *_text("currency", "purpose"),
        _id("subject_id", null=True),
        *_text("payer", "reference", "state", "problem"),
        *_count("received_at", "updated_at"),
        _unique("cash_receipt", "provider", "provider_id"),
        purpose="purpose IN ('top_up', 'invoice', 'unmatched')",
        state="state IN ('applied', 'unapplied', 'returned')",
        applied="(state = 'applied') = (subject_id IS NOT NULL)",
        positive="amount > 0",
    )
    _index("ix_cash_receipt_tenant_id", "cash_receipt", "tenant_id")
    _index("ix_cash_receipt_unapplied", "cash_receipt", "id", where="state = 'unapplied'")
    _table(
        "payment_refund",
        ("id",),
        *(_id("id"), _id("tenant_id"), _id("receipt_id")),
        *_count("amount"),
        *_text("currency", "state", "provider"),
        _maybe("provider_id"),
        *_text("reason"),
        *_empty("problem"),
        *_count("created_at", "updated_at"),
        _refers("payment_refund", "receipt_id", "cash_receipt"),
        _unique("payment_refund", "provider", "provider_id"),
        state="state IN ('created', 'sent', 'succeeded', 'failed')",
        positive="amount > 0",
    )
    _index("ix_payment_refund_tenant_id", "payment_refund", "tenant_id")
    _index("ix_payment_refund_receipt_id", "payment_refund", "receipt_id")
    _table(
        "payment_dispute",
        ("id",),
        _id("id"),
        *_text("provider", "provider_id"),
        *(_id("receipt_id", null=True), _id("tenant_id", null=True)),
        *_count("amount"),
        *_text("currency", "state", "reason"),
        sa.Column("moved", COUNT, nullable=False, server_default=ZERO),
        *_count("created_at", "updated_at"),
        _refers("payment_dispute", "receipt_id", "cash_receipt"),
        _unique("payment_dispute", "provider", "provider_id"),
        state="state IN ('open', 'withdrawn', 'won', 'lost')",
        positive="amount > 0",
        moved="moved >= 0",
    )
    _index("ix_payment_dispute_tenant_id", "payment_dispute", "tenant_id")


def _work() -> None:
    _table(
        "payment_inbox",
        ("provider", "event_id"),
        *_text("provider", "event_id", "type", "object_id"),
        *_count("created", "received_at"),
        *_text("via"),
        via="via IN ('webhook', 'list')",
    )
    _index("ix_payment_inbox_received_at", "payment_inbox", "received_at")
    _table(
        "payment_job",
        ("id",),
        _id("id"),
        *_text("kind", "subject", "state"),
        sa.Column("attempts", sa.Integer(), nullable=False, server_default=ZERO),
        *_count("due_at"),
        sa.Column("leased_until", COUNT, nullable=False, server_default=ZERO),
        *_empty("problem"),
        *_count("created_at"),
        sa.Column("finished_at", COUNT, nullable=True),
        state="state IN ('queued', 'done', 'failed')",
    )
    _index("ix_payment_job_one_queued", "payment_job", "kind", "subject", where="state = 'queued'", unique=True)
    _index("ix_payment_job_due", "payment_job", "due_at", where="state = 'queued'")
    _table(
        "finance_task",
        ("id",),
        _id("id"),
        *_text("kind", "subject"),
        _id("tenant_id", null=True),
        *_text("text", "state"),
        *_count("created_at"),
        sa.Column("closed_at", COUNT, nullable=True),
        state="state IN ('open', 'done')",
        closed="(state = 'done') = (closed_at IS NOT NULL)",
    )
    _index("ix_finance_task_one_open", "finance_task", "kind", "subject", where="state = 'open'", unique=True)
    _table(
        "payment_reconciliation",
        ("id",),
        _id("id"),
        *_text("provider"),
        *_count("since", "until"),
        sa.Column("differences", sa.Integer(), nullable=False),
        *_text("report"),
        *_count("at"),
        differences="differences >= 0",
    )
    _index("ix_payment_reconciliation_provider_at", "payment_reconciliation", "provider", "at")
    _table(
        "bank_statement",
        ("sha256",),
        *_text("sha256", "name", "account"),
        *(sa.Column(name, sa.Integer(), nullable=False) for name in ("entries", "new_entries")),
        *_count("imported_at"),
    )


def downgrade() -> None:
    for table in reversed(TABLES):
        op.drop_table(table)
