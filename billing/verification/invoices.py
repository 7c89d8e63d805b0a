"""Checks of invoices: hashes, numbers, lines against their events, settlements and the ledger."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any
from uuid import UUID

import msgspec
from sqlalchemy import func, select

from billing.accounts.taken_back import read_taken_back
from billing.integrity.canonical_json import canonical, sha256
from billing.invoices.accounting.losses import loss_entries
from billing.invoices.accounting.posting import entries_of
from billing.invoices.document import Document
from billing.invoices.store import InvoiceRecord, columns_of, deduction_rows_of, rows_of
from billing.ledger.entries import OF_EVENTS
from billing.money import format_pico, minor_unit
from billing.tables.invoices import (
    ISSUED,
    advance_deduction,
    invoice,
    invoice_line,
    invoice_payment,
    invoice_usage,
    number_series,
)
from billing.tables.money import grant, ledger_entry, ledger_txn
from billing.verification.findings import AuditContext
from billing.verification.ledger import costs_by_period

_ALTERED = "a document was altered"
_CHAIN = "a document does not follow the one before it"
_NUMBERS = "a number is missing or there twice"
_LINES = "an invoice is not the sum of its events"
_SETTLED = "an invoice is not what was paid and credited"
_TAKEN_BACK = "more of an invoice was taken back than it charged"
_POSTED = "the ledger is not what the invoices say"


async def check_invoices(audit: AuditContext) -> None:
    """All documents of all sellers: hashes, numbers, payments and credit notes, and ledger entries."""
    # all tenants: a seller's series has documents of many
    rows = (await audit.session.execute(select(invoice).order_by(*(invoice.c[n] for n in _ORDER)))).all()
    sealed = [row for row in rows if row.state != "draft"]
    for row in sealed:
        await _document(audit, row)
    await _series(audit, sealed)
    await _settlements(audit, sealed)
    await _ledger(audit, sealed)
    await _returns(audit, sealed)
    await _taken_back(audit, sealed)


_ORDER = ("seller", "series", "year", "n")


async def _document(audit: AuditContext, row: Any) -> None:
    """The content has its hash, and the row and its lines agree with the content."""
    if sha256(row.content) != row.sha256:
        audit.report(_ALTERED, row.id, f"{row.number}: its content has another hash")
    try:
        document = msgspec.json.decode(row.content, type=Document)
    except (msgspec.DecodeError, ValueError) as error:
        audit.report(_ALTERED, row.id, f"{row.number}: {error}")
        return
    if canonical(document) != row.content:
        audit.report(_ALTERED, row.id, f"{row.number}: its content is not canonical")
    for name, value in columns_of(document).items():
        if getattr(row, name) != value:
            detail = f"{row.number}: {name} is {getattr(row, name)}, the document says {value}"
            audit.report(_ALTERED, row.id, detail)
    lines = await audit.session.execute(
        select(invoice_line).where(invoice_line.c.invoice_id == row.id).order_by(invoice_line.c.n)
    )
    if [dict(line._mapping) for line in lines] != rows_of(row.id, document):
        audit.report(_ALTERED, row.id, f"{row.number}: its lines are not those of the document")
    deduction = advance_deduction.c  # all tenants: the document is of one
    of_row = select(advance_deduction).where(deduction.invoice_id == row.id).order_by(deduction.n)
    if [dict(one._mapping) for one in await audit.session.execute(of_row)] != deduction_rows_of(row.id, document):
        audit.report(_ALTERED, row.id, f"{row.number}: what it deducts of advances is not what the document says")


async def _series(audit: AuditContext, sealed: Sequence[Any]) -> None:
    """Each year of a series has the numbers 1 to n without a gap, and each document the hash of the one before."""
    heads: dict[tuple[str, str], tuple[int, int, str]] = {}
    dates: dict[tuple[str, str], str] = {}
    for row in sealed:
        key = (row.seller, row.series)
        year, n, head = heads.get(key, (row.year, 0, ""))
        wanted = n + 1 if row.year == year else 1
        if row.n != wanted:
            audit.report(_NUMBERS, row.id, f"{row.seller} {row.series}: {row.n} comes after {n}")
        previous = _field(row.content, "previous")
        if previous != head:
            audit.report(_CHAIN, row.id, f"{row.number} holds the hash {previous!r}, not {head!r}")
        heads[key] = (row.year, row.n, row.sha256)
        dates[key] = row.issued
    for row in await audit.session.execute(select(number_series)):
        key = (row.seller, row.series)
        year, n, head = heads.pop(key, (0, 0, ""))
        if (row.year, row.next, row.head, row.issued) != (year, n + 1, head, dates.get(key, "")):
            detail = f"{row.seller} {row.series}: the series is at {row.next}, its last document is {n}"
            audit.report(_NUMBERS, UUID(int=0), detail)
    for seller, series in heads:
        audit.report(_NUMBERS, UUID(int=0), f"{seller} {series}: the series is gone")


def _field(content: str, name: str) -> str:
    try:
        return str(msgspec.json.decode(content).get(name, ""))
    except (msgspec.DecodeError, AttributeError):
        return ""


async def check_invoiced(audit: AuditContext) -> None:
    """An invoice's usage is its period's events, in sum and for each line; its net and carry are its lines, exactly."""
    used = invoice_usage.c
    costs = await costs_by_period(audit)
    # all tenants: an audit checks the whole installation
    invoices = (await audit.session.execute(select(invoice).where(ISSUED, audit.within(invoice.c.period)))).all()
    for row in invoices:
        cost = costs.get((row.tenant_id, row.period), 0)
        if row.usage_pico != cost:
            detail = f"{row.number}: its usage is {row.usage_pico}, the events of {row.period} cost {cost}"
            audit.report(_LINES, row.id, detail)
        unit = minor_unit(row.currency)
        exact = row.usage_pico - row.promo_pico + row.charges_pico
        if row.net * unit + row.carry_out != exact + row.carry_in:
            audit.report(_LINES, row.id, f"{row.number}: net and carry are not its lines")
        sums = select(used.n, func.sum(used.units)).where(used.tenant_id == row.tenant_id, used.invoice_id == row.id)
        units = {n: int(total) for n, total in await audit.session.execute(sums.group_by(used.n))}
        lines = select(invoice_line.c.n, invoice_line.c.units).where(
            invoice_line.c.invoice_id == row.id, invoice_line.c.kind == "usage"
        )
        for n, billed in await audit.session.execute(lines):
            if billed != units.get(n, 0):
                detail = f"{row.number}, line {n}: {billed} units, its requests have {units.get(n, 0)}"
                audit.report(_LINES, row.id, detail)


async def _settlements(audit: AuditContext, sealed: Sequence[Any]) -> None:
    """The amounts paid and credited are the sums of payments and credit notes, each with its grant to the balance."""
    # all tenants: an audit checks the whole installation
    paid: dict[UUID, int] = defaultdict(int)
    credited: dict[UUID, int] = defaultdict(int)
    by_payments: dict[UUID, int] = defaultdict(int)
    by_notes: dict[UUID, int] = defaultdict(int)
    due: dict[UUID, tuple[int, str]] = {}
    for row in await audit.session.execute(select(invoice_payment)):
        paid[row.invoice_id] += row.amount
        by_payments[row.invoice_id] += row.usage_pico
        due[row.id] = (row.usage_pico, f"payment {row.reference!r}")
    for row in sealed:
        if row.corrects is not None:
            credited[row.corrects] += row.gross
            by_notes[row.corrects] += row.settled_pico
            due[row.id] = (row.settled_pico, f"credit note {row.number}")
    for row in sealed:
        if row.kind == "invoice" and not 0 <= row.settled_pico - by_payments[row.id] <= by_notes[row.id]:
            detail = f"{row.number}: {row.settled_pico} of its usage is settled, {by_payments[row.id]} by payments"
            audit.report(_SETTLED, row.id, detail)
        if not _is_possible_state(row):
            audit.report(
                _SETTLED, row.id, f"{row.number} is {row.state}, with {row.paid} paid, {row.credited} credited"
            )
        if row.kind != "credit_note" and (row.paid, row.credited) != (paid[row.id], credited[row.id]):
            detail = f"{row.number}: {row.paid} and {row.credited}, found {paid[row.id]} and {credited[row.id]}"
            audit.report(_SETTLED, row.id, detail)
    ids = select(grant.c.id, grant.c.amount_pico)
    granted = {identity: amount async for identity, amount in await audit.session.stream(ids) if identity in due}
    for identity, (amount, name) in due.items():
        if granted.get(identity, 0) != amount:
            detail = f"{name}: {amount} pico-units were to go to the balance; repeat the command to mend that"
            audit.report(_SETTLED, identity, detail)


def _is_possible_state(row: Any) -> bool:
    """Whether a document's state follows from what was paid and credited."""
    if row.kind == "credit_note":
        return bool(row.state == "finalized")
    if 0 < row.gross == row.credited:
        return bool(row.state == "credited")
    left, settled = row.payable - row.paid - row.credited, bool(row.paid or row.credited)
    possible = {"partially_paid"} if settled else {"void", "finalized"}
    return row.state in ({"paid"} if left <= 0 else {"uncollectible", *possible})


