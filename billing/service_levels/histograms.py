"""Histograms of durations in whole microseconds, whose buckets are a factor of √2 apart.

A quantile is exact but for its bucket: the answer is the upper bound of the bucket, at most 1.42 times the true value.
Histograms of the same buckets are added up without any further error.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from math import isqrt

BUCKETS = 42
_FIRST_US = 1000
BOUNDS = tuple(isqrt(_FIRST_US * _FIRST_US << place) for place in range(BUCKETS))
"""The upper bound of each bucket, from a millisecond to 24 minutes; the last one has all that is longer, too."""


def bucket_of(microseconds: int) -> int:
    """The bucket of a duration."""
    return min(BUCKETS - 1, bisect_left(BOUNDS, microseconds))


def quantile(counts: Mapping[int, int], thousandths: int) -> int | None:
    """The duration that so many thousandths of what was counted did not exceed, in microseconds, rounded up to the
    bound of its bucket; None if nothing was counted. `counts`: by bucket."""
    total = sum(counts.values())
    if total <= 0:
        return None
    wanted = -(-total * thousandths // 1000)
    seen = 0
    for bucket in sorted(counts):
        seen += counts[bucket]
        if seen >= wanted:
            return BOUNDS[bucket]
    return BOUNDS[max(counts)]


def added(one: Mapping[int, int], other: Mapping[int, int]) -> dict[int, int]:
    """Both histograms together."""
    return {bucket: one.get(bucket, 0) + other.get(bucket, 0) for bucket in {*one, *other}}
