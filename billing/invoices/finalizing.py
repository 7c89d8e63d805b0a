"""From draft to issued document: the number, the hash and the ledger entries, in one transaction."""

from __future__ import annotations

from datetime import date, timedelta
from functools import partial
from uuid import UUID

import msgspec
from sqlalchemy import or_, select, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncSession

from billing.integrity.canonical_json import canonical, sha256
from billing.integrity.row_seals import seal_rows
from billing.invoices.accounting.balance_returns import write_return
from billing.invoices.accounting.draws import write_draws
from billing.invoices.accounting.posting import entries_of, post
from billing.invoices.accounting.prepayments import without_credit
from billing.invoices.document import DayRoot, Document, project_names
from billing.invoices.drafting import compose_invoice, rate
from billing.invoices.electronic.store import write_einvoices
from billing.invoices.errors import DraftOutdated, NumberRefused, PeriodNotClosed, UnknownInvoice
from billing.invoices.parties.parties import Seller
from billing.invoices.parties.store import lock_documents, today
from billing.invoices.recording import CREDITED, FINALIZED, PAID, record_document, send_notice
from billing.invoices.store import (
    InvoiceRecord,
    InvoiceState,
    columns_of,
    find_invoice,
    lock_invoice,
    read_document,
    update_invoice,
    write_draft,
)
from billing.prices import PriceCatalog
from billing.rating.commitment_accounts import find_unasked
from billing.rating.hourly_meters import HOURLY_METERS
from billing.rating.schedules import read_schedule
from billing.receipts.day_files import close_days, closed_days
from billing.tables.books import billing_period
from billing.tables.invoices import ISSUED, invoice, number_series
from billing.tables.money import rollup_hour
from billing.transaction.opening import money_transaction_in
from billing.usage import METERS
from storage.database.database import Database


class NextNumber(msgspec.Struct, frozen=True):
    """The next number of a series, locked. `previous` is the hash of the document before it, empty for the first."""

    seller: str
    series: str
    year: int
    n: int
    number: str
    issued: str
    previous: str


async def lock_next_number(
    database: Database, session: AsyncSession, seller: Seller, series: str, issued: date
) -> NextNumber:
    """The next number of a series, which is locked until the transaction ends.

    Raises NumberRefused if the issue date is before that of the last document.
    """
    key = (number_series.c.seller == seller.id) & (number_series.c.series == series)
    start = {"seller": seller.id, "series": series, "year": 0, "next": 1, "issued": "", "head": ""}
    await session.execute(database.insert(number_series).values(start).on_conflict_do_nothing())
    row = (await session.execute(database.locked(select(number_series).where(key)))).one()
    if issued.isoformat() < row.issued:
        raise NumberRefused(
            f"the issue date {issued} is before {row.issued}, the issue date of the last document of series {series}"
        )
    year = issued.year if "{year}" in seller.number_format else row.year
    n = row.next if row.year == year or row.next == 1 else 1
    number = seller.number_format.format(series=series, year=year, n=n)
    return NextNumber(seller.id, series, year, n, number, issued.isoformat(), row.head)


async def use_number(session: AsyncSession, number: NextNumber, digest: str) -> None:
    """Advance the series after a document with this hash got the number."""
    key = (number_series.c.seller == number.seller) & (number_series.c.series == number.series)
    values = {"year": number.year, "next": number.n + 1, "issued": number.issued, "head": digest}
    await session.execute(update(number_series).where(key).values(values))


async def finalize(
    database: Database,
    catalog: PriceCatalog,
    tenant_id: UUID,
    period: str,
    issued: date | None = None,
    *,
    write: bool = True,
) -> InvoiceRecord:
    """Finalize the draft of a period and return the invoice. One that is finalized already stays as it is.

    `issued` is today by default, and may be earlier. Without `write` nothing changes, and the number returned is the
    one that the invoice would get now. If it raises, nothing is written and no number is used.

    Raises UnknownInvoice if there is no draft, PeriodNotClosed, DraftOutdated if the draft differs from what would be
    drafted now, NumberRefused for the issue date, EventMissing, NotExpressible if the seller lacks what the buyer's
    e-invoices need, DatabaseUnavailable.
    """
    rated = await rate(database, catalog, tenant_id, period)
    if write:
        await close_days(database, tenant_id, period)
    async with database.transaction(write=write) as session:
        buyer = await lock_documents(database, session, tenant_id)
        record = await find_invoice(session, tenant_id, period)
        if record is None:
            raise UnknownInvoice(
                f"there is no draft of {period}; `turnpike invoices draft --tenant NAME --period {period}` makes it"
            )
        if record.state != "draft":
            return record
        await _check_order(session, tenant_id, period)
        draft = await read_document(session, tenant_id, record.id)
        compose_on = partial(
            compose_invoice, database, session, buyer, tenant_id, period, rated=rated, projects=project_names(draft)
        )
        await (await money_transaction_in(database, session)).lock([tenant_id])  # nobody uses the credit meanwhile
        current = await compose_on()
        if current.document is None or without_credit(current.document) != without_credit(draft):
            raise DraftOutdated(f"{record.name} differs from what would be drafted now; draft it again and look at it")
        if issued is not None:  # names and addresses are those of that day
            current = await compose_on(issued=issued)
        if current.document not in (None, draft):
            draft = current.document
            await write_draft(database, session, record.id, draft)
        if draft.service_until >= (issued or await today(database, session)).isoformat():
            raise NumberRefused(f"the issue date is not after the period's last day, {draft.service_until}")
        draft = msgspec.structs.replace(draft, receipts=await _day_roots(session, tenant_id, period))
        invoiced = await issue(database, session, record, draft, issued)
        await write_return(database, session, invoiced, current.balance_return)
        await write_draws(database, session, invoiced, current.draws)
        await record_document(session, "invoice.finalized", record, invoiced)
        return invoiced


