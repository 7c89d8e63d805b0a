"""Steps are measured at start by a few of a model's layers, and cost what the whole model takes afterwards."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
import torch

from engine.scheduling.step_costs import MeasuredCosts
from engine.startup.calibration import calibrate
from tests.engine.conftest import Bench

ROW_S = 0.001
COMPILED_S = 5.0


@dataclass
class Clock:
    now: float = 0.0

    def __call__(self) -> float:
        return self.now


@dataclass
class TimedLayer:
    """A layer that takes `seconds`; the first time that a process computes so many rows it compiles its kernels."""

    layer: Callable[..., torch.Tensor]
    clock: Clock
    compiled: set[int]
    seconds: float = ROW_S

    def __call__(self, h: torch.Tensor, forward: object) -> torch.Tensor:
        self.clock.now += self.seconds + (COMPILED_S if len(h) not in self.compiled else 0.0)
        self.compiled.add(len(h))
        return self.layer(h, forward)


@dataclass
class SlowLayer(TimedLayer):
    """A layer of another kind, as a mixture of experts behind dense ones."""

    seconds: float = 10 * ROW_S
    parts: list[object] = field(default_factory=list)


@pytest.mark.parametrize(("dense", "slow"), [(24, 0), (3, 21), (1, 1)])
def test_the_first_steps_are_expected_to_take_what_they_take(bench: Bench, dense: int, slow: int):
    runner, clock, compiled = bench.engine.executor.runner, Clock(), set[int]()
    layer = runner.model.layers[0]
    runner.model.layers = [TimedLayer(layer, clock, compiled) for _ in range(dense)]
    runner.model.layers += [SlowLayer(layer, clock, compiled) for _ in range(slow)]
    costs = MeasuredCosts(6)
    calibrate(costs, runner, budget=200, max_running=6, clock=clock)
    took = (dense * ROW_S + slow * 10 * ROW_S) * 1e6
    assert costs.decode_time(1) == pytest.approx(took)
    assert costs.decode_time(6) == pytest.approx(took)
    assert costs.rates.uncached == pytest.approx(took / 200, rel=0.05)
