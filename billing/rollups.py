"""Hourly sums of events: written with them, read by reports, and checked against them."""

from __future__ import annotations

from typing import Any

from sqlalchemy import ColumnElement, func

from billing.tables import rollup_hour, usage_event
from billing.usage import METERS, UsageEvent

HOUR = 3_600_000_000
LIMB = 10**9
"""A cost is summed as quotients and remainders by this."""

KEYS = tuple(column.name for column in rollup_hour.primary_key.columns)
SUMS = ("requests", *METERS, "cost_high", "cost_low")


def event_sums() -> dict[str, ColumnElement[Any]]:
    """Each of SUMS as SQL over the events: what a rollup of them says."""
    of = usage_event.c
    return {
        "requests": func.count(),
        **{meter: func.sum(of[meter]) for meter in METERS},
        "cost_high": func.sum(of.cost_pico.op("/")(LIMB)),
        "cost_low": func.sum(of.cost_pico.op("%")(LIMB)),
    }


def roll_up(events: list[UsageEvent]) -> list[dict[str, object]]:
    """The rows that these events add to the rollups, in the order of their keys."""
    sums: dict[tuple[Any, ...], list[int]] = {}
    for event in events:
        hour = event.admitted_at - event.admitted_at % HOUR
        key = (event.tenant_id, event.period, hour, event.project_id, event.key_id, event.model, event.lane,
               event.price_version, event.context_from)  # fmt: skip
        added = (1, *event.usage.meters().values(), event.cost_pico // LIMB, event.cost_pico % LIMB)
        found = sums.get(key)
        sums[key] = list(added) if found is None else [a + b for a, b in zip(found, added, strict=True)]
    return [dict(zip((*KEYS, *SUMS), (*key, *total), strict=True)) for key, total in sorted(sums.items())]
