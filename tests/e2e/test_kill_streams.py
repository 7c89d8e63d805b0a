"""kill -9 of a replica, or its stop, at random tokens of streams of random options: they go on at the other one.

More of it, in any number: `python -m benchmarks.continuations`.
"""

from __future__ import annotations

import os

import pytest

from benchmarks.continuations import is_right, run

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(900)]

BROKEN = int(os.environ.get("KILL_STREAMS", "4"))


@pytest.mark.alone  # its kills come while requests run
@pytest.mark.parametrize("how", [("kill", "stop")])
def test_broken_streams_are_the_same_as_unbroken_ones_and_cost_the_same(how: tuple[str, ...]) -> None:
    figures = run(broken=BROKEN, how=how, seed=3)
    assert is_right(figures), figures
    assert figures["broken"] >= BROKEN
