"""The cache savings statement: what prompt caching saved in a period, what was written and never read, and advice.

Everything follows from the period's own lines and from its hours in the rollups. Usage events do not name the prefix
that they wrote or read, so `unread` is a lower bound. A lease lives as long as its class says. So what was written in
an hour was never read if nothing of its class was read from then until its leases had ended; and no more of the written
tokens were read than tokens were read in all.

Advice is given by three rules, each with the amount that it is worth:

- Never read: from 20 % of the written tokens on.
- At a loss: writing costs `write_extra` more than plain input, and reading everything once saves `once_read`. Caching
  pays from `write_extra / once_read` reads of each written token on.
- A shorter class: what the same writes would have cost in the shortest class, and how many tokens may miss and be
  written again until that is used up. The events do not say how many would have missed, so the number is given.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from uuid import UUID

import msgspec
from sqlalchemy import func, or_, select

from billing.calendar import period_bounds
from billing.events.rollups import HOUR
from billing.invoices.document import ClassSavings, ModelSavings, Savings
from billing.money import format_grouped, format_minor, minor_unit, round_half_up
from billing.prices import PriceMissing, PriceVersion
from billing.rating.lines import RatedLine
from billing.tables.money import rollup_hour
from billing.usage import LEASE_CLASSES
from storage.database.database import Database

MOST_ADVICE = 6
"""Sentences of advice on a statement: those that are worth most."""
SHORTEST = LEASE_CLASSES[0]
_UNREAD_PERCENT = 20
_METERS = tuple(f"{kind}_{name}" for kind in ("read", "write") for name in LEASE_CLASSES)
_REACH = {"5m": 2, "30m": 2, "1h": 2, "12h": 13, "24h": 25}
"""Class → hours after the hour of a request's admission in which what it wrote may first be read.

It is the class's length, for a request that runs for at most an hour.
"""


class CacheHour(msgspec.Struct, frozen=True):
    """Tokens read and written in one hour by one project's requests to one model, by class, at one set of prices."""

    project_id: UUID
    model: str
    lane: str
    context_from: int
    price_version: int
    hour: int
    """Counted from the period's first hour, which is 0."""
    read: dict[str, int]
    written: dict[str, int]


async def read_cache_hours(database: Database, tenant_id: UUID, period: str) -> list[CacheHour]:
    """The period's own hours in which a lease was read or written. Raises InvalidPeriod, DatabaseUnavailable."""
    rollup = rollup_hour.c
    start, end = period_bounds(period)
    keys = (rollup.project_id, rollup.model, rollup.lane, rollup.context_from, rollup.price_version, rollup.hour)
    query = (
        select(*keys, *(func.sum(rollup[meter]).label(meter) for meter in _METERS))
        .where(rollup.tenant_id == tenant_id, rollup.period == period, rollup.hour >= start, rollup.hour < end)
        .where(or_(*(rollup[meter] != 0 for meter in _METERS)))
        .group_by(*keys)
        .order_by(*keys)
    )
    async with database.reading() as session:
        return [_cache_hour(row, start) for row in await session.execute(query)]


def _cache_hour(row: Any, period_start: int) -> CacheHour:
    def tokens(kind: str) -> dict[str, int]:
        return {name: int(value) for name in LEASE_CLASSES if (value := getattr(row, f"{kind}_{name}"))}

    hour = (row.hour - period_start) // HOUR
    keys = (row.project_id, row.model, row.lane, row.context_from, row.price_version, hour)
    return CacheHour(*keys, tokens("read"), tokens("write"))