async def _day_roots(session: AsyncSession, tenant_id: UUID, period: str) -> list[DayRoot] | msgspec.UnsetType:
    """The roots of the tenant's days, which are all closed; UNSET for a period without usage."""
    days = await closed_days(session, tenant_id, period)
    roots = [DayRoot(day=d.day, events=d.events, cost=str(d.cost_pico), root=d.root.hex()) for d in days]
    return roots or msgspec.UNSET


async def issue(
    database: Database, session: AsyncSession, record: InvoiceRecord, draft: Document, issued: date | None
) -> InvoiceRecord:
    """Number and hash a draft, make it immutable, write it as XML and post it. Raises NumberRefused, NotExpressible."""
    now = await today(database, session)
    day = issued or now
    if day > now:
        raise NumberRefused(f"the issue date {day} is in the future")
    number = await lock_next_number(database, session, draft.seller, draft.series, day)
    days = draft.buyer.payment_days
    document = msgspec.structs.replace(
        draft,
        number=number.number,
        issued=number.issued,
        due=(day + timedelta(days=days)).isoformat() if draft.kind == "invoice" else "",
        previous=number.previous,
    )
    content = canonical(document)
    digest = sha256(content)
    state: InvoiceState = "paid" if document.kind == "invoice" and document.payable == 0 else "finalized"
    values = columns_of(document) | {
        "state": state,
        "year": number.year,
        "n": number.n,
        "content": content,
        "sha256": digest,
        "finalized_at": database.clock,
    }
    try:
        await update_invoice(session, record, values)
    except IntegrityError as error:
        raise NumberRefused(f"another document of {number.seller} has the number {number.number}") from error
    await seal_rows(session, invoice, invoice.c.tenant_id == record.tenant_id, invoice.c.id == record.id)
    await use_number(session, number, digest)
    issued_record = await lock_invoice(database, session, record.tenant_id, record.id)
    await write_einvoices(database, session, issued_record, document)
    if issued_record.kind == "credit_note":
        await send_notice(database, session, CREDITED, issued_record)
        return issued_record
    entries = entries_of(issued_record)
    await post(database, session, issued_record, "finalize", entries, period=issued_record.period)
    for topic in (FINALIZED, PAID) if state == "paid" else (FINALIZED,):
        await send_notice(database, session, topic, issued_record)
    return issued_record


async def _check_order(session: AsyncSession, tenant_id: UUID, period: str) -> None:
    """Raise PeriodNotClosed unless the period is closed and the tenant's earlier periods are invoiced."""
    state = await session.scalar(select(billing_period.c.state).where(billing_period.c.period == period))
    if state != "closed":
        raise PeriodNotClosed(f"{period} is not closed; `turnpike periods list` shows why")
    invoiced = select(invoice.c.period).where(invoice.c.tenant_id == tenant_id, ISSUED)
    has_units = or_(*(rollup_hour.c[meter] != 0 for meter in METERS))
    hourly = [(meter.events, meter.events.c.cost_pico > 0) for meter in HOURLY_METERS]
    for table, is_billable in ((rollup_hour, has_units), *hourly):
        row = table.c
        to_bill = select(row.period).where(row.tenant_id == tenant_id, row.period < period, is_billable)
        earlier = await session.scalar(to_bill.where(row.period.not_in(invoiced)).order_by(row.period).limit(1))
        if earlier is not None:
            raise PeriodNotClosed(f"{earlier} has usage that is not invoiced yet; invoice it first")
    schedule = await read_schedule(session, tenant_id)
    unasked = await find_unasked(session, tenant_id, schedule, period)
    if unasked is not None:
        raise PeriodNotClosed(f"the commitment of {unasked} is not invoiced yet; invoice it first")
