"""Which records the store gives up when it needs room: those of the least value, by a policy that can be replaced."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class RecordFacts:
    """What a policy may know of a record. Times are in seconds since the Unix epoch.

    `position`: tokens before the block, which say how dear it is to recompute. `uses`: reads since it was written, or
    since the replica started. `lease_until`: when the last lease on it ends, 0 without one.
    """

    size: int
    position: int
    tokens: int
    created: float
    last_used: float
    uses: int
    expires: float
    lease_until: float


class EvictionPolicy(Protocol):
    """Values records. Called from worker threads, a few hundred times for each eviction: it must be fast and pure."""

    def value(self, record: RecordFacts, now: float) -> float:
        """How much the store loses with this record, in any unit, per byte: the least value goes first."""


class SecondUse:
    """Least recently used first, records that were never read before all others, the end of a prefix before its
    beginning."""

    def value(self, record: RecordFacts, now: float) -> float:
        """As `EvictionPolicy.value`: seconds until now, negative, and far below for what was never used."""
        leased = record.lease_until > now
        age = record.last_used - now - record.position * 1e-6
        return age + (0.0 if record.uses else -1e9) + (1e9 if leased else 0.0)
