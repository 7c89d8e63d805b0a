"""The one-sided two-sample Kolmogorov-Smirnov test: are the values of one sample smaller than those of another?

Source: N. V. Smirnov (1939); for samples of equal size the p-value is exact, by counting lattice paths (B. V. Gnedenko,
V. S. Korolyuk, 1951). Between equal values it is never too small.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence

from msgspec import Struct


class KsTest(Struct, frozen=True):
    """`distance`: the most by which the first sample's distribution function is above the second's. `p`: how probable
    so much is at least if both are drawn from one distribution."""

    distance: float
    p: float


def smaller(first: Sequence[float], second: Sequence[float]) -> KsTest:
    """Test whether the first sample's values are smaller. Raises ValueError for an empty sample."""
    if not first or not second:
        raise ValueError("a sample without values")
    one, two = sorted(first), sorted(second)
    n, m = len(one), len(two)
    # integers, so that the greatest distance is exact
    lead = max(0, *(bisect_right(one, value) * m - bisect_right(two, value) * n for value in one))
    if n == m:
        steps = lead // n
        p = math.comb(2 * n, n - steps) / math.comb(2 * n, n)
    else:
        p = math.exp(-2.0 * lead * lead / (n * m * (n + m)))
    return KsTest(lead / (n * m), min(1.0, p))