async def _returns(audit: AuditContext, sealed: Sequence[Any]) -> None:
    """A period's balance return is the one on its invoice, and there is none without an invoice."""
    entry, txn = ledger_entry.c, ledger_txn.c
    query = (
        select(entry.tenant_id, txn.period, txn.kind, func.sum(entry.amount_pico))
        .join(ledger_txn, txn.id == entry.txn_id)
        .where((txn.kind == "return") | (txn.kind.in_(OF_EVENTS) & (entry.credit == "charges")))
        .group_by(entry.tenant_id, txn.period, txn.kind)
    )
    posted: dict[tuple[UUID, str], int] = defaultdict(int)
    gave: set[tuple[UUID, str]] = set()
    for tenant, period, kind, amount in await audit.session.execute(query):
        posted[tenant, period] += int(amount) if kind == "return" else -int(amount)
        if kind == "return":
            gave.add((tenant, period))
    invoiced = {(row.tenant_id, row.period) for row in sealed if row.kind == "invoice"}
    for row in sealed:
        if row.kind != "invoice" or row.state == "void":
            continue
        found = posted[row.tenant_id, row.period]
        if row.returned_pico != found:
            detail = f"{row.number}: it gives back {row.returned_pico}, the ledger gave back {found}"
            audit.report(_POSTED, row.id, detail)
    for tenant, period in sorted(gave - invoiced):
        audit.report(_POSTED, tenant, f"{period}: {posted[tenant, period]} were given back without an invoice")