def savings_statement(
    lines: Iterable[RatedLine],
    versions: Mapping[int, PriceVersion],
    hours: Sequence[CacheHour] = (),
    last_hour: int = 0,
    projects: Mapping[UUID, str] | None = None,
) -> Savings:
    """What caching saved, by model and by project, model and class; without advice.

    By model: the same lines with each prompt token at the uncached price of its version, lane and context tier.
    Corrections are left out, since they are usage of another period. `last_hour` is the period's last hour: what may
    still be read after it is not counted as unread. `projects` are names by id.
    """
    models: dict[str, dict[str, int]] = defaultdict(lambda: defaultdict(int))
    for line in lines:
        if line.kind != "usage" or line.corrects_period or not (line.model and line.meter and line.price_version):
            continue
        sums = models[line.model]
        sums["cost"] += line.exact_pico
        if line.meter == "output":
            sums["uncached"] += line.exact_pico
            continue
        version = versions[line.price_version]
        sums["uncached"] += line.units * version.price("uncached", line.lane or "standard", line.context_from)
        sums["prompt"] += line.units
        for prefix, name in (("read_", "read"), ("write_", "written")):
            if line.meter.startswith(prefix):
                sums[name] += line.units
    names = ("prompt", "read", "written", "cost", "uncached")
    return Savings(
        models=[
            ModelSavings(model=model, **{name: str(sums[name]) for name in names})
            for model, sums in sorted(models.items())
        ],
        classes=_class_savings(hours, versions, last_hour, projects or {}),
    )


class _ClassUse:
    """What one project's requests to one model read and wrote in one class, by hour, with what that cost."""

    def __init__(self) -> None:
        self.read: dict[int, int] = defaultdict(int)
        self.written: dict[int, int] = defaultdict(int)
        self.sums: dict[str, int] = defaultdict(int)

    def add(self, name: str, hour: CacheHour, version: PriceVersion) -> None:
        read, written = hour.read.get(name, 0), hour.written.get(name, 0)
        self.read[hour.hour] += read
        self.written[hour.hour] += written

        def price(meter: str) -> int | None:
            try:
                return version.price(meter, hour.lane, hour.context_from)
            except PriceMissing:
                return None

        uncached, reading, writing = (price(meter) or 0 for meter in ("uncached", f"read_{name}", f"write_{name}"))
        self.sums["read_saved"] += read * (uncached - reading)
        self.sums["write_cost"] += written * writing
        self.sums["write_extra"] += written * (writing - uncached)
        self.sums["once_read"] += written * (uncached - reading)
        shorter = price(f"write_{SHORTEST}")
        self.sums["shorter_cost"] += written * (writing if shorter is None else shorter)
        self.sums["again"] += written * ((writing if shorter is None else shorter) - reading)

    def unread(self, name: str, last_hour: int) -> int:
        """Written tokens that were certainly never read."""
        never = perhaps = 0
        for hour, tokens in self.written.items():
            until = hour + _REACH[name]
            if until > last_hour:
                continue  # may be read in the next period
            if any(self.read.get(later, 0) > 0 for later in range(hour, until + 1)):
                perhaps += tokens
            else:
                never += tokens
        return max(0, never) + max(0, perhaps - sum(self.read.values()))


def _class_savings(
    hours: Sequence[CacheHour], versions: Mapping[int, PriceVersion], last_hour: int, projects: Mapping[UUID, str]
) -> list[ClassSavings]:
    uses: dict[tuple[UUID, str, str], _ClassUse] = defaultdict(_ClassUse)
    for hour in hours:
        for name in LEASE_CLASSES:
            if (name in hour.read or name in hour.written) and hour.price_version in versions:
                uses[hour.project_id, hour.model, name].add(name, hour, versions[hour.price_version])
    in_order = sorted(uses.items(), key=lambda item: (item[0][0].int, item[0][1], LEASE_CLASSES.index(item[0][2])))
    statements = []
    for (project, model, name), use in in_order:
        written = sum(use.written.values())
        unread = min(max(written, 0), use.unread(name, last_hour))
        sums = use.sums
        figures = {
            "read": sum(use.read.values()),
            "written": written,
            "unread": unread,
            "unread_cost": unread * sums["write_cost"] // written if unread else 0,
            "unread_extra": unread * sums["write_extra"] // written if unread else 0,
        } | {field: sums[field] for field in _SUMS}
        texts = {field: str(value) for field, value in figures.items()}
        project_name = projects.get(project, str(project))
        statements.append(ClassSavings(project_id=str(project), project=project_name, model=model, name=name, **texts))
    return statements


_SUMS = ("read_saved", "write_cost", "write_extra", "once_read", "shorter_cost", "again")


