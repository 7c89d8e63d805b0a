"""The self-test at start: it holds on this machine, and falls back to the cheapest way that does."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from engine.execution.cpu_threads import Threads
from engine.execution.model_runner import ModelRunner
from engine.startup import self_test
from engine.startup.assembly import assemble
from engine.startup.options import ReplicaOptions
from engine.startup.self_test import ensure_batch_invariance
from tests.engine.conftest import VOCABULARY, Bench, generate, make_bench
from tests.machines import become


@pytest.mark.slow
def test_the_self_test_holds_and_its_fallback_too(tiny_model: Path, tmp_path: Path):
    bench = make_bench(tiny_model)
    assert ensure_batch_invariance(bench.engine.executor.runner, 256, 64, 2048)
    options = ReplicaOptions(tiny_model, "unix:x", tmp_path, "r", b"", device="cpu", kv_memory=1 << 20)
    engine = assemble(options).engine
    # The fallback's own path: row tiles and tiles of one token.
    engine.executor.runner.tiling.row_tile = engine.executor.runner.tiling.row_multiple = 8
    engine.executor.runner.prefill_tile = 1
    tokens = [7 * at % VOCABULARY for at in range(200)]
    tiled = Bench(engine).one(generate("tiled", tokens, 9))
    assert tiled.tokens == make_bench(tiny_model, budget=512).one(generate("alone", tokens, 9)).tokens


def test_tiles_are_the_last_thing_to_fall_back_to(tiny_model: Path, monkeypatch: pytest.MonkeyPatch):
    """And the only one where no kernel serves."""
    become("no product serves", monkeypatch)
    runner = make_bench(tiny_model).engine.executor.runner
    assert runner.tiling.row_tile == 8
    assert runner.prefill_tile == 1


@pytest.mark.parametrize(
    ("serves", "least", "fused", "counts", "tiled"),
    [
        (lambda _: True, 1, True, (1, 2), False),
        (lambda runner: runner.tiling.row_multiple >= 2, 2, True, (1, 2), False),
        (lambda runner: runner.tiling.row_multiple == 8, 8, True, (1, 2), False),
        (lambda runner: not runner.fused_attention, 1, False, (1, 2), False),
        (lambda runner: runner.tiling.row_multiple == 8 and not runner.fused_attention, 8, False, (1, 2), False),
        (lambda runner: runner.threads.counts == (2,), 8, True, (2,), False),
        (lambda runner: runner.tiling.row_tile is not None, 8, False, (2,), True),
    ],
)
def test_the_cheapest_fallback_that_serves_is_taken(
    tiny_model: Path,
    monkeypatch: pytest.MonkeyPatch,
    serves: Callable[[ModelRunner], bool],
    least: int,
    fused: bool,
    counts: tuple[int, ...],
    tiled: bool,
):
    """The machine's verdict is given: `serves` says of a runner whether rows keep their bits."""
    runner = make_bench(tiny_model).engine.executor.runner
    runner.tiling.row_multiple, runner.tiling.row_tile, runner.fused_attention = 1, None, True
    runner.threads = Threads(1, 2)
    monkeypatch.setattr(self_test, "_layers_are_invariant", lambda runner, *_: serves(runner))
    monkeypatch.setattr(self_test, "_head_is_invariant", lambda runner, _: serves(runner))
    assert ensure_batch_invariance(runner, 256, 64, 2048)
    tiling = runner.tiling
    assert (tiling.row_multiple, runner.fused_attention, runner.threads.counts) == (least, fused, counts)
    assert (tiling.row_tile is not None) == tiled


def test_where_nothing_serves_it_says_so(tiny_model: Path, monkeypatch: pytest.MonkeyPatch):
    runner = make_bench(tiny_model).engine.executor.runner
    monkeypatch.setattr(self_test, "_head_is_invariant", lambda *_: False)
    assert not ensure_batch_invariance(runner, 256, 64, 2048)


def test_logits_that_depend_on_the_rows_beside_them_are_noticed(tiny_model: Path, monkeypatch: pytest.MonkeyPatch):
    """What comes out of the layers is the same; only the head depends on the count."""
    runner = make_bench(tiny_model).engine.executor.runner
    head = runner.model.head
    monkeypatch.setattr(runner.model, "head", lambda x: head(x) * (1 + 1e-6 * (len(x) == 1)))
    assert ensure_batch_invariance(runner, 256, 64, 2048)
    assert runner.tiling.padding(1) >= 1


@pytest.mark.parametrize("blocks", [2, 3])
def test_the_self_test_holds_in_a_pool_of_few_blocks(tiny_model: Path, blocks: int):
    runner = make_bench(tiny_model, blocks=blocks).engine.executor.runner
    assert ensure_batch_invariance(runner, 64, 4, 2048)
