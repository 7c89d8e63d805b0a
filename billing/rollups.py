"""Hourly sums of events: written with them, read by reports, and checked against them."""

from __future__ import annotations

from collections.abc import Iterable
from operator import attrgetter
from typing import Any
from uuid import UUID

import msgspec
from sqlalchemy import ColumnElement, func

from billing.tables import rollup_hour, usage_event
from billing.usage import METERS, UsageEvent

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


def event_sums() -> dict[str, ColumnElement[Any]]:
    """Each of SUMS as SQL over the events: what a rollup of them says."""
    of = usage_event.c
    return {
        "requests": func.count(),
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
        sums[0] += 1
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
