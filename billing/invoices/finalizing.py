"""From draft to document: the number, the parties' copies, the hash and the books, in one transaction."""

from __future__ import annotations

from datetime import date, timedelta
from uuid import UUID

import msgspec
from sqlalchemy import or_, select, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncSession

from billing.integrity.row_seals import seal_rows
from billing.invoices.balance_returns import give_back
from billing.invoices.document import Document, canonical, project_names, sha256
from billing.invoices.drafting import compose_invoice, rate
from billing.invoices.errors import DraftOutdated, NumberRefused, PeriodNotClosed, UnknownInvoice
from billing.invoices.notices import CREDITED, notice, topic_of
from billing.invoices.parties import Seller
from billing.invoices.party_store import lock_documents
from billing.invoices.posting import entries_of, post, write_to_outbox
from billing.invoices.records import InvoiceRecord, columns_of, locked, of_period, read_document
from billing.invoices.states import InvoiceState
from billing.prices import PriceCatalog
from billing.tables.invoices import invoice, number_series
from billing.tables.money import rollup_hour
from billing.tables.periods import billing_period
from billing.tables.rating import storage_event
from billing.usage import METERS
from storage.database.base import from_instant
from storage.database.database import Database, transaction


class NextNumber(msgspec.Struct, frozen=True):
    """The next number of a series, locked, and the hash of the document before it (empty for the first)."""

    seller: str
    series: str
    year: int
    n: int
    number: str
    issued: str
    previous: str


async def take(database: Database, session: AsyncSession, seller: Seller, series: str, issued: date) -> NextNumber:
    """Lock the series until the transaction ends, and say what its next number is.

    Raises NumberRefused if the date is before that of the last document.
    """
    key = (number_series.c.seller == seller.id) & (number_series.c.series == series)
    start = {"seller": seller.id, "series": series, "year": 0, "next": 1, "issued": "", "head": ""}
    await session.execute(database.insert(number_series).values(start).on_conflict_do_nothing())
    row = (await session.execute(database.locked(select(number_series).where(key)))).one()
    if issued.isoformat() < row.issued:
        raise NumberRefused(
            f"the issue date {issued} is before {row.issued}, that of the last document of series {series}"
        )
    year = issued.year if "{year}" in seller.number_format else row.year
    n = row.next if row.year == year or row.next == 1 else 1
    number = seller.number_format.format(series=series, year=year, n=n)
    return NextNumber(seller.id, series, year, n, number, issued.isoformat(), row.head)


async def use(session: AsyncSession, taken: NextNumber, digest: str) -> None:
    """The number was used, by a document with this hash: the series goes on."""
    key = (number_series.c.seller == taken.seller) & (number_series.c.series == taken.series)
    values = {"year": taken.year, "next": taken.n + 1, "issued": taken.issued, "head": digest}
    await session.execute(update(number_series).where(key).values(values))


async def finalize(
    database: Database,
    book: PriceCatalog,
    tenant_id: UUID,
    period: str,
    issued: date | None = None,
    *,
    write: bool = True,
) -> InvoiceRecord:
    """Finalize the draft of a period, issued today or on an earlier day. One that is finalized already stays as it is.
    Without `write` nothing changes, and the number is the one that it would get now.

    Raises UnknownInvoice if there is no draft, PeriodNotClosed, DraftOutdated if it does not say any more what the
    books say, NumberRefused for the day, DatabaseUnavailable; then nothing is written and no number is taken.
    """
    rated = await rate(database, book, tenant_id, period)
    async with transaction(database, write=write) as session:
        buyer = await lock_documents(database, session, tenant_id)
        record = await of_period(session, tenant_id, period)
        if record is None:
            raise UnknownInvoice(
                f"there is no draft of {period}: `turnpike invoices draft --tenant NAME --period {period}`"
            )
        if record.state != "draft":
            return record
        await _check_order(session, tenant_id, period)
        draft = await read_document(session, record.id)
        now = await compose_invoice(session, buyer, tenant_id, period, rated=rated, projects=project_names(draft))
        if now.document != draft:
            raise DraftOutdated(f"the books have changed since {record.name} was made: draft it again and look at it")
        if draft.service_until >= (issued or await today(database, session)).isoformat():
            raise NumberRefused(f"the issue date is not after the period's last day, {draft.service_until}")
        sealed = await seal(database, session, record, draft, issued)
        await give_back(database, session, sealed, now.back)
        return sealed


async def seal(
    database: Database, session: AsyncSession, record: InvoiceRecord, draft: Document, issued: date | None
) -> InvoiceRecord:
    """Number and hash a draft that the transaction holds, and post it. Raises NumberRefused."""
    now = await today(database, session)
    day = issued or now
    if day > now:
        raise NumberRefused(f"the issue date {day} has not come yet")
    taken = await take(database, session, draft.seller, draft.series, day)
    days = draft.buyer.payment_days
    document = msgspec.structs.replace(
        draft,
        number=taken.number,
        issued=taken.issued,
        due=(day + timedelta(days=days)).isoformat() if draft.kind == "invoice" else "",
        previous=taken.previous,
    )
    content = canonical(document)
    digest = sha256(content)
    state: InvoiceState = "paid" if document.kind == "invoice" and document.payable == 0 else "finalized"
    values = columns_of(document) | {
        "state": state,
        "year": taken.year,
        "n": taken.n,
        "content": content,
        "sha256": digest,
        "finalized_at": database.clock,
    }
    try:
        await session.execute(update(invoice).where(invoice.c.id == record.id).values(values))
    except IntegrityError as error:
        raise NumberRefused(f"{taken.number} is the number of another document of {taken.seller}") from error
    await seal_rows(session, invoice, invoice.c.tenant_id == record.tenant_id, invoice.c.id == record.id)
    await use(session, taken, digest)
    sealed = await locked(database, session, record.id)
    if sealed.kind == "invoice":
        await post(database, session, sealed, "finalize", entries_of(sealed), period=sealed.period)
        await write_to_outbox(database, session, topic_of("finalized"), sealed.tenant_id, notice(sealed))
        if sealed.state == "paid":
            await write_to_outbox(database, session, topic_of("paid"), sealed.tenant_id, notice(sealed))
    else:
        await write_to_outbox(database, session, CREDITED, sealed.tenant_id, notice(sealed))
    return sealed


async def today(database: Database, session: AsyncSession) -> date:
    """The day in UTC by the database's clock."""
    return from_instant((await session.execute(select(database.clock))).scalar_one()).date()


async def _check_order(session: AsyncSession, tenant_id: UUID, period: str) -> None:
    """A period is invoiced once it is closed, and after the tenant's earlier ones."""
    state = await session.scalar(select(billing_period.c.state).where(billing_period.c.period == period))
    if state != "closed":
        raise PeriodNotClosed(f"{period} is not closed: `turnpike periods list`")
    counting = (invoice.c.kind == "invoice") & invoice.c.state.not_in(("draft", "void"))
    invoiced = select(invoice.c.period).where(invoice.c.tenant_id == tenant_id, counting)
    units = or_(*(rollup_hour.c[meter] != 0 for meter in METERS))  # without any there is nothing to invoice
    for table, something in ((rollup_hour, units), (storage_event, storage_event.c.cost_pico > 0)):
        of = table.c
        to_bill = select(of.period).where(of.tenant_id == tenant_id, of.period < period, something)
        earlier = await session.scalar(to_bill.where(of.period.not_in(invoiced)).order_by(of.period).limit(1))
        if earlier is not None:
            raise PeriodNotClosed(f"{earlier} was used too and is not invoiced yet: it comes first")
