"""Reading the audit log: entries that a reader may see, filtered, the newest first."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Any
from uuid import UUID

import msgspec
from sqlalchemy import ColumnElement, and_, case, false, not_, or_, select

from audit_log.actors import OPERATOR, OPERATOR_MEANS, THIS_MACHINE, Actor
from audit_log.tables import PLATFORM, audit_entry
from storage.database.database import Database
from storage.database.public_ids import forms_of

_ROW = audit_entry.c
_BATCH = 500
MONEY = (
    *("grant", "grants", "refund", "credit_line", "balance", "usage", "budget", "terms", "price_book", "price_sheet"),
    *("period", "invoice", "credit_note", "advance", "seller", "billing_profile", "export", "journal"),
    *("platform_setting", "change", "payment_customer", "auto_top_up", "top_up", "document", "cash", "payment_refund"),
    *("dispute", "finance_task"),
)
"""What actions of money are about: what stands before the point in their names."""


class Scope(msgspec.Struct, frozen=True):
    """What a reader may see: entries of this tenant, and of one project of it; without either, all. `money`: only what
    is about money."""

    tenant_id: UUID | None = None
    project_id: UUID | None = None
    money: bool = False


EVERYTHING = (Scope(),)


class Filter(msgspec.Struct, frozen=True, kw_only=True):
    """Which entries are wanted. `actor`: an id or a name; `action`: whole, or all of one kind, such as "invoice.*";
    instants are in microseconds since the Unix epoch, `since` included and `until` excluded."""

    actor: str | None = None
    action: str | None = None
    target: str | None = None
    target_id: str | None = None
    tenant_id: UUID | None = None
    platform: bool = False
    """Only what belongs to no tenant."""
    project_id: UUID | None = None
    since: int | None = None
    until: int | None = None


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """One entry. `tenant_id` is None where the platform's; `before` and `after` are JSON."""

    tenant_id: UUID | None
    number: int
    at: int
    actor: Actor
    action: str
    target: str
    target_id: str
    project_id: UUID | None
    reason: str
    before: str | None
    after: str | None

    @property
    def position(self) -> tuple[UUID, int]:
        """Where it stands: its chain and number."""
        return PLATFORM if self.tenant_id is None else self.tenant_id, self.number


class AuditLog:
    """The entries in a database. Methods raise DatabaseUnavailable."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def page(
        self, wanted: Filter, scopes: Sequence[Scope], limit: int, after: tuple[UUID, int] | None = None
    ) -> list[Entry]:
        """The newest entries that are wanted and in one of the scopes. `after`: those that follow the entry at this
        position; none if there is no such entry, or none that the reader may see."""
        query = select(audit_entry).where(_condition(wanted, scopes), _visible(scopes))
        async with self._database.reading() as session:
            if after is not None:
                mine = (_ROW.tenant_id == after[0], _ROW.number == after[1])
                at = await session.scalar(select(_ROW.at).where(*mine, _visible(scopes)))
                query = query.where(false() if at is None else _follows(at, *after))
            order = (_ROW.at.desc(), _ROW.tenant_id.desc(), _ROW.number.desc())
            return [_entry(row) for row in await session.execute(query.order_by(*order).limit(limit))]

    async def stream(self, wanted: Filter, scopes: Sequence[Scope]) -> AsyncIterator[Entry]:
        """All entries that are wanted and in one of the scopes, the newest first, read in batches. An entry that is
        recorded meanwhile is not among them."""
        position: tuple[UUID, int] | None = None
        while True:
            entries = await self.page(wanted, scopes, _BATCH, position)
            for entry in entries:
                yield entry
            if len(entries) < _BATCH:
                return
            position = entries[-1].position


def _condition(wanted: Filter, scopes: Sequence[Scope]) -> ColumnElement[bool]:
    conditions: list[ColumnElement[bool]] = []
    if wanted.actor is not None:
        conditions.append(_by(wanted.actor, whole=any(scope.tenant_id is None for scope in scopes)))
    if wanted.action is not None:
        kind, _, verb = wanted.action.partition(".")
        of_kind = _ROW.action.startswith(f"{kind}.", autoescape=True)
        conditions.append(of_kind if verb in ("", "*") else _ROW.action == wanted.action)
    if wanted.target_id is not None:  # earlier versions wrote plain UUIDs
        conditions.append(_ROW.target_id.in_(forms_of(wanted.target_id)))
    same = ((name, getattr(wanted, name)) for name in ("target", "tenant_id", "project_id"))
    conditions += [_ROW[name] == value for name, value in same if value is not None]
    if wanted.platform:
        conditions.append(_ROW.tenant_id == PLATFORM)
    if wanted.since is not None:
        conditions.append(_ROW.at >= wanted.since)
    if wanted.until is not None:
        conditions.append(_ROW.at < wanted.until)
    return and_(*conditions) if conditions else _ROW.number > 0


def _by(actor: str, *, whole: bool) -> ColumnElement[bool]:
    """Entries of this actor. Without the `whole` log, operators are found by the name alone that tenants read: whoever
    may not see an id or USER@HOST does not learn either by guessing."""
    named = or_(_ROW.actor_id == actor, _ROW.actor_name == actor)
    if whole:
        return named
    operators = or_(_ROW.actor_means.in_(OPERATOR_MEANS), _ROW.actor_through == OPERATOR)
    shown = case((_ROW.actor_means == "command", THIS_MACHINE), else_=_ROW.actor_name)
    return or_(and_(not_(operators), named), and_(operators, shown == actor))


def _visible(scopes: Sequence[Scope]) -> ColumnElement[bool]:
    return or_(false(), *map(_within, scopes))


def _within(scope: Scope) -> ColumnElement[bool]:
    conditions: list[ColumnElement[bool]] = [_ROW.number > 0]
    if scope.tenant_id is not None:
        conditions.append(_ROW.tenant_id == scope.tenant_id)
    if scope.project_id is not None:
        conditions.append(_ROW.project_id == scope.project_id)
    if scope.money:
        conditions.append(or_(*(_ROW.action.startswith(f"{kind}.", autoescape=True) for kind in MONEY)))
    return and_(*conditions)


def _follows(at: int, tenant_id: UUID, number: int) -> ColumnElement[bool]:
    same_chain = and_(_ROW.tenant_id == tenant_id, _ROW.number < number)
    return or_(_ROW.at < at, and_(_ROW.at == at, or_(_ROW.tenant_id < tenant_id, same_chain)))


def _entry(row: Any) -> Entry:
    return Entry(
        tenant_id=None if row.tenant_id == PLATFORM else row.tenant_id,
        number=row.number,
        at=row.at,
        actor=Actor(
            means=row.actor_means,
            id=row.actor_id,
            name=row.actor_name,
            through=row.actor_through,
            address=row.actor_address,
            request_id=row.request_id,
        ),
        action=row.action,
        target=row.target,
        target_id=row.target_id,
        project_id=row.project_id,
        reason=row.reason,
        before=row.before,
        after=row.after,
    )
