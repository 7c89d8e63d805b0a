"""Bytes and operations of steps, against sums by hand."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from engine.core.step_traffic import UNKNOWN_SIZE, ModelSize, StepTraffic
from protocol.replicas import LayerGroup

FULL = LayerGroup("full", (0, 1), 2, 16, 0, "float32", 64 * 512)
WINDOW = LayerGroup("window", (2,), 2, 16, 100, "float32", 64 * 256)


def work(start: int, count: int = 1) -> Any:
    return SimpleNamespace(start=start, count=count)


def test_a_step_reads_weights_once_and_each_requests_kv() -> None:
    traffic = StepTraffic(ModelSize(10_000, 50.0, ((FULL, 64),)))
    traffic.count([work(99), work(49)], 0.5)
    assert traffic.bytes == 8 * (10_000 + (100 + 50) * 512)
    assert traffic.operations == 8 * (2 * 50.0 + 4 * 64 * (99 + 49))
    assert traffic.seconds == 0.5


def test_a_window_bounds_what_is_read() -> None:
    traffic = StepTraffic(ModelSize(1, 0.0, ((WINDOW, 32),)))
    traffic.count([work(5000)], 0.5)
    assert traffic.bytes == 8 * (1 + 101 * 256)


def test_one_step_in_eight_is_looked_at_and_stands_for_all() -> None:
    traffic = StepTraffic(ModelSize(100, 0.0, ()))
    for _ in range(80):
        traffic.count([work(1)], 0.25)
    assert traffic.bytes == pytest.approx(80 * 100)
    assert traffic.seconds == 20.0


def test_a_model_of_unknown_size_has_seconds_alone() -> None:
    traffic = StepTraffic(UNKNOWN_SIZE)
    traffic.count([work(1)], 0.25)
    assert list(traffic.metrics().values()) == [0.25, 0.0, 0.0]
