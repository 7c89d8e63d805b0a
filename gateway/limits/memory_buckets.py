"""The buckets in this process: what the Lua script does in Redis (`bucket_script.py`), with the same answers.

It serves an installation without Redis, and each gateway while Redis is away.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable

from gateway.limits.operations import (
    CONCURRENT,
    INPUT,
    MICRO,
    OUTPUT,
    PLACE_WAIT_US,
    REQUESTS,
    UNLIMITED,
    Bounds,
    Charge,
    Levels,
    Operation,
    Renew,
    Reserve,
    Settle,
    SettleInput,
    Subjects,
    Verdict,
    time_until,
)

_METERS = (REQUESTS, INPUT, OUTPUT)
_SUBJECTS = 100_000
"""Subjects that are remembered; the one unused for longest is forgotten, and its buckets are full again."""


def monotonic_us() -> int:
    """Microseconds of a clock that is never set."""
    return time.monotonic_ns() // 1000


class _Subject:
    """A subject's buckets, as (level, remainder in sixtieths of a micro-unit), and its places with their expiry."""

    __slots__ = ("at", "buckets", "places")

    def __init__(self, now: int) -> None:
        self.at = now
        self.buckets: list[tuple[int, int] | None] = [None, None, None]
        self.places: dict[str, int] = {}

    def refill(self, bounds: Bounds, now: int) -> None:
        """Bring the levels up to now, under these limits."""
        elapsed = max(0, now - self.at)
        for meter in _METERS:
            limit = bounds.per_minute(meter)
            bucket, full = self.buckets[meter], limit * MICRO
            if limit == UNLIMITED:
                self.buckets[meter] = None
                continue
            if bucket is None:
                bucket = (full, 0)
            elif elapsed:
                gained, rest = divmod(elapsed * limit + bucket[1], 60)
                bucket = (bucket[0] + gained, rest)
            self.buckets[meter] = bucket if bucket[0] < full else (full, 0)
        self.at = now

    def level(self, meter: int) -> int:
        """What a meter has left, in micro-units; 0 without a limit."""
        bucket = self.buckets[meter]
        return 0 if bucket is None else bucket[0]

    def add(self, bounds: Bounds, meter: int, amount: int) -> None:
        """Give micro-units to a meter that has a limit, or take them; never more than fit in."""
        bucket, full = self.buckets[meter], bounds.per_minute(meter) * MICRO
        if bucket is not None:
            level = bucket[0] + amount
            self.buckets[meter] = (level, bucket[1]) if level < full else (full, 0)

    def expire_places(self, now: int) -> None:
        """Free the places that were not renewed."""
        for request in [request for request, expiry in self.places.items() if expiry <= now]:
            del self.places[request]


