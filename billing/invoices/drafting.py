"""Drafts: what a tenant's invoice of a period would say now. Drafting again replaces the draft."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date
from functools import partial
from uuid import UUID

import msgspec
from sqlalchemy.ext.asyncio import AsyncSession

from billing.accounts.balances import CurrencyMismatch
from billing.calendar import check_period, period_bounds
from billing.events.rollups import HOUR
from billing.invoices.accounting.balance_returns import BalanceReturn
from billing.invoices.accounting.deferral import deferred_by_invoice, with_deferral
from billing.invoices.accounting.funding import invoice_funding
from billing.invoices.accounting.prepayments import pay_from_credit
from billing.invoices.composing import compose
from billing.invoices.document import Document
from billing.invoices.errors import WrongState
from billing.invoices.parties.dated import DatedParty, InvoiceParties
from billing.invoices.parties.parties import Buyer
from billing.invoices.parties.store import lock_documents, read_buyer, read_seller, today
from billing.invoices.recording import DRAFTED, record_document, send_notice
from billing.invoices.registers.exchange_rates import local_tax
from billing.invoices.registers.vat_checks import read_vat_checks, refuted_ids
from billing.invoices.savings import CacheHour, cache_advice, read_cache_hours, savings_statement
from billing.invoices.store import InvoiceRecord, delete_draft, find_invoice, lock_invoice, write_draft
from billing.money import round_half_up
from billing.prices import PriceCatalog, PriceVersion
from billing.rating.applying import total_before_minimum
from billing.rating.commitment_accounts import read_account
from billing.rating.commitments import commitment_lines
from billing.rating.lines import RatedLine
from billing.rating.rated_lines import rated_lines
from billing.rating.schedules import read_schedule
from storage.database.base import from_instant, new_id
from storage.database.database import Database


class Rated(msgspec.Struct, frozen=True):
    """A period's lines without what a commitment asks for and pays, the price versions that they name, and the hours in
    which the prompt cache was used."""

    lines: list[RatedLine]
    versions: dict[int, PriceVersion]
    cache: list[CacheHour]


class ComposedInvoice(msgspec.Struct, frozen=True):
    """An invoice as it would be now, and what finalizing it returns to the balance. No document: nothing to bill."""

    document: Document | None
    balance_return: BalanceReturn = BalanceReturn()
    draws: Mapping[UUID, int] = {}
    """What finalizing it takes from grants, in pico-units."""


async def rate(database: Database, catalog: PriceCatalog, tenant_id: UUID, period: str) -> Rated:
    """A tenant's exact lines of a period. Raises InvalidPeriod, CostMismatch, DatabaseUnavailable."""
    lines = await rated_lines(database, catalog, tenant_id, check_period(period))
    numbers = {line.price_version for line in lines if line.price_version is not None}
    versions = {number: await catalog.version(number) for number in numbers}
    return Rated(lines, versions, await read_cache_hours(database, tenant_id, period))


async def draft(
    database: Database,
    catalog: PriceCatalog,
    tenant_id: UUID,
    period: str,
    projects: Mapping[UUID, str] | None = None,
    *,
    write: bool = True,
) -> tuple[InvoiceRecord | None, Document | None]:
    """Make or replace the tenant's draft of a period; return it and its document.

    Both are None if there is nothing to bill; an earlier draft is then deleted. `projects` are names by id. Without
    `write` (a dry run) only the document is returned.

    Raises InvalidPeriod, NoProfile, InvalidParty, WrongState if the invoice is finalized, CurrencyMismatch,
    CostMismatch, DatabaseUnavailable.
    """
    rated, projects = await rate(database, catalog, tenant_id, period), projects or {}
    if not write:
        async with database.reading() as session:
            buyer = await read_buyer(database, session, tenant_id)
            _check_is_draft(await find_invoice(session, tenant_id, period))
            composed = await compose_invoice(
                database, session, buyer, tenant_id, period, rated=rated, projects=projects
            )
            return None, composed.document
    async with database.transaction() as session:
        buyer = await lock_documents(database, session, tenant_id)
        before = await find_invoice(session, tenant_id, period)
        _check_is_draft(before)
        composed = await compose_invoice(database, session, buyer, tenant_id, period, rated=rated, projects=projects)
        if composed.document is None:
            if before is not None:
                await delete_draft(session, tenant_id, before.id)
                await record_document(session, "invoice.draft_deleted", before, None)
            return None, None
        invoice_id = before.id if before else new_id()
        await write_draft(database, session, invoice_id, composed.document)
        record = await lock_invoice(database, session, tenant_id, invoice_id)
        await send_notice(database, session, DRAFTED, record)
        await record_document(session, "invoice.drafted", before, record)
        return record, composed.document


