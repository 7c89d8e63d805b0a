"""When sheets apply: standing prices follow each other, temporary ones come before them while they last."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from billing.prices.errors import OverlappingPrices


class Interval(msgspec.Struct, frozen=True):
    """An approved sheet applies from `effective_at` (included) to `effective_until` (excluded; None: standing)."""

    sheet: int
    effective_at: int
    effective_until: int | None


def in_force(intervals: Iterable[Interval], at: int) -> Interval | None:
    """The one that applies at an instant, of one book and model: a temporary one, else the standing one begun last."""
    found: Interval | None = None
    for interval in intervals:
        if interval.effective_at > at:
            continue
        if interval.effective_until is not None:
            if at < interval.effective_until:
                return interval
        elif found is None or interval.effective_at > found.effective_at:
            found = interval
    return found


def check_free(intervals: Iterable[Interval], effective_at: int, effective_until: int | None) -> None:
    """Raise OverlappingPrices if a new interval would leave two answers to the question what applies."""
    for other in intervals:
        if effective_until is None:
            overlaps = other.effective_until is None and other.effective_at == effective_at
        else:
            overlaps = (
                other.effective_until is not None
                and other.effective_at < effective_until
                and effective_at < other.effective_until
            )
        if overlaps:
            raise OverlappingPrices(
                f"price sheet {other.sheet} applies then already; withdraw it first, or choose another time"
            )
