"""Approval of price sheets: drafted, approved by another person, then scheduled, active and ended.

While the platform's approvals are off, `put` brings a sheet into force at once. Each step is a row of an append-only
log. A sheet itself never changes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from sqlalchemy import delete, insert, select, text
from sqlalchemy.ext.asyncio import AsyncSession

from audit_log.actors import Actor, are_two_people, person_of
from audit_log.record import record_change
from billing.integrity.row_seals import seal_rows
from billing.platform_settings import APPROVALS, value_of
from billing.prices.errors import (
    EmptyInterval,
    NotADraft,
    NothingToOverride,
    PriceInPast,
    PriceRefused,
    SamePerson,
    UnusualPrice,
)
from billing.prices.grid import check_rows, digest, label, unusual
from billing.prices.price_books import PriceBook, book_for_writing, book_named
from billing.prices.sheets import (
    Interval,
    PriceProposal,
    PriceSheet,
    check_no_overlap,
    in_force,
    intervals_of,
    one_sheet,
    proposed,
    rows_of_sheet,
    sheets,
)
from billing.prices.version import Cell, Rows
from billing.tables.prices import price_book, price_change, price_interval, price_row, price_sheet
from storage.database.database import Database
from storage.free_text import NAME, REASON, check_text

_RECORDED = {
    "draft": "price_sheet.drafted",
    "set": "price_sheet.set",
    "approve": "price_sheet.approved",
    "withdraw": "price_sheet.withdrawn",
}
"""What the audit log calls the actions of `price_change`."""
_BOOK = price_book.c.id
_TICK = 1000  # SQLite's clock, in microseconds


BY_KEY = "operator key"
"""The beginning of `via` if an operator's key was presented."""
BY_SESSION = "session"
"""… and if it was a signed-in user."""
_PROVEN = (BY_KEY, BY_SESSION)
_OF_USER = re.compile(rf"(?:{BY_KEY}|{BY_SESSION}) of (user_[0-9a-f]{{32}})(?:, |$)")


