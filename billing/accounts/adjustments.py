"""Adjustments: usage that is corrected afterwards, by a new event and never by an edit.

The new event names the event that it corrects, and has the units to add or to take off. Its price version and its hour
are those of the corrected event. If that period is closed, it is booked in the open one, and the invoice shows it as a
correction. It counts in the budget windows in which the corrected request was counted.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from uuid import UUID

import msgspec
from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncSession

from audit_log.record import record_change
from billing.accounts.idempotency import IdempotencyConflict, check_id_unused
from billing.accounts.taken_back import money_back, read_paid, read_taken_back
from billing.events import partitions
from billing.events.columns import EventColumns, as_bytes, dimension_ids, event_dimensions
from billing.events.rollups import roll_up
from billing.events.rows import EventRows
from billing.integrity.hash_chain import chain_batches
from billing.ledger.entries import Balance, Entry, Transaction
from billing.ledger.wallet import ModelCost, Wallet
from billing.money import format_amount, format_pico
from billing.periods.periods import book_late
from billing.prices import PriceCatalog
from billing.tables.money import usage_event
from billing.transaction.budget_charges import BudgetCharges, charge_budgets
from billing.transaction.money_transaction import MoneyTransaction
from billing.transaction.opening import recorded_money_transaction
from billing.usage import METERS, Counts, InvalidUsage, SignedUsage, UsageEvent
from storage.database.base import new_id
from storage.database.database import Database
from storage.database.public_ids import public_id
from storage.free_text import REASON, check_text, counted
from storage.reported_error import ReportedError


class UnknownEvent(ReportedError, LookupError):
    """The tenant has no usage event of this id."""

    def __init__(self, event_id: UUID) -> None:
        super().__init__(f"there is no usage event {event_id} of this tenant")
        self.event_id = event_id


class InvalidAdjustment(ReportedError, ValueError):
    """An adjustment that cannot be: nothing changes, more is taken back than there was or than credit notes have left,
    it costs more than is there, or it corrects a correction."""


async def adjust(
    database: Database,
    catalog: PriceCatalog,
    tenant_id: UUID,
    event_id: UUID,
    units: Mapping[str, int],
    *,
    reason: str,
    adjustment_id: UUID | None = None,
    dry_run: bool = False,
) -> UsageEvent:
    """Add to what an event of the tenant says, or take away from it: units by meter. Returns the new event.

    One that is repeated under the same id (a UUIDv7) counts once. It takes no money that is promised to open holds:
    usage alone that has arrived may bring a balance below zero. Raises UnknownEvent, InvalidAdjustment, InvalidUsage,
    IdempotencyConflict, PriceMissing, DatabaseUnavailable; then nothing is written.
    """
    check_text("reason", reason, REASON, empty=True)
    original = await _event(database, tenant_id, event_id)
    usage = _usage(units)
    if original["corrects"] is not None:
        raise InvalidAdjustment(f"{event_id} is an adjustment itself: adjust the event that it corrects")
    identity = adjustment_id or new_id()
    if not partitions.is_ordered_by_time(identity):
        raise InvalidAdjustment(f"{identity} is not a UUIDv7")
    version = await catalog.version(original["price_version"])
    lane, tier = original["lane"], original["context_from"]
    cost = sum(more * version.price(meter, lane, tier) for meter, more in usage.used())
    same = ("tenant_id", "project_id", "key_id", "model", "model_digest", "lane", "price_version", "context_from",
            "admitted_at", "period", "replica")  # fmt: skip
    event = UsageEvent(
        **{name: original[name] for name in same},
        id=identity,
        finished_at=await database.now(),
        status="ok",
        reason="adjustment",
        delivery="confirmed",
        source="adjustment",
        sequence=0,
        attempt=0,
        counts=Counts(),
        usage=usage,
        cost_pico=cost,
        corrects=event_id,
    )
    if adjustment_id is not None and (made := await _made(database, event)) is not None:
        return made
    if dry_run:
        return await _tried(database, event_id, original["period"], event)
    await partitions.ensure_partitions(database, as_bytes([identity]))
    ids = await dimension_ids(database, event_dimensions([event]))
    async with recorded_money_transaction(database) as (session, money):
        if await money.existing_attempts([identity]):  # since a moment ago
            raise IdempotencyConflict(identity, "this adjustment alone")
        columns = await book_late(money, EventColumns([event]))
        (event,) = columns.events
        rows = EventRows(columns, ids)
        rolled, chained = await money.write_events(rows, lambda: (roll_up(columns), chain_batches(rows)))
        await money.roll_up(rolled)
        await money.chain(chained)
        found = (await money.lock([tenant_id]))[tenant_id]
        _refuse_negative(await money.units_left(tenant_id, event_id))
        wallet, entries = await _pay(session, money, found, event, original["period"])
        await _refuse_credited(session, original["period"], event, entries)
        currency = found.currency
        posted = [Transaction(identity, tenant_id, currency, "adjustment", event.period, entries, reason)]
        counted = {identity: await money.budgets.charged(event_id)}
        notices = await charge_budgets(money, BudgetCharges((), [event], counted, {tenant_id: currency}))
        await money.save([wallet.balance], posted if entries else (), notices, list(wallet.changed.values()))
        corrects = public_id("request", event_id)
        said = {"corrects": corrects, "units": dict(units), "cost": format_pico(cost), "currency": currency,
                "period": event.period}  # fmt: skip
        await record_change(session, "usage.adjusted", target="usage_event", target_id=identity,
                            tenant_id=tenant_id, project_id=event.project_id, reason=reason, after=said)  # fmt: skip
    return event


async def _event(database: Database, tenant_id: UUID, event_id: UUID) -> dict[str, Any]:
    query = select(usage_event).where(usage_event.c.tenant_id == tenant_id, usage_event.c.id == event_id)
    async with database.reading() as session:
        row = (await session.execute(query)).one_or_none()
    if row is None:
        raise UnknownEvent(event_id)
    return dict(row._mapping)


async def _made(database: Database, event: UsageEvent) -> UsageEvent | None:
    """The very same adjustment, booked already; None if its id is free. Raises IdempotencyConflict if that is
    something else's."""
    # all tenants: an id is one for all of them
    async with database.reading() as session:
        row = (await session.execute(select(usage_event).where(usage_event.c.id == event.id))).one_or_none()
    mine = row is not None and (row.tenant_id, row.corrects) == (event.tenant_id, event.corrects)
    if row is not None and mine and all(row._mapping[name] == units for name, units in event.usage.meters().items()):
        return msgspec.structs.replace(event, period=row.period, finished_at=row.finished_at)
    await check_id_unused(database, event.id, f"this adjustment of {event.corrects}")
    return None


