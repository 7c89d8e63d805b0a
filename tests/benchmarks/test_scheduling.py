"""A step's scheduling must not become an order of magnitude dearer unnoticed; the target itself is the benchmark's."""

from __future__ import annotations

from benchmarks.scheduling import measure


def test_a_step_of_256_running_requests_is_scheduled_in_a_few_milliseconds():
    assert measure(256, 60) < 5_000
