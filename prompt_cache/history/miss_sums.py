"""Missed tokens by cause over days, projects and models, and how much could have been read at all."""

from __future__ import annotations

from collections.abc import Collection
from uuid import UUID

import msgspec
from sqlalchemy import func, select

from prompt_cache.history.diagnosis import CAUSES, Cause
from prompt_cache.tables import cache_day, cache_history_day
from storage.database.database import Database
from storage.database.sql_arrays import one_of

READ = "read"
UNREACHABLE: frozenset[Cause] = frozenset({"cold", "diverged", "below_minimum", "block_rest"})
"""Causes of tokens that no cache could have read for these very prompts: nobody had sent them before, or so few of them
that nothing is kept. All others were there, or could have been, if requests or the cache had done otherwise."""
_COSTS = 10**9
"""Costs are summed as quotients and remainders by this, so that no sum overflows."""


class CauseSums(msgspec.Struct, frozen=True):
    """Tokens that missed because of `cause`, in how many requests, and what they cost beyond reading them, by currency
    in pico-units."""

    cause: Cause
    requests: int
    tokens: int
    cost_pico: dict[str, int]


class MissSums(msgspec.Struct, frozen=True):
    """The causes, those that cost most first. `read` tokens were read; `left_out` requests were not looked at, since
    their project's history of the day was full."""

    causes: list[CauseSums]
    read: int
    left_out: int

    @property
    def diagnosed(self) -> int:
        """Tokens of prompts of which the history says what became of them."""
        return self.read + sum(one.tokens for one in self.causes)

    @property
    def reachable(self) -> int:
        """Those of them that were read, or could have been."""
        return self.read + sum(one.tokens for one in self.causes if one.cause not in UNREACHABLE)


async def miss_sums(
    database: Database,
    tenant_id: UUID,
    first: str,
    last: str,
    *,
    projects: Collection[UUID] | None = None,
    models: Collection[str] | None = None,
) -> MissSums:
    """The sums of a tenant from one day to another (UTC, such as 2026-11-22), of some projects and models; None: of
    all. Raises DatabaseUnavailable."""
    of, kept = cache_day.c, cache_history_day.c
    wanted = [of.tenant_id == tenant_id, of.day >= first, of.day <= last]
    days = [kept.tenant_id == tenant_id, kept.day >= first, kept.day <= last]
    if projects is not None:
        wanted.append(one_of(database, of.project_id, projects))
        days.append(one_of(database, kept.project_id, projects))
    if models is not None:
        wanted.append(one_of(database, of.model, models))
    parts = (of.cost_pico.op("/")(_COSTS), of.cost_pico.op("%")(_COSTS))
    sums = (func.sum(of.requests), func.sum(of.tokens), *(func.sum(part) for part in parts))
    query = select(of.cause, of.currency, *sums).where(*wanted).group_by(of.cause, of.currency)
    async with database.reading() as session:
        rows = (await session.execute(query)).all()
        left_out = await session.scalar(select(func.sum(kept.left_out)).where(*days))
    found: dict[str, CauseSums] = {}
    for cause, currency, requests, tokens, high, low in rows:
        before = found.get(cause) or CauseSums(cause, 0, 0, {})
        cost = int(high) * _COSTS + int(low)
        costs = before.cost_pico | ({currency: before.cost_pico.get(currency, 0) + cost} if cost else {})
        found[cause] = CauseSums(cause, before.requests + int(requests), before.tokens + int(tokens), costs)
    read = found.pop(READ, None)
    order = {cause: place for place, cause in enumerate(CAUSES)}
    causes = sorted(
        found.values(), key=lambda one: (-sum(one.cost_pico.values()), -one.tokens, order.get(one.cause, len(order)))
    )
    return MissSums(causes, 0 if read is None else read.tokens, int(left_out or 0))
