"""The price catalog: which price version applies to a tenant's request, answered from memory.

A tenant's own price book overrides its base book, cell by cell. The result is a price version, made once and never
changed.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict, defaultdict
from collections.abc import Mapping
from typing import Any
from uuid import UUID

import msgspec
from sqlalchemy import func, insert, select, text
from sqlalchemy.ext.asyncio import AsyncSession

from billing.integrity.row_seals import seal_rows
from billing.prices.approval import PriceSheets
from billing.prices.errors import UnknownPriceVersion
from billing.prices.formulas import formula_of_new_versions
from billing.prices.grid import digest, parse_rows
from billing.prices.price_books import BASE, PriceBook, all_books
from billing.prices.sheets import Interval, PriceProposal, in_force
from billing.prices.version import EVERY_LANE, Cell, PriceMissing, PriceVersion
from billing.tables.prices import (
    price,
    price_change,
    price_interval,
    price_resolution,
    price_row,
    price_sheet,
    price_version,
)
from storage.database import clock
from storage.database.database import Database, DatabaseUnavailable

_CACHE_NS = 2_000_000_000
"""How long another process's change may be unseen. After half of that the cache is renewed in the background."""

_MOST_CELLS = 250_000
"""Prices in memory, of all versions together: some 270 bytes each, 67 MB, 19,000 versions of a plain grid."""

_Key = tuple[int, int]
"""A sheet alone (the second is 0), or a sheet of overrides and the base book's sheet."""


class _Snapshot(msgspec.Struct):
    """Which sheets apply to whom, as of the log's entry `head`."""

    head: int
    ahead: int  # microseconds by which the database's clock is ahead of ours
    base: int | None
    books: dict[UUID, tuple[int, int]]  # own book and its base, by tenant
    intervals: dict[tuple[int, str], list[Interval]]
    overriding: set[int]
    resolved: dict[_Key, int]

    def now(self) -> int:
        """The instant by the database's clock, without asking it."""
        return clock.instant() + self.ahead

    def key(self, model: str, at: int, own: int | None, base: int | None) -> _Key:
        """The sheets that apply in a book over its base. Raises PriceMissing."""
        in_own = in_force(self.intervals.get((own, model), ()), at) if own is not None else None
        if in_own is not None and in_own.sheet not in self.overriding:
            return in_own.sheet, 0
        in_base = in_force(self.intervals.get((base, model), ()), at) if base is not None else None
        if in_base is None:
            raise PriceMissing(model)
        return (in_base.sheet, 0) if in_own is None else (in_own.sheet, in_base.sheet)


