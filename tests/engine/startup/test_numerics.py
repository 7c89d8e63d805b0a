"""The numerics id is the same after a restart, and another one where the self-test has chosen otherwise."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from engine.execution.model_runner import ModelRunner
from engine.startup.numerics import numerics_id
from tests.engine.conftest import make_bench


def test_it_does_not_change_while_requests_run_or_from_start_to_start(tiny_model: Path) -> None:
    first = make_bench(tiny_model, many_threads=2).engine.executor.runner
    before = numerics_id(first, "auto")
    first.threads.begin(300)
    assert numerics_id(first, "auto") == before
    assert numerics_id(make_bench(tiny_model, many_threads=2).engine.executor.runner, "auto") == before


@pytest.mark.parametrize(
    "fall_back",
    [
        lambda runner: runner.threads.fix(1),
        lambda runner: setattr(runner.tiling, "row_tile", 64),
        lambda runner: setattr(runner, "fused_attention", not runner.fused_attention),
        lambda runner: setattr(runner, "prefill_tile", runner.prefill_tile // 2),
    ],
)
def test_another_fallback_is_another_id(tiny_model: Path, fall_back: Callable[[ModelRunner], None]) -> None:
    runner = make_bench(tiny_model, many_threads=2).engine.executor.runner
    before = numerics_id(runner, "auto")
    fall_back(runner)
    assert numerics_id(runner, "auto") != before
    assert numerics_id(runner, "fp8") != numerics_id(runner, "auto")
