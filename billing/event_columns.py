"""Usage events as columns: what settling does to each of them, it does to a whole batch at once.

A batch has hundreds to thousands of events. Recomputing costs, summing for rollups and writing rows for COPY one event
at a time would cost more than the database does; on arrays each costs a fraction of a microsecond. Every array is of
64-bit integers, so that nothing is rounded; what might not fit is left to Python's own.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property
from operator import attrgetter
from struct import Struct
from typing import TypeAlias, TypeVar
from uuid import UUID

import numpy as np
from numpy.typing import NDArray

from billing.traits import traits_of
from billing.usage import CLASSES, COUNTS, METERS, UsageEvent

Numbers: TypeAlias = NDArray[np.int64]
Bytes: TypeAlias = NDArray[np.uint8]
Owner: TypeAlias = tuple[int, int, int, str]
"""Tenant, project and key, each as the number that its UUID is, and the period."""
Key = TypeVar("Key")

_PLAIN = ("price_version", "context_from", "admitted_at", "finished_at", "sequence", "attempt", "cost_pico")
_NAMES = (*_PLAIN, *(f"count_{name}" for name in COUNTS), "uncached", "output")
_numbers = attrgetter(*_PLAIN, *(f"counts.{name}" for name in COUNTS), "usage.uncached", "usage.output")
_pack = Struct(f"={len(_NAMES)}q").pack
_id = attrgetter("id.int")
_owner = attrgetter("tenant_id.int", "project_id.int", "key_id.int", "period")

_MOST = 2**63 - 1


class EventColumns:
    """Events in the order of their ids, n of them; `events` and every array are in that order.

    `numbers` has an array of n by the name of each column of `usage_fact` that is a number, but for meters of which
    none of the events has any. `kinds` has each combination of traits once, and `kind` an event's place there; in the
    same way `owners` and `owner` say whose it is.
    """

    def __init__(self, events: Iterable[UsageEvent]) -> None:
        self.events = sorted(events, key=_id)
        self.kinds, self.kind = _places(list(map(traits_of, self.events)))
        packed = b"".join([_pack(*_numbers(event)) for event in self.events])
        table = np.frombuffer(packed, np.int64).reshape(len(self.events), len(_NAMES))
        self.numbers: dict[str, Numbers] = dict(zip(_NAMES, table.T, strict=True))
        self.owners, self.owner = _places(list(map(_owner, self.events)))
        usages = [event.usage for event in self.events]
        for kind, by_class in (
            ("read", [usage.read for usage in usages]),
            ("write", [usage.write for usage in usages]),
        ):
            used = {name for tokens in by_class for name in tokens}
            for name in ("automatic", *CLASSES):
                if name in used:
                    self.numbers[f"{kind}_{name}"] = np.array([tokens.get(name, 0) for tokens in by_class], np.int64)

    def __len__(self) -> int:
        return len(self.events)

    @property
    def meters(self) -> list[str]:
        """The meters of which any event may have tokens, in the order of METERS."""
        return [meter for meter in METERS if meter in self.numbers]

    @cached_property
    def ids(self) -> Bytes:
        """The ids (n × 16)."""
        return as_bytes([event.id for event in self.events])

    @cached_property
    def correcting(self) -> NDArray[np.bool_]:
        """Whether each event corrects another."""
        return np.array([event.corrects is not None for event in self.events], np.bool_)


def _places(keys: list[Key]) -> tuple[list[Key], Numbers]:
    """Each key once, and where each is there."""
    places = {key: place for place, key in enumerate(dict.fromkeys(keys))}
    return list(places), np.fromiter(map(places.__getitem__, keys), np.int64, len(keys))


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