def _usage(units: Mapping[str, int]) -> SignedUsage:
    for meter in units:
        if meter not in METERS:
            raise InvalidUsage(f"unknown meter {meter}; there are {', '.join(METERS)}")
    if not any(units.values()):
        raise InvalidAdjustment("no units are added or taken away")
    return SignedUsage.from_meters(dict(units))


async def _tried(database: Database, event_id: UUID, period: str, event: UsageEvent) -> UsageEvent:
    """What a dry run can say: whether enough is there now, and in which period it would be booked. `period` is that of
    the corrected usage."""
    async with recorded_money_transaction(database) as (session, money):
        (event,) = (await book_late(money, EventColumns([event]))).events
        found = (await money.lock([event.tenant_id]))[event.tenant_id]
        left, more = await money.units_left(event.tenant_id, event_id), event.usage.meters()
        _refuse_negative({meter: units + more[meter] for meter, units in left.items()})
        _, entries = await _pay(session, money, found, event, period)
        await _refuse_credited(session, period, event, entries)
    return event


async def _pay(
    session: AsyncSession, money: MoneyTransaction, before: Balance, event: UsageEvent, period: str
) -> tuple[Wallet, list[Entry]]:
    """The tenant's money when it has paid for the adjustment, or got back what it had paid for the usage of `period`.
    Raises InvalidAdjustment if there is too little."""
    wallet = Wallet(before, await money.grants([event.tenant_id], spent=True))
    now = await money.now()
    used = ModelCost(event.project_id, event.model, abs(event.cost_pico), now)
    if event.cost_pico < 0:
        return wallet, wallet.give_back(used, await read_paid(session, event.tenant_id, period))
    spendable = wallet.available(now)
    entries = wallet.use([used])
    if wallet.available(now) < min(0, spendable):
        cost, available = format_amount(event.cost_pico), format_amount(spendable)
        raise InvalidAdjustment(
            f"it costs {cost} {before.currency} and {available} are available: put money in, or raise the line"
        )
    return wallet, entries


async def _refuse_credited(session: AsyncSession, period: str, event: UsageEvent, entries: list[Entry]) -> None:
    """Raise InvalidAdjustment if the adjustment gives back what credit notes for the period's invoice gave back."""
    back = money_back(entries)
    if back <= 0 or event.period == period:  # on the period's own invoice it is usage
        return
    taken_back = await read_taken_back(session, event.tenant_id, period)
    if taken_back is not None and taken_back.credited and not taken_back.allows(corrected=back):
        charged, credited = format_pico(taken_back.charged), format_pico(taken_back.credited)
        raise InvalidAdjustment(
            f"{taken_back.number} charged {charged} {taken_back.currency}, of which {credited} were credited:"
            f" {format_pico(back)} more cannot be given back"
        )


def _refuse_negative(left: Mapping[str, int]) -> None:
    for meter, units in left.items():
        if units < 0:
            raise InvalidAdjustment(f"{meter}: {counted(-units, 'unit')} more than there were would be taken back")