async def _taken_back(audit: AuditContext, sealed: Sequence[Any]) -> None:
    """Credit notes and corrections of usage together take back no more of an invoice than it charged."""
    for row in sealed:
        if row.kind != "invoice" or row.state == "void" or not row.credited:
            continue
        taken_back = await read_taken_back(audit.session, row.tenant_id, row.period)
        if taken_back is None or taken_back.allows():
            continue
        credited, corrected, charged = map(format_pico, (taken_back.credited, taken_back.corrected, taken_back.charged))
        detail = f"{row.number}: {credited} were credited and {corrected} corrected of {charged} {row.currency}"
        audit.report(_TAKEN_BACK, row.id, detail)


async def _ledger(audit: AuditContext, sealed: Sequence[Any]) -> None:
    """The ledger accounts of documents (tax, charges, credited, rounding_carry) are the sums of the documents."""
    wanted: dict[tuple[UUID, str], int] = defaultdict(int)
    advances = {row.id for row in sealed if row.kind == "advance"}
    for row in sealed:
        record = InvoiceRecord(*(getattr(row, name) for name in InvoiceRecord.__struct_fields__))
        unit = minor_unit(row.currency)
        if row.kind == "credit_note":
            wanted[row.tenant_id, "tax"] -= row.tax * unit
            if row.corrects not in advances:  # whose net goes from the credit itself
                wanted[row.tenant_id, "credited"] -= row.net * unit + row.deferred_pico
                wanted[row.tenant_id, "deferred"] += row.deferred_pico
        elif row.state != "void":
            for made in entries_of(record):
                wanted[row.tenant_id, made.debit] -= made.amount_pico
                wanted[row.tenant_id, made.credit] += made.amount_pico
            for made in await loss_entries(audit.session, record):
                wanted[row.tenant_id, made.debit] -= made.amount_pico
                wanted[row.tenant_id, made.credit] += made.amount_pico
    found: dict[tuple[UUID, str], int] = defaultdict(int)
    entry, txn = ledger_entry.c, ledger_txn.c
    query = (
        select(entry.tenant_id, entry.debit, entry.credit, func.sum(entry.amount_pico))
        .join(ledger_txn, txn.id == entry.txn_id)
        .where(txn.kind == "invoice")
        .group_by(entry.tenant_id, entry.debit, entry.credit)
    )
    for tenant, debit, credit, amount in await audit.session.execute(query):
        found[tenant, debit] -= int(amount)
        found[tenant, credit] += int(amount)
    for key in wanted.keys() | found.keys():
        tenant, account = key
        if account not in ("invoiced", "clearing") and wanted[key] != found[key]:  # payments move these too
            detail = f"{account}: the ledger has {found[key]}, documents say {wanted[key]}"
            audit.report(_POSTED, tenant, detail)
