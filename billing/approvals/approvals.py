"""What waits for a second person, of every kind: listed, approved and withdrawn here. Price sheets are among it.

A change is made in the transaction that writes its approval, with its checks run anew: it happens as a whole, or it
still waits. Who proposed a change can withdraw it, and never approve it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias
from uuid import UUID

from audit_log.actors import Actor, current_actor
from billing.approvals.kinds import KINDS, Makers, Needed, check, make
from billing.pending_changes import (
    PREFIX,
    NotAllowedToDecide,
    PendingChange,
    State,
    UnknownChange,
    check_proven,
    check_second_person,
    decide,
    find_changes,
    write_result,
)
from billing.prices import PriceCatalog
from billing.prices.approval import PriceSheets, person_of_sheet, via_of_sheets
from billing.prices.errors import UnknownSheet
from billing.prices.sheets import PriceSheet
from storage.database.database import Database

SHEET_PREFIX = "price_sheet_"
SHEET_KIND = "price_sheet.activate"
May: TypeAlias = Callable[[Needed], bool]
"""Whether whoever decides has a permission at the platform."""


class Approvals:
    """Decides about changes, as the current actor. Every method may raise DatabaseUnavailable."""

    def __init__(self, database: Database, prices: PriceCatalog) -> None:
        self._database = database
        self._makers = Makers.of(database, prices)

    async def list(self, state: State | None = "pending") -> list[PendingChange]:
        """The changes in a state (None: in any), the newest first, at most 1000 beside price sheets."""
        async with self._database.reading() as session:
            changes = await find_changes(session, state=state)
        sheets = [_of_sheet(sheet) for sheet in await PriceSheets(self._database).history()]
        changes += [change for change in sheets if state in (None, change.state)]
        return sorted(changes, key=lambda change: change.created_at, reverse=True)

    async def get(self, reference: str) -> PendingChange:
        """The change with this id. Raises UnknownChange."""
        if reference.startswith(SHEET_PREFIX):
            try:
                return _of_sheet(await PriceSheets(self._database).get(_sheet_number(reference)))
            except UnknownSheet as error:
                raise UnknownChange(f"there is no change {reference[:80]!r}") from error
        async with self._database.reading() as session:
            found = await find_changes(session, identity=_identity(reference))
        if not found:
            raise UnknownChange(f"there is no change {reference}")
        return found[0]

    async def approve(self, reference: str, may: May, reason: str = "", *, dry_run: bool = False) -> PendingChange:
        """Make a change that another person proposed, with the permission that its kind needs.

        Raises UnknownChange, NotPending, OwnChange, NotAllowedToDecide, InvalidText, ApprovalRefused (it is not proven
        who approves), and the errors of the change's own checks. After an error nothing is written.
        """
        actor = current_actor()
        check_proven(actor)
        change = await self.get(reference)
        _check_may(may, "approvals.decide", change)
        _check_may(may, permission_to_decide(change.kind), change)
        if reference.startswith(SHEET_PREFIX):
            sheets = PriceSheets(self._database, via=via_of_sheets(actor))
            return _of_sheet(await sheets.approve(_sheet_number(reference), actor.name, reason, dry_run=dry_run))
        check_second_person(change, actor)
        if change.state == "pending":
            await check(self._makers, change)
        async with self._database.transaction(write=not dry_run) as session:
            identity = _identity(reference)
            approved = await decide(self._database, session, identity, "approved", reason=reason)
            result = await make(self._makers, session, approved)
            await write_result(session, identity, result)
            (after,) = await find_changes(session, identity=identity)
        return after

    async def withdraw(self, reference: str, may: May, reason: str = "") -> PendingChange:
        """End a change without making it: one's own, or with the permission that approving it needs. Raises
        UnknownChange, NotPending, NotADraft, NotAllowedToDecide, ApprovalRefused, InvalidText."""
        if reference.startswith(SHEET_PREFIX):
            await self.get(reference)  # an unknown one is an unknown change
            return _of_sheet(await self.withdraw_sheet(_sheet_number(reference), may, reason))
        actor = current_actor()
        check_proven(actor)
        _check_own_or_may(await self.get(reference), may, actor)
        async with self._database.transaction() as session:
            return await decide(self._database, session, _identity(reference), "withdrawn", reason=reason)

    async def withdraw_sheet(self, number: int, may: May, reason: str = "", *, dry_run: bool = False) -> PriceSheet:
        """Withdraw a draft of prices, or prices that have not begun, by the same rule as `withdraw`. Raises
        UnknownSheet, NotADraft, NotAllowedToDecide, ApprovalRefused, InvalidText."""
        actor = current_actor()
        check_proven(actor)
        sheets = PriceSheets(self._database, via=via_of_sheets(actor))
        _check_own_or_may(_of_sheet(await sheets.get(number)), may, actor)
        return await sheets.withdraw(number, actor.name, reason, dry_run=dry_run)


def permission_to_decide(kind: str) -> Needed:
    """The permission, at the platform, that approving or withdrawing a change of this kind needs. Of a kind that we do
    not know, a newer version's, it is the one that all kinds need."""
    known = KINDS.get(kind)  # type: ignore[call-overload]
    return "prices.approve" if kind == SHEET_KIND else known.permission if known else "approvals.decide"


def _check_own_or_may(change: PendingChange, may: May, actor: Actor) -> None:
    if change.author_person != actor.person:
        _check_may(may, permission_to_decide(change.kind), change)


def _check_may(may: May, permission: Needed, change: PendingChange) -> None:
    if not may(permission):
        raise NotAllowedToDecide(f"{change.id} needs a role that allows {permission} at the platform")


def _of_sheet(sheet: PriceSheet) -> PendingChange:
    """A price sheet as one of the changes that wait, or waited."""
    decided = next((change for change in reversed(sheet.changes) if change.action in ("approve", "withdraw")), None)
    state: State = "pending" if sheet.state == "draft" else "withdrawn" if sheet.state == "withdrawn" else "approved"
    return PendingChange(
        id=f"{SHEET_PREFIX}{sheet.id}",
        kind=SHEET_KIND,
        summary=f"prices of {sheet.model} in book {sheet.book.name}",
        arguments={"sheet": sheet.id},
        state=state,
        tenant_id=None,
        author=sheet.author,
        author_via=next((change.via for change in sheet.changes if change.action == "draft"), ""),
        author_person=person_of_sheet(sheet),
        reason=sheet.reason,
        created_at=sheet.created_at,
        decider=None if decided is None else decided.actor,
        decider_via=None if decided is None else decided.via,
        decision_reason=None if decided is None else decided.reason,
        result=None if state != "approved" else f"price sheet {sheet.id}",
        decided_at=None if decided is None else decided.at,
    )


def _identity(reference: str) -> UUID:
    try:
        return UUID(reference.removeprefix(PREFIX))
    except ValueError as error:
        raise UnknownChange(f"there is no change {reference[:80]!r}") from error


def _sheet_number(reference: str) -> int:
    text = reference.removeprefix(SHEET_PREFIX)
    if not (text.isascii() and text.isdigit() and len(text) < 10):
        raise UnknownChange(f"there is no change {reference[:80]!r}")
    return int(text)
