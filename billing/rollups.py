"""Hourly sums of events: written with them, read by reports, and checked against them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from operator import attrgetter
from typing import Any
from uuid import UUID

import msgspec
from sqlalchemy import ColumnElement, Label, Subquery, func, select

from billing.tables.money import rollup_hour, usage_event, usage_fact, usage_traits
from billing.usage import METERS, TRAITS, UsageEvent

HOUR = 3_600_000_000
LIMB = 10**9
"""A cost is summed as quotients and remainders by this, both with the sign of the cost."""

KEYS = tuple(column.name for column in rollup_hour.primary_key.columns)
SUMS = ("requests", *METERS, "cost_high", "cost_low")


class Rolled(msgspec.Struct, frozen=True):
    """What some events add to one row: its keys (`hour` is its first instant), and the sums in the order of SUMS."""

    tenant_id: UUID
    period: str
    hour: int
    project_id: UUID
    key_id: UUID
    model: str
    lane: str
    price_version: int
    context_from: int
    sums: list[int]

    @property
    def cost_pico(self) -> int:
        """What these events cost together."""
        return self.sums[_HIGH] * LIMB + self.sums[_LOW]


_AT = {name: at for at, name in enumerate(SUMS)}
_UNCACHED, _OUTPUT, _HIGH, _LOW = _AT["uncached"], _AT["output"], _AT["cost_high"], _AT["cost_low"]
_READ = {name.removeprefix("read_"): at for name, at in _AT.items() if name.startswith("read_")}
_WRITE = {name.removeprefix("write_"): at for name, at in _AT.items() if name.startswith("write_")}

# UUIDs by their numbers, which compare and hash at a fraction of the cost
_key = attrgetter(*(name + ".int" if name.endswith("_id") else name for name in KEYS if name != "hour"))


def event_groups(by: Sequence[str], *where: ColumnElement[bool], also: Sequence[Label[Any]] = ()) -> Subquery:
    """Events by the columns of `by`, with SUMS: to be summed again, since a group can be in several rows.

    `where` says which, and `also` by what else, both of `usage_fact`. They are grouped by the number of their traits,
    and joined with the words only then: there are some groups where there were millions of events.
    """
    of = usage_fact.c
    narrow = [of.traits, *(of[name] for name in by if name not in TRAITS)]
    inner = select(*narrow, *also, *(total.label(name) for name, total in event_sums(of).items()))
    groups = inner.where(*where).group_by(*narrow, *also).subquery()
    joined = select(
        *(usage_traits.c[name] if name in TRAITS else groups.c[name] for name in by),
        *(groups.c[name] for name in (*(label.name for label in also), *SUMS)),
    )
    return joined.join(usage_traits, usage_traits.c.id == groups.c.traits).subquery()


def event_sums(of: Any = usage_event.c) -> dict[str, ColumnElement[Any]]:
    """Each of SUMS as SQL over the columns of events: what a rollup of them says. An adjustment is no request."""
    return {
        "requests": func.count() - func.count(of.corrects),
        **{meter: func.sum(of[meter]) for meter in METERS},
        "cost_high": func.sum(of.cost_pico.op("/")(LIMB)),
        "cost_low": func.sum(of.cost_pico.op("%")(LIMB)),
    }


def roll_up(events: Iterable[UsageEvent]) -> list[Rolled]:
    """What these events add to the rollups, in an order that is the same for all who write them."""
    found: dict[tuple[Any, ...], tuple[UsageEvent, list[int]]] = {}
    for event in events:
        key = (*_key(event), event.admitted_at // HOUR)
        group = found.get(key)
        if group is None:
            group = found[key] = (event, [0] * len(SUMS))
        sums, usage, cost = group[1], event.usage, event.cost_pico
        sums[0] += event.corrects is None
        sums[_UNCACHED] += usage.uncached
        if usage.read:
            for name, tokens in usage.read.items():
                sums[_READ[name]] += tokens
        if usage.write:
            for name, tokens in usage.write.items():
                sums[_WRITE[name]] += tokens
        sums[_OUTPUT] += usage.output
        high, low = divmod(cost, LIMB) if cost >= 0 else (-(-cost // LIMB), -(-cost % LIMB))
        sums[_HIGH] += high
        sums[_LOW] += low
    return [
        Rolled(
            event.tenant_id,
            event.period,
            event.admitted_at - event.admitted_at % HOUR,
            event.project_id,
            event.key_id,
            event.model,
            event.lane,
            event.price_version,
            event.context_from,
            sums,
        )
        for _, (event, sums) in sorted(found.items(), key=lambda group: group[0])
    ]
