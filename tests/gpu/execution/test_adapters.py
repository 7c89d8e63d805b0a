"""Requests with adapters by the fused kernels: the stock engine's answers; alone as in company, cold as warm."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from engine.execution.cuda.runner import CudaRunner
from engine.execution.cuda.start import adapters_keep_bits
from engine.speculation.ngram_drafter import NgramDrafter
from model_files.adapter_config import AdapterRefused
from model_files.adapter_file import pack, read_packed
from tests import adapter_files
from tests.engine.conftest import Bench, Run, generate, make_bench
from tests.gpu.execution.fused_bench import fused_bench, small_model
from tests.gpu.execution.test_fused_runner import assert_near, assert_same
from tests.gpu.kernels.interpreter import INTERPRETED

pytestmark = pytest.mark.filterwarnings("ignore:.*encountered in:RuntimeWarning")

PROMPT = [int(token) for token in np.random.default_rng(0).integers(10, 131, 150)]
INVOCATION = (7, 8, 9)
LAYERS = 1 if INTERPRETED else 2
SHAPES = {
    "self_attn.q_proj": (32, 32),
    "self_attn.k_proj": (16, 32),
    "self_attn.v_proj": (16, 32),
    "self_attn.o_proj": (32, 32),
    "mlp.gate_proj": (48, 32),
    "mlp.up_proj": (48, 32),
    "mlp.down_proj": (32, 48),
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_model(tmp_path_factory.mktemp("adapted") / "model")


def give(
    bench: Bench, rank: int = 8, seed: int = 1, targets: tuple[str, ...] = adapter_files.ALL, **more: object
) -> str:
    """Give the bench's engine an adapter; returns its digest."""
    matrices = adapter_files.matrices(rank, targets, seed=seed, shapes=SHAPES, layers=LAYERS)
    content = pack(adapter_files.config(rank, targets=targets, **more), adapter_files.safetensors(matrices))  # type: ignore[arg-type]
    digest = read_packed(content, "base").digest
    assert bench.engine.adapters is not None
    bench.engine.adapters.take(digest, content)
    return digest


def runner_of(bench: Bench) -> CudaRunner:
    runner = bench.engine.executor.runner
    assert isinstance(runner, CudaRunner)
    return runner


@pytest.mark.parametrize(
    ("rank", "fields"),
    [
        (8, {}),
        pytest.param(40, {"use_rslora": True}, marks=pytest.mark.slow),
        pytest.param(16, {"targets": ("self_attn.q_proj", "mlp.down_proj")}, marks=pytest.mark.slow),
        pytest.param(20, {"alora_invocation_tokens": list(INVOCATION)}, marks=pytest.mark.slow),
    ],
)
def test_answers_are_those_of_the_stock_engine(model: Path, rank: int, fields: dict[str, object]) -> None:
    stock, bench = make_bench(model, adapters=1), fused_bench(model, adapters=1)
    prompt = [*PROMPT[:30], *INVOCATION, *PROMPT[30:40]]
    digest = give(stock, rank, **fields)  # type: ignore[arg-type]
    assert give(bench, rank, **fields) == digest  # type: ignore[arg-type]
    expected = stock.one(generate("adapted", prompt, 4, adapter=digest))
    assert_near(bench.one(generate("adapted", prompt, 4, adapter=digest)), expected)
    base = bench.one(generate("base", prompt, 4))
    assert not np.allclose(base.logits[0], expected.logits[0], atol=1e-2)


@pytest.mark.slow
def test_requests_beside_each_other_have_the_answers_that_they_have_alone(model: Path) -> None:
    """Two adapters of other ranks, one of them twice, and the base, in one step; one arrives later."""

    def fresh() -> Bench:
        bench = fused_bench(model, adapters=2, running=8)
        assert [give(bench), give(bench, 40, 2)] == digests
        return bench

    first = fused_bench(model, adapters=2)
    digests = [give(first), give(first, 40, 2)]
    asked = [("base", ""), ("one", digests[0]), ("other", digests[1]), ("again", digests[0])]
    requests = [generate(name, PROMPT[at : 40 + at], 5, adapter=digest) for at, (name, digest) in enumerate(asked)]
    alone = [fresh().one(request) for request in requests]
    plain = fused_bench(model).one(requests[0])
    bench, runs = fresh(), []
    for at, request in enumerate(requests):
        runs.append(bench.add(request))
        if at == 2:
            bench.step()
    bench.finish()
    for run, expected in zip(runs, alone, strict=True):
        assert_same(run, expected)
    assert_same(runs[0], plain)


@pytest.mark.slow
def test_more_adapters_than_slots_are_all_served_and_warm_as_cold(model: Path) -> None:
    bench = fused_bench(model, adapters=2, running=4)
    digests = [give(bench, seed=seed + 1) for seed in range(4)]
    runs: dict[int, Run] = {}
    for at in range(8):
        request = generate(f"r{at}", PROMPT[:70], 3, adapter=digests[at % 4], flow=f"flow{at % 3}")
        runs[at] = bench.add(request)
    bench.finish()
    for at in range(4):
        assert_same(runs[at], runs[at + 4])
    again = bench.one(generate("again", PROMPT[:70], 3, adapter=digests[0]))
    assert bench.counts("again").read_hbm == 64
    assert_same(again, runs[0])
    slots = bench.engine.scheduler.adapters
    assert slots.loads > 4
    assert len(slots.resident) <= 2


@pytest.mark.slow
def test_drafts_of_an_adapted_request_change_nothing(model: Path) -> None:
    prompt = PROMPT[:12] * 3
    bench = fused_bench(model, adapters=1)
    plain = bench.one(generate("plain", prompt, 12, adapter=give(bench)))
    drafting = fused_bench(model, adapters=1, drafters=[NgramDrafter()])
    request = generate("drafted", prompt, 12, adapter=give(drafting), prediction=tuple(plain.tokens))
    run = drafting.one(request)
    assert run.tokens == plain.tokens
    assert bench.engine.steps > drafting.engine.steps


def test_what_a_slot_does_not_hold_is_refused_and_slots_come_back(model: Path) -> None:
    bench = fused_bench(model, adapters=1)
    with pytest.raises(AdapterRefused, match="rank 80"):
        give(bench, 80)
    memory = runner_of(bench).adapter_memory
    assert memory is not None
    load = memory.prepare(read_packed(_content(), "base"))
    first = load()
    assert first.slot == 0
    del first
    assert load().slot == 0


def _content() -> bytes:
    matrices = adapter_files.matrices(8, shapes=SHAPES, layers=LAYERS)
    return pack(adapter_files.config(8), adapter_files.safetensors(matrices))


@pytest.mark.gpu
def test_the_test_at_start_holds_and_leaves_the_slots_empty(model: Path) -> None:
    runner = runner_of(fused_bench(model, adapters=2, running=40, blocks=32))
    memory = runner.adapter_memory
    assert memory is not None
    assert adapters_keep_bits(runner, memory)
    assert not memory.slots.counts.any()
