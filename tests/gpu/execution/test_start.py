"""What a replica with the fused kernels does before there are requests."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from engine.execution.cuda.probe import Probe
from engine.execution.cuda.runner import CudaRunner
from tests.gpu.execution.fused_bench import fused_bench, small_model
from tests.gpu.execution.tally_model import TallyModel

TOKENS = 20


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_model(tmp_path_factory.mktemp("start") / "model")


@pytest.mark.parametrize("running", [4, 64, 65, 100, 200, 300, 400])
def test_steps_are_tried_at_every_count_of_rows_for_any_number_of_requests(model: Path, running: int) -> None:
    runner = fused_bench(model, running=running, budget=running + 64).engine.runner
    assert isinstance(runner, CudaRunner)
    tally = TallyModel(runner)
    probe = Probe(runner, TOKENS)
    probe.prefill([0])
    expected = torch.tensor(tally.expected(probe.tokens.tolist(), 1))
    assert runner.steps.counts[-1] >= running
    for count in (1, runner.steps.counts[-1]):
        logits = probe.decode(np.full(count, TOKENS - 1, np.int32))
        assert torch.equal(logits.argmax(-1).cpu(), expected.expand(count))
