"""Rate limits while Redis is away: each worker keeps its share of every limit, times 1.2, in buckets of its own.

The buckets begin at what Redis last said was left, so that all workers together allow at most a fifth more than Redis
would have. Of a limit smaller than the number of workers, as many of them as it says have one, the first by name, and
the others nothing. When Redis is back, it is charged with what was used meanwhile and would not have been refilled by
then.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable
from uuid import UUID

from msgspec.structs import replace

from gateway.limits.memory_buckets import MemoryBuckets, monotonic_us
from gateway.limits.operations import (
    MICRO,
    UNLIMITED,
    Bounds,
    Charge,
    Levels,
    Operation,
    Renew,
    Reserve,
    Settle,
    Subjects,
    Verdict,
)

_EXTRA = 6, 5
"""A worker's share of a limit is multiplied by this fraction, since the workers are not equally busy."""
_SUBJECTS = 10_000
_ROOM = 10
"""A limit of which one part in so many is left has room."""
_MINUTE_US = 60 * MICRO


class _Used:
    """What was taken from a subject's own buckets here, leaking away as Redis' buckets fill."""

    __slots__ = ("at", "bounds", "levels", "tenant")

    def __init__(self, tenant: UUID, bounds: Bounds, now: int) -> None:
        self.tenant = tenant
        self.bounds = bounds
        self.levels = [0, 0, 0]
        self.at = now

    def leak(self, workers: int, now: int) -> None:
        elapsed, self.at = now - self.at, now
        for meter in range(3):
            limit = max(0, self.bounds.per_minute(meter))
            self.levels[meter] = max(0, self.levels[meter] - elapsed * limit // (60 * workers))


class Outage:
    """The limits of one worker while Redis is away. `workers`: how many lived when Redis was last asked; `rank`: how
    many of them come before this one."""

    def __init__(self, lease_us: int, keep_us: int, clock: Callable[[], int] = monotonic_us) -> None:
        self.workers, self.rank = 1, 0
        self.active = False
        self._clock = clock
        self._buckets = MemoryBuckets(lease_us, keep_us, clock)
        self._seen: OrderedDict[str, tuple[int, Levels]] = OrderedDict()
        """Subject -> when Redis last said what it has left, and that."""
        self._used: dict[str, _Used] = {}

    def saw(self, subjects: Subjects, levels: Iterable[Levels]) -> None:
        """Remember what Redis says is left."""
        now = self._clock()
        for bounds, level in zip(subjects, levels, strict=True):
            self._seen[bounds.subject] = (now, level)
            self._seen.move_to_end(bounds.subject)
            if len(self._seen) > _SUBJECTS:
                self._seen.popitem(last=False)

    def saw_room(self, subjects: Subjects) -> bool:
        """Whether Redis last said that each of these has a tenth of its limits left, so that it will hardly refuse the
        next request."""
        return all(
            (seen := self._seen.get(bounds.subject)) is not None and _has_room(bounds, seen[1]) for bounds in subjects
        )

    def begin(self, running: Iterable[tuple[str, Subjects]]) -> None:
        """Redis is away. `running`: requests that have places."""
        self.active = True
        for request, subjects in running:
            self.run(Renew(request, subjects))

    def reserve(self, tenant: UUID, operation: Reserve) -> Verdict:
        """Take everything from the worker's share, or nothing."""
        for bounds in operation.subjects:
            self._seed(bounds)
        shares = self._shares(operation.subjects)
        for subject, share in enumerate(shares):
            if (meter := _without_any(share)) is not None:
                return Verdict(False, _MINUTE_US, subject, meter, self._buckets.levels(shares))
        verdict = self._buckets.reserve(replace(operation, subjects=shares))
        if verdict.allowed:
            taken = (MICRO, operation.input_tokens * MICRO, operation.output_tokens * MICRO)
            for bounds in operation.subjects:
                used = self._used.setdefault(bounds.subject, _Used(tenant, bounds, self._clock()))
                used.leak(self.workers, self._clock())
                used.levels = [before + more for before, more in zip(used.levels, taken, strict=True)]
        return verdict

    def run(self, operation: Settle | Renew) -> None:
        """Carry out what has no answer."""
        self._buckets.run(replace(operation, subjects=self._shares(operation.subjects)))

    def charges(self) -> list[tuple[UUID, Operation]]:
        """What Redis is to be charged with, should it answer now."""
        now = self._clock()
        charges: list[tuple[UUID, Operation]] = []
        for used in self._used.values():
            used.leak(self.workers, now)
            levels = tuple(
                0 if (limit := used.bounds.per_minute(meter)) == UNLIMITED else min(level, limit * MICRO)
                for meter, level in enumerate(used.levels)
            )
            if any(levels):
                charges.append((used.tenant, Charge(levels, (used.bounds,))))  # type: ignore[arg-type]
        return charges

    def end(self) -> None:
        """Redis is back, and was charged."""
        self.active = False
        self._used.clear()
        self._buckets.clear()

    def _seed(self, bounds: Bounds) -> None:
        seen = self._seen.get(bounds.subject)
        if seen is None:
            return
        elapsed = min(self._clock() - seen[0], _MINUTE_US)
        levels = (seen[1].requests, seen[1].input_tokens, seen[1].output_tokens)
        share = self._share(bounds)
        refilled = (
            0 if limit == UNLIMITED else _refilled(level, elapsed, limit) * share.per_minute(meter) // limit
            for meter, (level, limit) in enumerate(zip(levels, bounds.limits[:3], strict=True))
        )
        self._buckets.seed(share, tuple(refilled))  # type: ignore[arg-type]

    def _shares(self, subjects: Subjects) -> Subjects:
        return tuple(map(self._share, subjects))

    def _share(self, bounds: Bounds) -> Bounds:
        return Bounds(
            bounds.subject,
            *(limit if limit == UNLIMITED else self._share_of(limit) for limit in bounds.limits),
        )

    def _share_of(self, limit: int) -> int:
        of_all = limit * _EXTRA[0] // _EXTRA[1]
        return of_all // self.workers if of_all >= self.workers else int(self.rank < limit)


def _without_any(share: Bounds) -> int | None:
    """The meter of which a share has nothing."""
    return next((meter for meter, limit in enumerate(share.limits) if limit == 0), None)


def _has_room(bounds: Bounds, left: Levels) -> bool:
    metered = (
        (bounds.requests, left.requests, MICRO),
        (bounds.input_tokens, left.input_tokens, MICRO),
        (bounds.output_tokens, left.output_tokens, MICRO),
        (bounds.concurrent, left.concurrent, 1),
    )
    return all(limit == UNLIMITED or level * _ROOM >= max(limit, _ROOM) * unit for limit, level, unit in metered)


def _refilled(level: int, elapsed: int, limit: int) -> int:
    """A level (millionths) after so many microseconds, at a limit a minute."""
    return min(level + elapsed * limit // 60, limit * MICRO)