async def compose_invoice(
    database: Database,
    session: AsyncSession,
    buyer: DatedParty[Buyer],
    tenant_id: UUID,
    period: str,
    *,
    rated: Rated,
    projects: Mapping[UUID, str],
    issued: date | None = None,
) -> ComposedInvoice:
    """The invoice as it would be if it were issued on a day (None: today), and what finalizing it returns to the
    balance, in this transaction.

    There is no document without a line. A carry of less than a minor unit alone makes no line. Who sold in the period
    is the seller.
    """
    start, end = period_bounds(period)
    event = from_instant(end - 1).date().isoformat()
    seller = await read_seller(database, session, buyer.on(event).seller)
    day = issued or await today(database, session)
    checks = await read_vat_checks(session, tenant_id)
    parties = InvoiceParties(seller, buyer, event, day.isoformat(), partial(refuted_ids, checks))
    committed = await _commitment_lines(session, tenant_id, period, rated.lines)
    lines = rated.lines + committed
    used = sum(line.exact_pico for line in lines if line.kind == "usage")
    charges = sum(line.exact_pico for line in lines) - used
    funding = await invoice_funding(session, tenant_id, period, used, charges, now=await database.now_in(session))
    currency = funding.currency or seller.party.currency
    for version in rated.versions.values():
        if version.currency != currency:
            raise CurrencyMismatch(version.currency, currency)
    if not lines and not funding.carry:
        return ComposedInvoice(None)
    savings = savings_statement(lines, rated.versions, rated.cache, (end - start) // HOUR - 1, projects)
    savings = msgspec.structs.replace(savings, advice=cache_advice(savings.classes, currency))
    document = compose(
        parties,
        tenant_id,
        period,
        currency=currency,
        rated=lines,
        funding=funding,
        savings=savings,
        projects=projects,
    )
    if not document.lines:
        return ComposedInvoice(None)
    paid = pay_from_credit(
        document, funding.advances, funding.sources, free=funding.free, reserved=_asked_in_advance(document)
    )
    local = await local_tax(session, paid.document, event) or msgspec.UNSET
    paid = msgspec.structs.replace(paid, document=msgspec.structs.replace(paid.document, local_tax=local))
    document = with_deferral(paid.document, await deferred_by_invoice(session, tenant_id, period, committed))
    return ComposedInvoice(document, funding.balance_return, paid.draws)


def _asked_in_advance(document: Document) -> int:
    """What a document asks for a commitment, with its VAT, in minor units: it is paid with money, not from credit."""
    asked = (line for line in document.lines if line.kind == "commitment" and line.net > 0)
    return sum(line.net + round_half_up(line.net * line.rate, 10_000) for line in asked)


async def _commitment_lines(
    session: AsyncSession, tenant_id: UUID, period: str, lines: list[RatedLine]
) -> list[RatedLine]:
    """What the commitment of a period asks for and pays, by the invoices that were issued until now."""
    schedule = await read_schedule(session, tenant_id)
    commitment = schedule.commitment_of(period)
    if commitment is None:
        return []
    account = await read_account(session, tenant_id, schedule, period)
    return commitment_lines(commitment, total_before_minimum(lines), period, account)


def _check_is_draft(record: InvoiceRecord | None) -> None:
    if record is not None and record.state != "draft":
        instead = "write a credit note, or void it if nothing of it is paid"
        raise WrongState(record.name, record.state, "draft", instead)
