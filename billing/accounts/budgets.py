"""Setting, removing and listing budgets."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

import msgspec
from sqlalchemy import func, select, update
from sqlalchemy.ext.asyncio import AsyncSession

from audit_log.record import record_change
from audit_log.recorded_rows import digest_row
from billing.accounts.balances import CurrencyMismatch, begin_balance
from billing.budgets.store import TERMS, WINDOW
from billing.budgets.windows import Action, BudgetLimit, BudgetScope, BudgetWindow, Span
from billing.integrity.recorded_tables import BUDGETS
from billing.money import MAX_PICO, InvalidMoney, check_currency, format_pico
from billing.tables.money import balance, budget, budget_window
from storage.database.base import new_id
from storage.database.database import Database
from storage.database.public_ids import public_id
from storage.free_text import NAME, problem_of_text
from storage.reported_error import ReportedError

THRESHOLDS = (50, 80, 100)
_MOST_PERCENT = 1000


class InvalidBudget(ReportedError, ValueError):
    """A budget that makes no sense; the message says why."""


class UnknownBudget(ReportedError, LookupError):
    """The tenant has no such budget."""

    def __init__(self, budget_id: UUID) -> None:
        super().__init__(f"the tenant has no budget {budget_id}")


class BudgetSettings:
    """What administrators do with budgets. A change is in force for the next request that is admitted."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def set(
        self,
        tenant_id: UUID,
        scope: BudgetScope,
        subject: str,
        span: Span,
        *,
        limit_pico: int,
        currency: str,
        action: Action = "block",
        thresholds: Sequence[int] = THRESHOLDS,
        dry_run: bool = False,
        key: str = "",
    ) -> UUID:
        """Set the tenant's budget for this subject and span, in place of one that it has. Returns its id. `key`: the
        public id of the key that it is for, which the audit log says instead of its id.

        It counts from now on; what was used in this window before there was a budget is not in it. A limit below what
        was used refuses everything until the window ends. Raises InvalidBudget, InvalidMoney, CurrencyMismatch.
        """
        check_currency(currency)
        _check(scope, subject, limit_pico, thresholds)
        async with self._database.transaction() as session:
            await begin_balance(self._database, session, tenant_id, currency, write=not dry_run)
            known = await self._lock(session, tenant_id)
            if known not in (None, currency):
                raise CurrencyMismatch(str(known), currency)
            mine = (budget.c.tenant_id == tenant_id, budget.c.scope == scope)
            query = select(*(budget.c[name] for name in TERMS), budget.c.removed_at)
            query = query.where(*mine, budget.c.subject == subject, budget.c.span == span)
            row = (await session.execute(query)).one_or_none()
            found = None if row is None else BudgetLimit(*row[:-1])
            joined = ",".join(map(str, thresholds))
            budget_id = new_id() if found is None else found.budget_id
            terms = BudgetLimit(budget_id, tenant_id, scope, subject, span, limit_pico, action, joined)
            if not dry_run:
                await self._write(session, terms, there=found is not None)
                before = None if row is None or row.removed_at is not None else _said(BudgetLimit(*row[:-1]), key)
                await record_change(session, "budget.set", target="budget", target_id=budget_id,
                                    tenant_id=tenant_id, before=before, after=_said(terms, key),
                                    row_sha256=await digest_row(session, BUDGETS, budget_id))  # fmt: skip
        return terms.budget_id

    async def remove(self, tenant_id: UUID, budget_id: UUID, key: str = "") -> None:
        """Take the budget out of force; `key` as for `set`. Raises UnknownBudget."""
        async with self._database.transaction() as session:
            await self._lock(session, tenant_id)
            mine = (budget.c.tenant_id == tenant_id, budget.c.budget_id == budget_id, budget.c.removed_at.is_(None))
            removed = update(budget).where(*mine).values(removed_at=self._database.clock)
            row = (await session.execute(removed.returning(*(budget.c[name] for name in TERMS)))).one_or_none()
            if row is None:
                raise UnknownBudget(budget_id)
            await self._count(session, tenant_id)
            await record_change(session, "budget.removed", target="budget", target_id=budget_id,
                                tenant_id=tenant_id, before=_said(BudgetLimit(*row), key), after={},
                                row_sha256=await digest_row(session, BUDGETS, budget_id))  # fmt: skip

    async def list(self, tenant_id: UUID) -> list[BudgetWindow]:
        """The tenant's budgets as windows at present; one that nothing was used of has its budget's id."""
        now = await self._database.now()
        mine = (budget.c.tenant_id == tenant_id, budget.c.removed_at.is_(None))
        query = select(*(budget.c[name] for name in TERMS)).where(*mine)
        used = select(*(budget_window.c[name] for name in WINDOW)).where(budget_window.c.tenant_id == tenant_id)
        async with self._database.reading() as session:
            rows = await session.execute(query.order_by(budget.c.scope, budget.c.subject, budget.c.span))
            found = [BudgetLimit(*row) for row in rows]
            there = [BudgetWindow(*row) for row in await session.execute(used)]
        windows = {(one.budget_id, one.starts_at): one for one in there}
        keys = [(terms, terms.starts_at(now)) for terms in found]
        return [windows.get((terms.budget_id, at)) or _unused(terms, at) for terms, at in keys]

    async def _lock(self, session: AsyncSession, tenant_id: UUID) -> str | None:
        """Lock the tenant's balance, and so its budgets; its currency, if there is one."""
        query = select(balance.c.currency).where(balance.c.tenant_id == tenant_id)
        return (await session.scalars(self._database.locked(query))).one_or_none()

    async def _write(self, session: AsyncSession, terms: BudgetLimit, *, there: bool) -> None:
        # no entry: `set` records it
        row = msgspec.structs.asdict(terms) | {"removed_at": None}
        if not there:
            await session.execute(self._database.insert(budget).values(row))
        else:
            mine = (budget.c.tenant_id == terms.tenant_id, budget.c.budget_id == terms.budget_id)
            await session.execute(update(budget).where(*mine).values(row))
            await self._limit(session, terms)
        await self._count(session, terms.tenant_id)

    async def _limit(self, session: AsyncSession, terms: BudgetLimit) -> None:
        """Put the windows that there are under the new terms."""
        mine = (budget_window.c.tenant_id == terms.tenant_id, budget_window.c.budget_id == terms.budget_id)
        for row in (await session.execute(select(*(budget_window.c[name] for name in WINDOW)).where(*mine))).all():
            window = BudgetWindow(*row).limited(terms)
            changed = {name: getattr(window, name) for name in ("limit_pico", "action", "thresholds", "over", "told")}
            await session.execute(update(budget_window).where(*mine, budget_window.c.id == window.id).values(changed))

    async def _count(self, session: AsyncSession, tenant_id: UUID) -> None:
        mine = (budget.c.tenant_id == tenant_id, budget.c.removed_at.is_(None))
        count = select(func.count()).select_from(budget).where(*mine).scalar_subquery()
        await session.execute(update(balance).where(balance.c.tenant_id == tenant_id).values(budgets=count))


