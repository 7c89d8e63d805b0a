"""The test statistic against counting all orders, and against values from its tables."""

from __future__ import annotations

import itertools
import math
import random

import pytest

from turnpike.commands.audit.ks_test import smaller


def distance(order: tuple[bool, ...]) -> int:
    """The most by which the first sample leads, in steps, when values come in this order."""
    lead = most = 0
    for first in order:
        lead += 1 if first else -1
        most = max(most, lead)
    return most


@pytest.mark.parametrize("size", [1, 2, 4, 5])
def test_p_counts_the_orders_that_are_as_extreme(size: int) -> None:
    orders = [
        tuple(index in firsts for index in range(2 * size)) for firsts in itertools.combinations(range(2 * size), size)
    ]
    for order in orders:
        one = [index for index, first in enumerate(order) if first]
        two = [index for index, first in enumerate(order) if not first]
        found = smaller(one, two)
        assert found.distance == pytest.approx(distance(order) / size)
        assert found.p == pytest.approx(sum(distance(o) >= distance(order) for o in orders) / len(orders))


def test_samples_apart_are_as_improbable_as_can_be() -> None:
    assert smaller(range(15), range(20, 35)).p == pytest.approx(1 / math.comb(30, 15))
    assert smaller(range(250), range(300, 550)).p < 1e-140
    assert smaller(range(20, 35), range(15)).p == 1.0


def test_samples_of_one_distribution_are_not_detected() -> None:
    dice = random.Random(1)
    found = [smaller([dice.random() for _ in range(250)], [dice.random() for _ in range(250)]).p for _ in range(100)]
    assert min(found) > 1e-4
    assert sum(p < 0.05 for p in found) <= 12


def test_samples_of_other_sizes_and_ties() -> None:
    assert smaller([1.0] * 40, [1.0] * 60).p == 1.0
    assert smaller(range(100), range(90, 290)).p < 1e-8
    with pytest.raises(ValueError, match="without values"):
        smaller([], [1.0])