class MemoryBuckets:
    """The buckets of all tenants. `lease_us`: microseconds of a place; `keep_us`: those of a reservation's record;
    `clock` gives microseconds."""

    def __init__(self, lease_us: int, keep_us: int, clock: Callable[[], int] = monotonic_us) -> None:
        self._lease = lease_us
        self._keep = keep_us
        self._clock = clock
        self._subjects: OrderedDict[str, _Subject] = OrderedDict()
        self._records: OrderedDict[str, tuple[int, int, int]] = OrderedDict()
        """request -> when its record expires, and its reserved input (-1: settled) and output."""

    def reserve(self, operation: Reserve) -> Verdict:
        """Take everything or nothing."""
        now, subjects = self._clock(), operation.subjects
        self._forget(now)
        if operation.request in self._records:
            return Verdict(True, 0, 0, 0, self._levels(subjects, now))
        needed = (MICRO, operation.input_tokens * MICRO, operation.output_tokens * MICRO)
        refusal = self._refusal(needed, subjects, now)
        if refusal is not None:
            return Verdict(False, *refusal, self._levels(subjects, now))
        for bounds in subjects:
            subject = self._subject(bounds, now)
            for meter in _METERS:
                subject.add(bounds, meter, -min(needed[meter], bounds.per_minute(meter) * MICRO))
        self._take_places(operation.request, subjects, now)
        if _counts_tokens(subjects):
            self._record(operation.request, operation.input_tokens, operation.output_tokens, now)
        return Verdict(True, 0, 0, 0, self._levels(subjects, now))

    def run(self, operation: Operation) -> Verdict | None:
        """Carry out an operation; only `Reserve` has an answer."""
        if isinstance(operation, Reserve):
            return self.reserve(operation)
        now = self._clock()
        match operation:
            case SettleInput():
                _, reserved, output = self._records.get(operation.request, (0, -1, 0))
                if reserved >= 0:
                    self._settle(operation.subjects, INPUT, reserved, operation.input_tokens, now)
                    self._record(operation.request, -1, output, now)
            case Settle():
                self._end(operation, now)
            case Renew():
                self._take_places(operation.request, operation.subjects, now)
            case Charge():
                self._charge(operation, now)
        return None

    def levels(self, subjects: Subjects) -> tuple[Levels, ...]:
        """What these subjects have left now."""
        return self._levels(subjects, self._clock())

    def seed(self, bounds: Bounds, levels: tuple[int, int, int]) -> None:
        """Let a subject that is not known here begin with these levels, in micro-units."""
        if bounds.subject not in self._subjects:
            subject = self._subject(bounds, self._clock())
            for meter in _METERS:
                subject.add(bounds, meter, levels[meter] - subject.level(meter))

    def clear(self) -> None:
        """Forget everything: all buckets are full, all places free."""
        self._subjects.clear()
        self._records.clear()

    # ------------------------------------------------------------ steps

    def _subject(self, bounds: Bounds, now: int) -> _Subject:
        subject = self._subjects.get(bounds.subject)
        if subject is None:
            subject = self._subjects[bounds.subject] = _Subject(now)
            if len(self._subjects) > _SUBJECTS:
                self._subjects.popitem(last=False)
        else:
            self._subjects.move_to_end(bounds.subject)
        subject.refill(bounds, now)
        return subject

    def _refusal(self, needed: tuple[int, ...], subjects: Subjects, now: int) -> tuple[int, int, int] | None:
        """What is to be waited for the longest, as (wait, subject, meter); None if there is enough of everything."""
        wait, found = 0, None
        for index, bounds in enumerate(subjects):
            subject = self._subject(bounds, now)
            for meter in _METERS:
                limit = bounds.per_minute(meter)
                if limit == UNLIMITED:
                    continue
                time_ = time_until(min(needed[meter], limit * MICRO) - subject.level(meter), limit)
                if time_ > wait:
                    wait, found = time_, (time_, index, meter)
            if bounds.concurrent != UNLIMITED:
                subject.expire_places(now)
                if len(subject.places) >= bounds.concurrent and wait < PLACE_WAIT_US:
                    wait, found = PLACE_WAIT_US, (PLACE_WAIT_US, index, CONCURRENT)
        return found

    def _take_places(self, request: str, subjects: Subjects, now: int) -> None:
        for bounds in subjects:
            if bounds.concurrent != UNLIMITED:
                subject = self._subject(bounds, now)
                subject.expire_places(now)
                subject.places[request] = now + self._lease

    def _settle(self, subjects: Subjects, meter: int, reserved: int, actual: int, now: int) -> None:
        for bounds in subjects:
            full = bounds.per_minute(meter) * MICRO
            self._subject(bounds, now).add(bounds, meter, min(reserved * MICRO, full) - actual * MICRO)

    def _end(self, operation: Settle, now: int) -> None:
        _, reserved, output = self._records.pop(operation.request, (0, -1, -1))
        if reserved >= 0:
            self._settle(operation.subjects, INPUT, reserved, operation.input_tokens, now)
        if output >= 0:
            self._settle(operation.subjects, OUTPUT, output, operation.output_tokens, now)
        for bounds in operation.subjects:
            if bounds.concurrent != UNLIMITED:
                self._subject(bounds, now).places.pop(operation.request, None)

    def _charge(self, operation: Charge, now: int) -> None:
        for bounds in operation.subjects:
            subject = self._subject(bounds, now)
            for meter in _METERS:
                level = subject.level(meter)
                subject.add(bounds, meter, max(min(level, 0), level - operation.levels[meter]) - level)

    def _levels(self, subjects: Subjects, now: int) -> tuple[Levels, ...]:
        found = []
        for bounds in subjects:
            subject = self._subject(bounds, now)
            free = 0
            if bounds.concurrent != UNLIMITED:
                subject.expire_places(now)
                free = max(0, bounds.concurrent - len(subject.places))
            found.append(Levels(subject.level(REQUESTS), subject.level(INPUT), subject.level(OUTPUT), free))
        return tuple(found)

    def _record(self, request: str, input_tokens: int, output_tokens: int, now: int) -> None:
        self._records[request] = (now + self._keep, input_tokens, output_tokens)
        self._records.move_to_end(request)

    def _forget(self, now: int) -> None:
        while self._records:
            oldest = next(iter(self._records))
            if self._records[oldest][0] > now:
                return
            del self._records[oldest]


def _counts_tokens(subjects: Subjects) -> bool:
    return any(bounds.input_tokens != UNLIMITED or bounds.output_tokens != UNLIMITED for bounds in subjects)
