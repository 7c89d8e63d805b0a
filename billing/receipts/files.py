"""Files of receipts as a tenant downloads them: JSON lines in canonical form, each day under its signed head.

A head is signed when it is given out: an Ed25519 signature of the same text by the same key is always the same, and the
private key is in no database. Heads of a period are chained: each has the digest of the one before.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from hashlib import sha256
from typing import Any
from uuid import UUID

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType
from sqlalchemy.ext.asyncio import AsyncSession

from billing.prices import PriceCatalog
from billing.receipts.day_files import ClosedDay, FiledEvent, FilePlace, closed_days, filed_events
from billing.receipts.signing_keys import ReceiptKeys, to_base64
from billing.receipts.statements import FORM, statement_digest
from storage.database.database import Database
from storage.reported_error import ReportedError

_encode = msgspec.json.Encoder(order="sorted").encode

_CHUNK = 500
"""Events that are read at a time, however short a page is: late ones are passed over."""


class DayHead(Struct, frozen=True, kw_only=True):
    """The head of a day's file. `previous`: the SHA-256 of the head before it in the period, as canonical JSON without
    `key` and `sig`; empty for the first. The signed text is the canonical JSON without `sig`."""

    kind: str = "day"
    v: int = FORM
    tenant: UUID
    period: str
    day: str
    events: int
    late: int
    cost_pico: str
    root: str
    previous: str
    closed_at: int
    key: str | UnsetType = UNSET
    sig: str | UnsetType = UNSET

    @property
    def digest(self) -> str:
        """The digest by which the next head names this one."""
        return sha256(_encode(msgspec.structs.replace(self, key=UNSET, sig=UNSET))).hexdigest()

    def signed(self, keys: ReceiptKeys) -> DayHead:
        """The head with a signature by the current key."""
        named = msgspec.structs.replace(self, key=keys.id, sig=UNSET)
        return msgspec.structs.replace(named, sig=to_base64(keys.sign(_encode(named))))


class EventLine(Struct, frozen=True, kw_only=True):
    """The line of an event. `own_day`: the earlier day that it belongs to, where it came late."""

    kind: str = "event"
    day: str
    n: int
    digest: str
    event: Raw
    own_day: str | UnsetType = UNSET


class PriceLine(Struct, frozen=True, kw_only=True):
    """The prices that events name: rows of meter, lane, lower bound of the context tier, and micro-units of currency
    per million tokens."""

    kind: str = "prices"
    version: int
    model: str
    currency: str
    rows: list[tuple[str, str, int, int]]


class DayOpen(ReportedError, LookupError):
    """A tenant's day is not closed, or it has none of the kind."""

    def __init__(self, day: str) -> None:
        super().__init__(
            f"{day} has no file yet: a day closes an hour after it ends, the last of a month with the month"
        )


class FilePage(Struct, frozen=True):
    """Which lines of a day's file are asked for: `limit` events after a place."""

    day: str
    limit: int
    after: FilePlace | None = None


def day_heads(days: Sequence[ClosedDay]) -> list[DayHead]:
    """The heads of a period's closed days, chained, without signatures."""
    heads: list[DayHead] = []
    for closed in days:
        heads.append(
            DayHead(
                tenant=closed.tenant_id,
                period=closed.period,
                day=closed.day,
                events=closed.events,
                late=closed.late,
                cost_pico=str(closed.cost_pico),
                root=closed.root.hex(),
                previous=heads[-1].digest if heads else "",
                closed_at=closed.closed_at,
            )
        )
    return heads


async def file_lines(
    database: Database,
    catalog: PriceCatalog,
    keys: ReceiptKeys,
    tenant_id: UUID,
    period: str,
    *,
    day: str | None = None,
) -> AsyncIterator[bytes]:
    """The lines of a period's closed days, or of one of them, each with its line feed. Prices come before the first
    event that names them. Raises InvalidPeriod, EventMissing, DatabaseUnavailable."""
    async with database.reading() as session:
        days = await closed_days(session, tenant_id, period)
        priced: set[int] = set()
        for place, head in enumerate(day_heads(days)):
            if day is not None and head.day != day:
                continue
            yield _encode(head.signed(keys)) + b"\n"
            async for line in _event_lines(database, session, days[place], days[place - 1] if place else None):
                version = msgspec.json.decode(line.event, type=_Priced).price_version
                if version not in priced:
                    priced.add(version)
                    yield _encode(await _price_line(catalog, version)) + b"\n"
                yield _encode(line) + b"\n"


class _Priced(Struct):
    price_version: int


async def file_page(
    database: Database, catalog: PriceCatalog, keys: ReceiptKeys, tenant_id: UUID, page: FilePage
) -> tuple[list[bytes], FilePlace | None]:
    """The lines of a page of a day's file, and the place after which the next page begins; None if it is the last.

    Raises DayOpen, InvalidPeriod, EventMissing, UnknownPriceVersion, DatabaseUnavailable.
    """
    filed: list[FiledEvent] = []
    async with database.reading() as session:
        days = await closed_days(session, tenant_id, page.day[:7])
        place = next((place for place, closed in enumerate(days) if closed.day == page.day), None)
        if place is None:
            raise DayOpen(page.day)
        before = days[place - 1] if place else None
        chunk = max(page.limit + 1, _CHUNK)
        async for event in filed_events(database, session, days[place], before, after=page.after, chunk=chunk):
            filed.append(event)
            if len(filed) > page.limit:
                break
    events = [_event_line(page.day, event) for event in filed[: page.limit]]
    versions = {msgspec.json.decode(line.event, type=_Priced).price_version for line in events}
    lines = [_encode(day_heads(days)[place].signed(keys))] if page.after is None else []
    lines += [_encode(await _price_line(catalog, version)) for version in sorted(versions)]
    lines += [_encode(line) for line in events]
    return [line + b"\n" for line in lines], filed[page.limit - 1].place if len(filed) > page.limit else None


async def _event_lines(
    database: Database, session: AsyncSession, closed: ClosedDay, before: ClosedDay | None
) -> AsyncIterator[EventLine]:
    async for filed in filed_events(database, session, closed, before):
        yield _event_line(closed.day, filed)


def _event_line(day: str, filed: FiledEvent) -> EventLine:
    return EventLine(
        day=day,
        n=filed.place.n,
        digest=statement_digest(filed.statement).hex(),
        event=Raw(filed.statement),
        own_day=UNSET if filed.own_day is None else filed.own_day,
    )


async def _price_line(catalog: PriceCatalog, version: int) -> PriceLine:
    prices = await catalog.version(version)
    rows: list[Any] = [(*cell, micro) for cell, micro in sorted(prices.rows.items())]
    return PriceLine(version=version, model=prices.model, currency=prices.currency, rows=rows)
