"""The chooser in the simulator: never much slower than the better of the two simple rules."""

import pytest

from benchmarks.fetch_simulator import compare


@pytest.mark.parametrize(
    "clients", [1, 4, pytest.param(16, marks=pytest.mark.slow), pytest.param(64, marks=pytest.mark.slow)]
)
def test_the_plan_is_never_much_slower_than_the_better_rule(clients: int) -> None:
    ratios = [compare(seed, clients, max(8, 40 // clients))["ratio"] for seed in range(8 if clients < 16 else 2)]
    assert max(ratios) <= 1.05
    assert min(ratios) < 0.9, "somewhere both together must be quicker"