def cache_advice(classes: Iterable[ClassSavings], currency: str) -> list[str]:
    """At most MOST_ADVICE sentences, the most valuable first; none that is worth less than a minor unit."""
    found = [
        piece
        for savings in classes
        for piece in (_never_read(savings, currency) or _at_a_loss(savings, currency), _shorter(savings, currency))
        if piece is not None
    ]
    worth = [(pico, text) for pico, text in found if round_half_up(pico, minor_unit(currency)) > 0]
    return [text for _, text in sorted(worth, key=lambda piece: -piece[0])[:MOST_ADVICE]]


def savings_summary(savings: Savings, currency: str) -> list[str]:
    """The statement in a few lines of text; none if nothing was cached."""
    sums = {name: sum(int(getattr(model, name)) for model in savings.models) for name in ("prompt", "read", "written")}
    if not (sums["read"] or sums["written"]):
        return []
    share = round_half_up(sums["read"] * 1000, sums["prompt"]) if sums["prompt"] else 0
    lines = [
        f"cache: saved {_money(saved_pico(savings.models), currency)}; "
        f"{share // 10}.{share % 10} % of the prompt tokens were read from it"
    ]
    if unread := sum(int(use.unread) for use in savings.classes):
        cost = _money(sum(int(use.unread_cost) for use in savings.classes), currency)
        lines.append(f"cache: at least {unread:,} of {sums['written']:,} written tokens were never read ({cost})")
    return lines + [f"advice: {text}" for text in savings.advice]


def saved_pico(models: Iterable[ModelSavings]) -> int:
    """What the cache saved for these models, in pico-units. Each page rounds this sum once."""
    return sum(int(model.uncached) - int(model.cost) for model in models)


def class_in_words(name: str) -> str:
    """How long a class lives: "5m" → "5 min"."""
    return f"{name[:-1]} {'min' if name.endswith('m') else 'h'}"


def _never_read(use: ClassSavings, currency: str) -> tuple[int, str] | None:
    unread, written, extra = int(use.unread), int(use.written), int(use.unread_extra)
    if unread * 100 < written * _UNREAD_PERCENT or extra <= 0:
        return None
    return extra, (
        f"{use.project}, {use.model}: at least {unread:,} of the {written:,} tokens written for "
        f"{class_in_words(use.name)} ({unread * 100 // written} %) were never read. Writing them cost "
        f"{_money(int(use.unread_cost), currency)}, {_money(extra, currency)} more than plain input: mark for caching "
        "only what is sent again in time."
    )


def _at_a_loss(use: ClassSavings, currency: str) -> tuple[int, str] | None:
    loss = int(use.write_extra) - int(use.read_saved)
    written, once = int(use.written), int(use.once_read)
    if loss <= 0 or written <= 0 or once <= 0:
        return None
    return loss, (
        f"{use.project}, {use.model}: caching for {class_in_words(use.name)} cost {_money(loss, currency)} more than "
        f"it saved. Each written token was read {_times(int(use.read), written)} times; it pays from "
        f"{_times(int(use.write_extra), once, up=True)} times on."
    )


def _shorter(use: ClassSavings, currency: str) -> tuple[int, str] | None:
    saved = int(use.write_cost) - int(use.shorter_cost)
    read, again = int(use.read), int(use.again)
    if use.name == SHORTEST or saved <= 0 or read <= 0 or again <= 0:
        return None
    spare = saved * int(use.written) // again
    start = (
        f"{use.project}, {use.model}: written for {class_in_words(SHORTEST)} instead of {class_in_words(use.name)}, "
        f"the same {int(use.written):,} tokens would have cost {_money(saved, currency)} less. "
    )
    if spare >= read:
        return saved, f"{start}That pays even if none of the {read:,} tokens read had been there any more."
    return saved, (
        f"{start}That pays if at most {spare:,} of the {read:,} tokens read came later than "
        f"{class_in_words(SHORTEST)} after their last use."
    )


def _money(pico: int, currency: str) -> str:
    minor = round_half_up(pico, minor_unit(currency))
    if pico > 0 and not minor:
        return f"less than {currency} {format_minor(1, currency)}"
    return f"{currency} {format_grouped(minor, currency)}"


def _times(part: int, whole: int, *, up: bool = False) -> str:
    hundredths = -(-part * 100 // whole) if up else part * 100 // whole
    return f"{hundredths // 100}.{hundredths % 100:02d}"