class PriceCatalog:
    """Looks up price versions, with caches: which version applies (for two seconds), and versions in use."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._versions: OrderedDict[int, PriceVersion] = OrderedDict()
        """Least recently used first. A version never changes, so an evicted one can be read again."""
        self._cells = 0
        self._snapshot: _Snapshot | None = None
        self._loaded_at = 0
        self._loading: asyncio.Task[None] | None = None
        self._one = asyncio.Lock()

    async def current(self, model: str, at: int | None = None, tenant_id: UUID | None = None) -> PriceVersion:
        """The version that applies to a tenant (None: a tenant without a book) at an instant (None: now).

        Now is the instant by the database's clock. Another process's change is seen within two seconds. Raises
        PriceMissing, DatabaseUnavailable.
        """
        snapshot = await self._fresh()
        own, base = snapshot.books.get(tenant_id, (None, snapshot.base)) if tenant_id else (None, snapshot.base)
        return await self._version(snapshot, model, at, own, base)

    def known(self, model: str, tenant_id: UUID) -> PriceVersion | None:
        """The version that applies to a tenant now, as `current` has it; None if the database must be asked. Raises
        PriceMissing."""
        snapshot = self._recent()
        if snapshot is None:
            return None
        own, base = snapshot.books.get(tenant_id, (None, snapshot.base))
        number = snapshot.resolved.get(snapshot.key(model, snapshot.now(), own, base))
        if number is None or number not in self._versions:
            return None
        self._versions.move_to_end(number)
        return self._versions[number]

    async def in_book(self, book: PriceBook | None, model: str, at: int | None = None) -> PriceVersion:
        """The version that applies in a book (None: in the base book). Raises PriceMissing, DatabaseUnavailable."""
        snapshot = await self._fresh()
        if book is None:
            return await self._version(snapshot, model, at, None, snapshot.base)
        return await self._version(snapshot, model, at, book.id, book.base)

    async def _version(
        self, snapshot: _Snapshot, model: str, at: int | None, own: int | None, base: int | None
    ) -> PriceVersion:
        key = snapshot.key(model, snapshot.now() if at is None else at, own, base)
        number = snapshot.resolved.get(key)
        if number is None:
            number = snapshot.resolved[key] = await self._resolve(key)
        return await self.version(number)

    async def version(self, version: int) -> PriceVersion:
        """The version with this id. Raises UnknownPriceVersion, DatabaseUnavailable."""
        cached = self._versions.get(version)
        if cached is not None:
            self._versions.move_to_end(version)
        else:
            async with self._database.reading() as session:
                row = (await session.execute(select(price_version).where(price_version.c.id == version))).one_or_none()
                if row is None:
                    raise UnknownPriceVersion(version)
                rows = _cells(await session.execute(select(price).where(price.c.version == version)))
            cached = PriceVersion(row.id, row.model, row.currency, rows, row.effective_at, row.formula)
            self._remember(cached)
        return cached

    def _remember(self, version: PriceVersion) -> None:
        if version.id in self._versions:  # another task read it meanwhile
            return
        self._versions[version.id] = version
        self._cells += len(version.rows)
        while self._cells > _MOST_CELLS and len(self._versions) > 1:
            self._cells -= len(self._versions.popitem(last=False)[1].rows)

    async def now(self) -> int:
        """The instant by the database's clock, without asking it each time. Raises DatabaseUnavailable."""
        return (await self._fresh()).now()

    async def models(self) -> list[str]:
        """The models that any book has a price for, ordered by name. Raises DatabaseUnavailable."""
        return sorted({model for _, model in (await self._fresh()).intervals})

    async def set(
        self, model: str, currency: str, prices: Mapping[str, str], effective_at: int | None = None
    ) -> PriceVersion:
        """Set a model's prices in the base book, and return their version. Needs approvals to be off.

        `prices` are decimal prices per million by meter, for every lane and prompt length. Raises as
        `PriceSheets.draft` does.
        """
        rows = parse_rows({(meter, EVERY_LANE, 0): text for meter, text in prices.items()})
        proposal = PriceProposal(model=model, rows=rows, currency=currency, effective_at=effective_at)
        sheet = await PriceSheets(self._database).put(proposal, by="turnpike")
        self.forget()
        return await self.current(model, sheet.effective_at)

    def forget(self) -> None:
        """Read the database again before the next answer, since this process changed prices."""
        self._snapshot = None

    async def close(self) -> None:
        """Wait for a renewal that is running."""
        if self._loading is not None:
            await asyncio.wait([self._loading])

    async def _fresh(self) -> _Snapshot:
        if (recent := self._recent()) is not None:
            return recent
        async with self._one:
            # another task may have loaded it meanwhile
            return self._recent() or await self._load()

    def _recent(self) -> _Snapshot | None:
        """The snapshot, unless it is too old; its renewal begins before that."""
        age = self._age()
        if self._snapshot is None or age >= _CACHE_NS:
            return None
        if age >= _CACHE_NS // 2 and self._loading is None:
            self._loading = asyncio.create_task(self._renew())
        return self._snapshot

    def _age(self) -> int:
        return time.monotonic_ns() - self._loaded_at

    async def _renew(self) -> None:
        """Renew the snapshot while requests use the old one. A request that finds it too old loads it itself."""
        try:
            async with self._one:
                await self._load()
        except DatabaseUnavailable:
            pass
        finally:
            self._loading = None

    async def _load(self) -> _Snapshot:
        began, wall = time.monotonic_ns(), clock.instant()
        async with self._database.reading() as session:
            head = (await session.execute(select(func.max(price_change.c.id)))).scalar_one() or 0
            now = (await session.execute(select(self._database.clock))).scalar_one()
            books = await all_books(session)
            snapshot = self._snapshot
            if snapshot is None or snapshot.head != head:
                snapshot = await _read(session, head)
        snapshot.ahead = now - wall
        snapshot.base = next((book.id for book in books if book.name == BASE), None)
        snapshot.books = {book.tenant_id: (book.id, book.base) for book in books if book.tenant_id and book.base}
        self._snapshot, self._loaded_at = snapshot, began
        return snapshot

    async def _resolve(self, key: _Key) -> int:
        """The version that these sheets resolve to, made if there is none yet."""
        async with self._database.transaction() as session:
            if self._database.dialect == "postgresql":
                await session.execute(text("LOCK TABLE price_resolution IN SHARE ROW EXCLUSIVE MODE"))
            sheet, base_sheet = key
            made = select(price_resolution.c.version).where(
                price_resolution.c.sheet == sheet, price_resolution.c.base_sheet == base_sheet
            )
            found = (await session.execute(made)).scalar_one_or_none()
            return found if found is not None else await self._make(session, key)

    async def _make(self, session: AsyncSession, key: _Key) -> int:
        books = {book.id: book for book in await all_books(session)}
        heads = {}
        grids = {}
        for sheet in filter(None, key):
            began = func.coalesce(price_interval.c.effective_at, price_sheet.c.effective_at, price_sheet.c.created_at)
            columns = (price_sheet.c.book, price_sheet.c.model, began.label("effective_at"))
            joined = price_sheet.outerjoin(price_interval, price_interval.c.sheet == price_sheet.c.id)
            query = select(*columns).select_from(joined).where(price_sheet.c.id == sheet)
            heads[sheet] = (await session.execute(query)).one()
            grids[sheet] = _cells(await session.execute(select(price_row).where(price_row.c.sheet == sheet)))
        rows = grids[key[0]]
        if key[1]:
            base = grids[key[1]]
            rows = base | {cell: micro for cell, micro in rows.items() if cell in base}
        head = heads[key[0]]
        values = {
            "model": head.model,
            "currency": books[head.book].currency,
            "effective_at": max(head.effective_at for head in heads.values()),
            "created_at": self._database.clock,
            "sha256": digest(rows),
            "formula": formula_of_new_versions(),
        }
        made = await session.execute(insert(price_version).values(values).returning(price_version.c.id))
        version: int = made.scalar_one()
        await session.execute(
            insert(price),
            [
                {"version": version, "meter": meter, "lane": lane, "context_from": tier, "price_micro": micro}
                for (meter, lane, tier), micro in rows.items()
            ],
        )
        await session.execute(insert(price_resolution).values(sheet=key[0], base_sheet=key[1], version=version))
        await seal_rows(session, price_version, price_version.c.id == version)
        resolution = price_resolution.c
        await seal_rows(session, price_resolution, resolution.sheet == key[0], resolution.base_sheet == key[1])
        return version


async def _read(session: AsyncSession, head: int) -> _Snapshot:
    intervals: dict[tuple[int, str], list[Interval]] = defaultdict(list)
    for row in await session.execute(select(price_interval).order_by(price_interval.c.effective_at.desc())):
        intervals[row.book, row.model].append(Interval(row.sheet, row.effective_at, row.effective_until))
    overriding = set(await session.scalars(select(price_sheet.c.id).where(price_sheet.c.kind == "overrides")))
    resolved = {(row.sheet, row.base_sheet): row.version for row in await session.execute(select(price_resolution))}
    return _Snapshot(head, 0, None, {}, dict(intervals), overriding, resolved)


def _cells(rows: Any) -> dict[Cell, int]:
    return {(row.meter, row.lane, row.context_from): row.price_micro for row in rows}