def _said(terms: BudgetLimit, key: str) -> dict[str, str]:
    """What the audit log says of a budget."""
    said = {name: getattr(terms, name) for name in ("scope", "subject", "span", "action", "thresholds")}
    if terms.scope == "project":
        said["subject"] = public_id("project", UUID(terms.subject))
    elif terms.scope == "key" and key:
        said["subject"] = key
    return said | {"limit": format_pico(terms.limit_pico)}


def _unused(terms: BudgetLimit, starts_at: int) -> BudgetWindow:
    return BudgetWindow(id=terms.budget_id, starts_at=starts_at, **msgspec.structs.asdict(terms))


def _check(scope: BudgetScope, subject: str, limit_pico: int, thresholds: Sequence[int]) -> None:
    if problem := problem_of_text(subject, NAME, empty=True):
        raise InvalidBudget(f"{scope}: {problem}")
    if bool(subject) == (scope == "tenant"):
        raise InvalidBudget("a tenant's budget has no subject" if subject else f"a budget of a {scope} says which")
    if not 0 < limit_pico <= MAX_PICO:
        raise InvalidMoney(f"a limit of {limit_pico} pico-units")
    rising = thresholds and list(thresholds) == sorted(set(thresholds))
    if not rising or not 0 < thresholds[0] <= thresholds[-1] <= _MOST_PERCENT:
        raise InvalidBudget(f"thresholds are percentages from 1 to {_MOST_PERCENT} in rising order, not {thresholds}")