class PriceSheets:
    """Writes price sheets. `via` says how the acting person was identified, and is logged beside the name.

    While the platform's approvals are on (`billing.platform_settings`), a sheet needs two operators, each with a key.
    """

    def __init__(self, database: Database, via: str = "") -> None:
        self._database = database
        self._via = via

    async def draft(self, proposal: PriceProposal, by: str, reason: str = "", force: str | None = None) -> PriceSheet:
        """Store a proposal as a draft, for another person to approve. `force` is the reason for unusual prices.

        Raises PriceRefused or a subclass, InvalidPrice naming the meter, InvalidMoney, UnknownBook; then nothing is
        written.
        """
        async with self._database.transaction() as session:
            sheet, _, _ = await self._insert(session, proposal, by, reason, force)
        return await self.get(sheet)

    async def put(self, proposal: PriceProposal, by: str, reason: str = "", force: str | None = None) -> PriceSheet:
        """Bring a proposal into force while approvals are off, else draft it. Raises as `draft` does."""
        async with self._database.transaction() as session:
            sheet, book, now = await self._insert(session, proposal, by, reason, force)
            if await value_of(session, APPROVALS) == "off":
                await self._schedule(session, sheet, book, proposal, now)
                await self._log(session, sheet, "set", by=by, reason=reason, at=now)
        return await self.get(sheet)

    async def approve(self, sheet: int, by: str, reason: str = "", *, dry_run: bool = False) -> PriceSheet:
        """Approve a draft, so that it applies from its time on; return the sheet.

        Raises UnknownSheet, NotADraft, SamePerson, PriceRefused.
        """
        _check_texts(by, reason)
        async with self._database.transaction(write=not dry_run) as session:
            await _lock_prices(session, self._database)
            await self._check_identity(session)
            found = await one_sheet(session, self._database, sheet)
            if found.state != "draft":
                raise NotADraft(f"price sheet {sheet} is {found.state}; only a draft can be approved")
            if await value_of(session, APPROVALS) == "on" and not _drafted_by_key(found):
                raise PriceRefused(
                    f"price sheet {sheet} was drafted without an operator's key while approvals are on; draft it again"
                )
            if not are_two_people(_person(by, self._via), person_of_sheet(found)):
                raise SamePerson(f"{by} wrote price sheet {sheet}; another person must approve it")
            now = await _now(session, self._database)
            if found.effective_at is not None and found.effective_at < now:
                raise PriceInPast(f"the beginning of price sheet {sheet} has passed; draft it again")
            proposal = proposed(found)
            await self._check(session, proposal, found.forced)
            await self._schedule(session, sheet, found.book, proposal, now)
            await self._log(session, sheet, "approve", by=by, reason=reason, at=now)
            after = await one_sheet(session, self._database, sheet)
        return after if dry_run else await self.get(sheet)

    async def withdraw(self, sheet: int, by: str, reason: str = "", *, dry_run: bool = False) -> PriceSheet:
        """Withdraw a draft or a scheduled sheet, and return it. Raises UnknownSheet, NotADraft."""
        # no entry: `_log` records it
        _check_texts(by, reason)
        async with self._database.transaction(write=not dry_run) as session:
            await _lock_prices(session, self._database)
            await self._check_identity(session)
            found = await one_sheet(session, self._database, sheet)
            if found.state not in ("draft", "scheduled"):
                raise NotADraft(f"price sheet {sheet} is {found.state} and cannot be withdrawn; set other prices")
            await session.execute(delete(price_interval).where(price_interval.c.sheet == sheet))
            await self._log(session, sheet, "withdraw", by=by, reason=reason, at=await _now(session, self._database))
            return await one_sheet(session, self._database, sheet)

    async def get(self, sheet: int) -> PriceSheet:
        """The sheet with this number. Raises UnknownSheet."""
        async with self._database.reading() as session:
            return await one_sheet(session, self._database, sheet)

    async def history(self, model: str | None = None, book: str | None = None) -> list[PriceSheet]:
        """Every sheet of a model and a book (None: all), newest first."""
        conditions = [] if model is None else [price_sheet.c.model == model]
        async with self._database.reading() as session:
            found = await sheets(session, self._database, *conditions)
        return [sheet for sheet in found if book in (None, sheet.book.name)]

    async def check(self, proposal: PriceProposal, force: str | None = None) -> tuple[Rows, Rows, str]:
        """The prices before and after a proposal, and their currency. Raises as `draft` does; nothing is written."""
        async with self._database.reading() as session:
            now = await self._check(session, proposal, force)
            return await _effect(session, proposal, now)

    async def effect(self, sheet: PriceSheet) -> tuple[Rows, Rows, str]:
        """The prices without a sheet and with it, at its beginning, and their currency."""
        async with self._database.reading() as session:
            return await _effect(session, proposed(sheet), await _now(session, self._database), without=sheet.id)

    async def _insert(
        self, session: AsyncSession, proposal: PriceProposal, by: str, reason: str, force: str | None
    ) -> tuple[int, PriceBook, int]:
        # no entry: `_log` records it
        if not by.strip():
            raise PriceRefused("a change of prices needs the name of the person who makes it")
        _check_texts(by, reason)
        check_text("force", force or "", REASON, empty=True)
        check_text("model", proposal.model, NAME, empty=True)
        await _lock_prices(session, self._database)
        await self._check_identity(session)
        now = await self._check(session, proposal, force)
        book = await book_for_writing(session, self._database, proposal.book, proposal.currency)
        values = {
            "book": book.id,
            "model": proposal.model,
            "kind": proposal.kind,
            "effective_at": proposal.effective_at,
            "effective_until": proposal.effective_until,
            "author": by,
            "reason": reason,
            "forced": force,
            "created_at": now,
            "sha256": digest(proposal.rows),
        }
        sheet = (await session.execute(insert(price_sheet).values(values).returning(price_sheet.c.id))).scalar_one()
        await session.execute(
            insert(price_row),
            [
                {"sheet": sheet, "meter": meter, "lane": lane, "context_from": context_from, "price_micro": micro}
                for (meter, lane, context_from), micro in proposal.rows.items()
            ],
        )
        await seal_rows(session, price_sheet, price_sheet.c.id == sheet)
        await self._log(session, sheet, "draft", by=by, reason=reason, at=now)
        return sheet, book, now

    async def _check_identity(self, session: AsyncSession) -> None:
        """Raise PriceRefused if approvals are on and no operator's key was presented."""
        if not self._via.startswith(_PROVEN) and await value_of(session, APPROVALS) == "on":
            raise PriceRefused("approvals are on: changing prices needs an operator's key (--operator-key-file FILE)")

    async def _check(self, session: AsyncSession, proposal: PriceProposal, force: str | None) -> int:
        """Raise what is wrong with a proposal; return the instant of the check."""
        if not proposal.model.strip():
            raise PriceRefused("prices need the name of a served model")
        if force is not None and not force.strip():
            raise PriceRefused("forcing unusual prices needs a reason")
        check_rows(proposal.rows, whole=proposal.kind == "whole")
        book = await book_named(session, proposal.book, proposal.currency)
        intervals = await intervals_of(session, book.id, proposal.model) if book else []
        now = await _now(session, self._database)
        starts = _starts(proposal, intervals, now)
        grid = dict(proposal.rows)
        if proposal.kind == "overrides":
            grid = await self._laid_over_base(session, book, proposal, starts)
        if force is None and (problems := unusual(grid)):
            raise UnusualPrice(problems)
        check_no_overlap(intervals, starts, proposal.effective_until)
        return now

    async def _laid_over_base(
        self, session: AsyncSession, book: PriceBook | None, proposal: PriceProposal, at: int
    ) -> dict[Cell, int]:
        """The base book's grid at an instant with the proposed overrides. Raises NothingToOverride."""
        if book is None or book.base is None:
            raise NothingToOverride(f"{proposal.book!r} is a base book; it needs whole sheets")
        base = await _in_force(session, book.base, proposal.model, at)
        if base is None:
            raise NothingToOverride(f"the base book has no prices for {proposal.model} to override")
        rows = await rows_of_sheet(session, base.sheet)
        for cell in proposal.rows:
            if cell not in rows:
                raise NothingToOverride(f"the base book of {book.name!r} has no price for {label(cell)}")
        return rows | dict(proposal.rows)

    async def _schedule(
        self, session: AsyncSession, sheet: int, book: PriceBook, proposal: PriceProposal, now: int
    ) -> None:
        # no entry: `_log` records it
        intervals = await intervals_of(session, book.id, proposal.model)
        starts = _starts(proposal, intervals, now)
        check_no_overlap(intervals, starts, proposal.effective_until)
        interval = {"sheet": sheet, "book": book.id, "model": proposal.model, "effective_at": starts}
        await session.execute(insert(price_interval).values(effective_until=proposal.effective_until, **interval))
        await seal_rows(session, price_interval, price_interval.c.sheet == sheet)

    async def _log(self, session: AsyncSession, sheet: int, action: str, *, by: str, reason: str, at: int) -> None:
        row = (await session.execute(select(price_sheet).where(price_sheet.c.id == sheet))).one()
        starts = at if row.effective_at is None else row.effective_at
        before = await _in_force(session, row.book, row.model, starts, without=sheet)
        of_before = select(price_sheet.c.sha256).where(price_sheet.c.id == (before.sheet if before else 0))
        digest_before = (await session.execute(of_before)).scalar_one_or_none() or ""
        values = {"sheet": sheet, "action": action, "actor": by, "via": self._via, "reason": reason, "at": at}
        hashes = {"before_sha256": digest_before, "after_sha256": digest_before if action == "withdraw" else row.sha256}
        await session.execute(insert(price_change).values(**values, **hashes))
        await seal_rows(session, price_change, price_change.c.sheet == sheet, price_change.c.action == action)
        book = (await session.execute(select(price_book.c.name, price_book.c.tenant_id).where(row.book == _BOOK))).one()
        what = {"book": book.name, "model": row.model}
        before_after = [what | {"sha256": digest} for digest in hashes.values()]
        await record_change(session, _RECORDED[action], target="price_sheet", target_id=str(sheet),
                            tenant_id=book.tenant_id, reason=reason, before=before_after[0] if digest_before else None,
                            after=before_after[1] | {"effective_at": row.effective_at})  # fmt: skip


