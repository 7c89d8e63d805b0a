"""The engine by the fused kernels: the stock engine's answers, and each request's own, whatever is beside it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from protocol.requests import Generate
from tests.engine.conftest import Run, generate, make_bench
from tests.gpu.execution.fused_bench import fused_bench, small_model
from tests.gpu.kernels.interpreter import INTERPRETED

# Padding rows are computed from what happens to lie in memory.
pytestmark = pytest.mark.filterwarnings("ignore:.*encountered in:RuntimeWarning")

PROMPT = [(7 * i * i + 3 * i) % 131 for i in range(160)]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_model(tmp_path_factory.mktemp("fused") / "model")


def logits(run: Run) -> torch.Tensor:
    return torch.stack(run.logits)


def assert_near(run: Run, expected: Run) -> None:
    assert run.tokens == expected.tokens
    assert float((logits(run) - logits(expected)).norm() / logits(expected).norm()) < 1e-5


def assert_same(run: Run, expected: Run) -> None:
    """Bit by bit on a GPU; the interpreter's products depend on the number of rows."""
    if INTERPRETED:
        assert_near(run, expected)
    else:
        assert run.tokens == expected.tokens
        assert torch.equal(logits(run), logits(expected))


def test_across_a_block_and_where_a_block_is_replaced(model: Path) -> None:
    """The block that decoding fills is in the index already the second time, and what was written gives way to it."""
    bench, stock = fused_bench(model), make_bench(model)
    for id in ("first", "again"):
        request = generate(id, PROMPT[:63], 5, read=False)
        assert_near(bench.one(request), stock.one(request))
    assert bench.engine.pool.referenced_blocks == 0


@pytest.mark.gpu  # the interpreter takes a minute
def test_several_splits_in_chunks_and_from_memory(model: Path) -> None:
    bench, stock = fused_bench(model, budget=68), make_bench(model)
    expected = stock.one(generate("cold", PROMPT, 3))
    cold = bench.one(generate("cold", PROMPT, 3))
    assert_near(cold, expected)
    warm = bench.one(generate("warm", PROMPT, 3))
    assert bench.counts("warm").read_hbm == 128
    assert_same(warm, cold)


@pytest.mark.slow
def test_a_short_chunk_is_computed_as_rows_of_a_decode_step(model: Path) -> None:
    """Behind what is cached, and behind a longer chunk; two of them at once; and where somebody draws."""
    wide = fused_bench(model, budget=140)
    expected = wide.one(generate("cold", PROMPT[:140], 2))
    assert wide.engine.runner.short < 12
    bench = fused_bench(model, budget=128, running=16)
    assert bench.engine.runner.short >= 12
    assert_same(bench.one(generate("cold", PROMPT[:140], 2)), expected)
    again = [bench.add(generate(name, PROMPT[:140], 2)) for name in ("one", "another")]
    drawn = bench.add(generate("drawn", PROMPT[:130], 3, temperature=0.8, seed=5))
    bench.finish()
    for run in again:
        assert_same(run, expected)
    assert bench.counts("another").read_hbm == 128
    assert drawn.tokens == fused_bench(model).one(generate("drawn", PROMPT[:130], 3, temperature=0.8, seed=5)).tokens


def requests() -> list[Generate]:
    """One that is sampled, one that ends by a token, greedy ones; two begin alike."""
    return [
        generate("greedy", PROMPT[:63], 7),
        generate("sampled", PROMPT[:30], 5, temperature=0.8, top_p=0.9, seed=5, logprobs=2),
        generate("penalized", PROMPT[:63], 4, frequency_penalty=1.0),
        generate("late", PROMPT[5:20], 3),
    ]


@pytest.mark.gpu
def test_alone_and_in_company(model: Path) -> None:
    stock = make_bench(model)
    expected = [stock.one(request) for request in requests()]
    alone = fused_bench(model)
    together = fused_bench(model)
    runs = []
    for request in requests():
        runs.append(together.add(request))
        together.step()
    together.finish()
    for request, run, want in zip(requests(), runs, expected, strict=True):
        assert_near(run, want)
        assert_same(run, alone.one(request))
        assert len(run.logprobs) == len(want.logprobs)


@pytest.mark.slow
def test_what_was_computed_ahead_of_an_end_is_left_alone(model: Path) -> None:
    stock, bench = make_bench(model), fused_bench(model)
    whole = stock.one(generate("whole", PROMPT[:20], 5))
    stop = whole.tokens[2]
    before = whole.tokens.index(stop)
    beside = bench.add(generate("beside", PROMPT[:21], 6))
    ended = bench.one(generate("ended", PROMPT[:20], 5, stop_tokens=(stop,)))
    assert ended.tokens == whole.tokens[: before + 1]
    assert ended.done is not None
    assert ended.done.reason == "stop"
    assert beside.tokens == stock.one(generate("beside", PROMPT[:21], 6)).tokens
    assert bench.counts("ended").output == before + 1


@pytest.mark.slow
def test_what_is_not_finite_fails_alone(model: Path) -> None:
    bench = fused_bench(model)
    expected = bench.one(generate("expected", PROMPT[:10], 4))
    harmful = 130
    with torch.inference_mode():
        bench.engine.runner.model.embedding.weight[harmful] = torch.nan
    beside = bench.add(generate("beside", PROMPT[:10], 4, read=False))
    failing = bench.one(generate("failing", [1, harmful, 2], 4))
    assert failing.done is not None
    assert failing.done.reason == "error"
    assert failing.done.error is not None
    assert "NaN" in failing.done.error
    assert_same(beside, expected)
