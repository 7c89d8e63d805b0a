"""Usage events as columns: what settling does to each of them, it does to a whole batch at once.

A batch has hundreds to thousands of events. Recomputing costs, summing for rollups and writing rows for COPY one event
at a time would cost more than the database does; on arrays each costs a fraction of a microsecond. Every array is of
64-bit integers, so that nothing is rounded; what might not fit is left to Python's own.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from functools import cached_property
from itertools import count
from struct import Struct
from typing import TypeAlias, TypeVar
from uuid import UUID
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import select

from billing.tables.money import usage_traits
from billing.usage import DIMENSIONS, LEASE_CLASSES, METERS, UsageEvent
from storage.database.database import Database

EventDimensions: TypeAlias = tuple[str, ...]
"""The values of DIMENSIONS, in their order."""


def event_dimensions(events: Iterable[UsageEvent]) -> list[EventDimensions]:
    """The dimensions of each event."""
    return [(e.model, e.model_digest, e.lane, e.status, e.reason, e.delivery, e.source, e.replica) for e in events]


_known: WeakKeyDictionary[Database, dict[EventDimensions, int]] = WeakKeyDictionary()
"""Each database → dimensions → their id, as far as this process knows."""


async def dimension_ids(database: Database, kinds: Iterable[EventDimensions]) -> dict[EventDimensions, int]:
    """The ids of at least these dimensions; those that have none get one. Raises DatabaseUnavailable."""
    known = _known.setdefault(database, {})
    missing = set(kinds) - known.keys()
    if missing:
        rows = [dict(zip(DIMENSIONS, values, strict=True)) for values in sorted(missing)]
        async with database.transaction() as session:
            await session.execute(database.insert(usage_traits).on_conflict_do_nothing(), rows)
        async with database.reading() as session:
            known |= {tuple(row[1:]): row[0] for row in await session.execute(_ALL)}
    return known


_ALL = select(usage_traits.c.id, *(usage_traits.c[name] for name in DIMENSIONS))


Numbers: TypeAlias = NDArray[np.int64]
Bytes: TypeAlias = NDArray[np.uint8]
Owner: TypeAlias = tuple[int, int, int, str]
"""Tenant, project and key, each as the number that its UUID is, and the period."""
Key = TypeVar("Key")

_NAMES = (
    "price_version", "context_from", "admitted_at", "finished_at", "sequence", "attempt", "cost_pico",
    "count_prompt", "count_computed", "count_read_hbm", "count_read_dram", "count_read_nvme", "count_output",
    "count_recomputed", "count_drafted", "count_accepted", "uncached", "output",
)  # fmt: skip
_pack = Struct(f"={len(_NAMES)}q").pack
_BLOCK = 1024
"""Events that are packed at once: their bytes are small enough for memory that is used over and over."""

_MOST = 2**63 - 1


class EventColumns:
    """A batch of n events as arrays, sorted by event id. Of events with the same id only the first is kept.

    `events`, `ids` (n × 16) and every array are in this order. `numbers` has an array of length n for each number
    column of `usage_fact`; meters that no event uses are left out. `kinds` has each combination of dimensions once, and
    `kind` the index of each event's combination. `owners` and `owner` are the same for tenant, project, key and period.
    """

    def __init__(self, events: Iterable[UsageEvent]) -> None:
        self.events, self.ids = _in_order(list(events))
        self.kinds, self.kind = _places(event_dimensions(self.events))
        blocks = (self.events[at : at + _BLOCK] for at in range(0, len(self.events), _BLOCK))
        packed = b"".join([_packed(block) for block in blocks])
        table = np.frombuffer(packed, np.int64).reshape(len(self.events), len(_NAMES))
        self.numbers: dict[str, Numbers] = dict(zip(_NAMES, table.T, strict=True))
        self.owners, self.owner = _places(
            [(e.tenant_id.int, e.project_id.int, e.key_id.int, e.period) for e in self.events]
        )
        usages = [event.usage for event in self.events]
        for kind, by_class in (
            ("read", [usage.read for usage in usages]),
            ("write", [usage.write for usage in usages]),
        ):
            used = set().union(*by_class)
            for name in ("automatic", *LEASE_CLASSES):
                if name in used:
                    self.numbers[f"{kind}_{name}"] = np.array([tokens.get(name, 0) for tokens in by_class], np.int64)

    def __len__(self) -> int:
        return len(self.events)

    @property
    def meters(self) -> list[str]:
        """The meters of which any event may have tokens, in the order of METERS."""
        return [meter for meter in METERS if meter in self.numbers]

    @cached_property
    def correcting(self) -> NDArray[np.bool_]:
        """Whether each event corrects another."""
        return np.array([event.corrects is not None for event in self.events], np.bool_)


def _packed(events: Sequence[UsageEvent]) -> bytes:
    """The numbers of _NAMES, event by event. Attributes that are named here cost a third of what an attrgetter's do:
    the interpreter remembers where they are."""
    return b"".join(
        [
            _pack(
                e.price_version, e.context_from, e.admitted_at, e.finished_at, e.sequence, e.attempt, e.cost_pico,
                (c := e.counts).prompt, c.computed, c.read_hbm, c.read_dram, c.read_nvme, c.output,
                c.recomputed, c.drafted, c.accepted, (u := e.usage).uncached, u.output,
            )
            for e in events
        ]
    )  # fmt: skip


def _in_order(events: list[UsageEvent]) -> tuple[list[UsageEvent], Bytes]:
    """The first event of each id, in the order of their ids; and the ids (n × 16)."""
    ids = as_bytes([event.id for event in events])
    high, low = ids.view(">u8").astype(np.uint64).T
    order = np.lexsort((low, high))
    ids = ids[order]
    first = np.ones(len(events), np.bool_)
    first[1:] = (ids[1:] != ids[:-1]).any(axis=1)
    return [events[place] for place in order[first].tolist()], ids[first]


def _places(keys: list[Key]) -> tuple[list[Key], Numbers]:
    """Each key once, and where each is there."""
    places: defaultdict[Key, int] = defaultdict(count().__next__)
    found = np.fromiter(map(places.__getitem__, keys), np.int64, len(keys))
    return list(places), found


def as_bytes(ids: Sequence[UUID]) -> Bytes:
    """UUIDs as their bytes (n × 16)."""
    return np.frombuffer(b"".join([one.bytes for one in ids]), np.uint8).reshape(len(ids), 16)


def groups(keys: Sequence[Numbers]) -> tuple[Numbers, Numbers]:
    """The n places, those with equal keys together and otherwise in their order; and where in that each group begins.

    Each key is an array of n, n > 0.
    """
    ranks, most = np.zeros(len(keys[0]), np.int64), 1
    for key in keys:
        if (key == key[0]).all():
            continue
        distinct, places = np.unique(key, return_inverse=True)
        if most * len(distinct) > _MOST:
            lower, ranks = np.unique(ranks, return_inverse=True)
            most = len(lower)
        ranks, most = ranks * len(distinct) + places, most * len(distinct)
    order = np.argsort(ranks, kind="stable")
    ranks = ranks[order]
    return order, np.flatnonzero(np.concatenate(([True], ranks[1:] != ranks[:-1])))