def _starts(proposal: PriceProposal, intervals: Iterable[Interval], now: int) -> int:
    """When a proposal that is approved now applies. Raises PriceInPast, PriceRefused."""
    starts = proposal.effective_at
    if starts is None:
        # Two sheets within one tick of the clock follow each other in the order of their approval.
        same_tick = (interval.effective_at for interval in intervals if now <= interval.effective_at <= now + _TICK)
        starts = max([now, *(instant + 1 for instant in same_tick)])
    elif starts < now:
        raise PriceInPast("prices cannot begin in the past; give a later instant, or none for now")
    if proposal.effective_until is not None and proposal.effective_until <= starts:
        raise EmptyInterval("prices must begin before they end")
    return starts


async def _lock_prices(session: AsyncSession, database: Database) -> None:
    """Make changes of prices wait for each other: a check then holds until its change is written.

    The log's last number then also says whether anything has changed.
    """
    if database.dialect == "postgresql":
        await session.execute(text("LOCK TABLE price_change IN SHARE ROW EXCLUSIVE MODE"))


def _drafted_by_key(sheet: PriceSheet) -> bool:
    return any(change.action == "draft" and change.via.startswith(_PROVEN) for change in sheet.changes)


def _check_texts(by: str, reason: str) -> None:
    check_text("by", by, NAME)
    check_text("reason", reason, REASON, empty=True)


