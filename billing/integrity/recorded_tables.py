"""Tables of money whose every change is in the audit log, with the digest of the row (`audit_log.recorded_rows`).

What never changes is sealed instead (`billing.integrity.row_seals`), and usage is in a chain of its own.
"""

from __future__ import annotations

from sqlalchemy import Table

from audit_log.recorded_rows import RecordedTable
from billing.tables.books import pending_change
from billing.tables.invoices import billing_profile, export_job, legal_entity
from billing.tables.money import balance, budget
from billing.tables.payments import (
    auto_top_up,
    cash_receipt,
    finance_task,
    payment_customer,
    payment_dispute,
    payment_refund,
    payment_reminder,
    pushed_document,
    reminder_policy,
    top_up,
)
from billing.tables.receipts import receipt_policy

_WRITTEN_LAST = "when it was written last: nothing reads it, and the entry says when"
_BY_SUMS = "compared with the ledger, events, holds and budgets (`billing.verification.balances`)"
_OF_WORK = "how the work goes on: it changes until the file is there, which the entry says"

SELLERS = RecordedTable(legal_entity, "seller", (("id", "profile"),), {"updated_at": _WRITTEN_LAST})
BUYERS = RecordedTable(
    billing_profile, "billing_profile", (("tenant_id", "seller", "profile"),), {"updated_at": _WRITTEN_LAST}
)
BUDGETS = RecordedTable(
    budget,
    "budget",
    (("budget_id", "tenant_id", "scope", "subject", "span", "limit_pico", "action", "thresholds", "removed_at"),),
    {},
)
CREDIT_LINES = RecordedTable(
    balance,
    "balance",
    (("tenant_id", "credit_line"),),
    dict.fromkeys(
        ("currency", "credit", "debit", "held", "overdraft", "promo", "receivable", "holds", "budgets", "restricted"),
        _BY_SUMS,
    ),
    recorded=balance.c.credit_line != 0,
)
CHANGES = RecordedTable(
    pending_change,
    "change",
    (
        (
            *("id", "kind", "arguments", "summary", "state", "tenant_id", "author", "author_via", "author_person"),
            *("reason", "created_at", "sha256", "decider", "decider_via", "decision_reason", "decided_at"),
        ),
    ),
    {"result": "words about what was made, which has an entry of its own"},
)
EXPORTS = RecordedTable(
    export_job,
    "export",
    (("id", "tenant_id", "key_id", "dataset", "period", "format", "created_at", "manifest"),),
    dict.fromkeys(("state", "rows", "attempts", "error", "started_at", "finished_at", "leased_until"), _OF_WORK),
)
RECEIPT_POLICIES = RecordedTable(
    receipt_policy,
    "receipt_policy",
    (("project_id", "tenant_id", "always"),),
    {"changed_at": _WRITTEN_LAST},
)


def _whole(table: Table) -> RecordedTable:
    """A table of payments, with all columns but the instant of the last change."""
    columns = tuple(name for name in table.c.keys() if name != "updated_at")  # noqa: SIM118  # no dict
    unrecorded = {"updated_at": _WRITTEN_LAST} if "updated_at" in table.c else {}
    return RecordedTable(table, str(table.name), (columns,), unrecorded)


PAYMENT_CUSTOMERS = _whole(payment_customer)
AUTO_TOP_UPS = _whole(auto_top_up)
TOP_UPS = _whole(top_up)
PUSHED_DOCUMENTS = _whole(pushed_document)
CASH_RECEIPTS = _whole(cash_receipt)
PAYMENT_REFUNDS = _whole(payment_refund)
DISPUTES = _whole(payment_dispute)
FINANCE_TASKS = _whole(finance_task)
PAYMENT_REMINDERS = _whole(payment_reminder)
REMINDER_POLICIES = _whole(reminder_policy)

RECORDED_TABLES = (
    *(SELLERS, BUYERS, BUDGETS, CREDIT_LINES, CHANGES, EXPORTS, RECEIPT_POLICIES),
    *(PAYMENT_CUSTOMERS, AUTO_TOP_UPS, TOP_UPS, PUSHED_DOCUMENTS, CASH_RECEIPTS, PAYMENT_REFUNDS, DISPUTES),
    *(FINANCE_TASKS, PAYMENT_REMINDERS, REMINDER_POLICIES),
)
"""Every one of them. Whoever changes a row of one gives its digest to `record_change`."""
