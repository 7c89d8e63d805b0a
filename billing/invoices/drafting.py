"""Drafts: what a tenant's invoice of a period would say now. Drafting again replaces the draft."""

from __future__ import annotations

from collections.abc import Mapping
from uuid import UUID

import msgspec
from sqlalchemy import delete
from sqlalchemy.ext.asyncio import AsyncSession

from billing.accounts.balances import CurrencyMismatch
from billing.events.rollups import HOUR
from billing.invoices.advice import advice
from billing.invoices.balance_returns import Return
from billing.invoices.composing import compose
from billing.invoices.document import Document
from billing.invoices.errors import WrongState
from billing.invoices.funding import standing
from billing.invoices.notices import DRAFTED, notice
from billing.invoices.parties import Buyer
from billing.invoices.party_store import lock_documents, read_buyer, read_seller
from billing.invoices.posting import write_to_outbox
from billing.invoices.records import InvoiceRecord, of_period, write_draft
from billing.invoices.savings import CacheHour, cache_use, savings
from billing.prices import PriceCatalog, PriceVersion
from billing.rating.lines import RatedLine
from billing.rating.period import rated_lines
from billing.tables.invoices import invoice, invoice_line
from billing.usage import check_period, period_bounds
from storage.database.base import new_id
from storage.database.database import Database


class Rated(msgspec.Struct, frozen=True):
    """A period's lines, with the price versions that they name, and what it did with the prompt cache."""

    lines: list[RatedLine]
    versions: dict[int, PriceVersion]
    cache: list[CacheHour]


class ComposedInvoice(msgspec.Struct, frozen=True):
    """An invoice as things stand, and what finalizing it gives back to the balance."""

    document: Document | None
    back: Return = Return()


async def rate(database: Database, book: PriceCatalog, tenant_id: UUID, period: str) -> Rated:
    """What a tenant owes for a period, exactly. Raises InvalidPeriod, CostMismatch, DatabaseUnavailable."""
    lines = await rated_lines(database, book, tenant_id, check_period(period))
    numbers = {line.price_version for line in lines if line.price_version is not None}
    versions = {number: await book.version(number) for number in numbers}
    return Rated(lines, versions, await cache_use(database, tenant_id, period))


async def draft(
    database: Database,
    book: PriceCatalog,
    tenant_id: UUID,
    period: str,
    projects: Mapping[UUID, str] | None = None,
    *,
    write: bool = True,
) -> tuple[InvoiceRecord | None, Document | None]:
    """Make the tenant's draft of a period, or replace it; `projects` are names for those that the lines are of.

    Without `write` the document alone is returned, and nothing changes. Both are None where there is nothing to bill;
    a draft that was there is gone then. Raises InvalidPeriod, NoProfile, InvalidParty, WrongState if the invoice is
    finalized, CurrencyMismatch, CostMismatch, DatabaseUnavailable.
    """
    rated = await rate(database, book, tenant_id, period)
    if not write:
        async with database.reading() as session:
            buyer = await read_buyer(session, tenant_id)
            _check_draft(await of_period(session, tenant_id, period))
            return None, (
                await compose_invoice(session, buyer, tenant_id, period, rated=rated, projects=projects or {})
            ).document
    async with database.transaction() as session:
        buyer = await lock_documents(database, session, tenant_id)
        before = await of_period(session, tenant_id, period)
        _check_draft(before)
        written = await compose_invoice(session, buyer, tenant_id, period, rated=rated, projects=projects or {})
        document = written.document
        if document is None:
            if before is not None:
                await session.execute(delete(invoice_line).where(invoice_line.c.invoice_id == before.id))
                await session.execute(delete(invoice).where(invoice.c.id == before.id))
            return None, None
        await write_draft(database, session, before.id if before else new_id(), document)
        record = await of_period(session, tenant_id, period)
        if record is not None:
            await write_to_outbox(database, session, DRAFTED, tenant_id, notice(record))
        return record, document


async def compose_invoice(
    session: AsyncSession,
    buyer: Buyer,
    tenant_id: UUID,
    period: str,
    *,
    rated: Rated,
    projects: Mapping[UUID, str],
) -> ComposedInvoice:
    """What the invoice says as things stand in this transaction, and what finalizing it gives back.

    There is no document where there is nothing to bill: no line, not even one for what earlier roundings left, which
    are carried on for as long as they come to less than a minor unit.
    """
    seller = await read_seller(session, buyer.seller)
    used = sum(line.exact_pico for line in rated.lines if line.kind == "usage")
    charges = sum(line.exact_pico for line in rated.lines) - used
    stands = await standing(session, tenant_id, period, used, charges)
    currency = stands.currency or seller.currency
    for version in rated.versions.values():
        if version.currency != currency:
            raise CurrencyMismatch(version.currency, currency)
    if not rated.lines and not stands.carry:
        return ComposedInvoice(None)
    start, end = period_bounds(period)
    saved = savings(rated.lines, rated.versions, rated.cache, (end - start) // HOUR - 1, projects)
    saved = msgspec.structs.replace(saved, advice=advice(saved.classes, currency))
    document = compose(
        seller,
        buyer,
        tenant_id,
        period,
        currency=currency,
        rated=rated.lines,
        funding=stands,
        savings=saved,
        projects=projects,
    )
    return ComposedInvoice(document, stands.back) if document.lines else ComposedInvoice(None)


def _check_draft(record: InvoiceRecord | None) -> None:
    if record is not None and record.state != "draft":
        instead = "correct it by a credit note, or void it if nothing of it is paid"
        raise WrongState(record.name, record.state, "draft", instead)