def via_of_sheets(actor: Actor) -> str:
    """What `PriceSheets` records of how it is known who acts: a key or a session, and the user whose it is."""
    how = {"operator_key": BY_KEY, "session": BY_SESSION}.get(actor.means, actor.means)
    of = f"{how} of {actor.user}" if actor.user else how
    return f"{of}, {actor.through}" if "@" in actor.through else of


def person_of_sheet(sheet: PriceSheet) -> str:
    """Who drafted a sheet, by what stays."""
    return _person(sheet.author, next((change.via for change in sheet.changes if change.action == "draft"), ""))


def _person(name: str, via: str) -> str:
    of_user = _OF_USER.match(via)
    return person_of(name, of_user[1] if of_user else "")


async def _effect(session: AsyncSession, proposal: PriceProposal, now: int, without: int = 0) -> tuple[Rows, Rows, str]:
    book = await book_named(session, proposal.book, proposal.currency)
    if book is None:
        return {}, proposal.rows, str(proposal.currency)
    at = now if proposal.effective_at is None else proposal.effective_at
    of_base = await _in_force(session, book.base, proposal.model, at) if book.base is not None else None
    base = await rows_of_sheet(session, of_base.sheet) if of_base else {}
    own = await _in_force(session, book.id, proposal.model, at, without)
    before: Rows = base
    if own is not None:
        kind = (await session.execute(select(price_sheet.c.kind).where(price_sheet.c.id == own.sheet))).scalar_one()
        before = (base if kind == "overrides" else {}) | await rows_of_sheet(session, own.sheet)
    after = proposal.rows if proposal.kind == "whole" else base | dict(proposal.rows)
    return before, after, book.currency


async def _in_force(session: AsyncSession, book: int, model: str, at: int, without: int = 0) -> Interval | None:
    intervals = await intervals_of(session, book, model)
    return in_force([interval for interval in intervals if interval.sheet != without], at)


async def _now(session: AsyncSession, database: Database) -> int:
    return (await session.execute(select(database.clock))).scalar_one()
