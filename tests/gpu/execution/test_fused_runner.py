"""The engine by the fused kernels: the stock engine's answers, and each request's own, whatever is beside it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

from engine.execution.cuda.decode_steps import DecodeSteps
from engine.execution.cuda.flights import Flight
from engine.execution.cuda.start import compile_draws
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


def test_across_a_block_and_where_a_block_is_replaced(tmp_path: Path) -> None:
    """The block that decoding fills is in the index already the second time, and what was written gives way to it."""
    model = small_model(tmp_path, layers=2)
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
    assert wide.engine.executor.runner.short < 12
    bench = fused_bench(model, budget=128, running=16)
    assert bench.engine.executor.runner.short >= 12
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
        bench.engine.executor.runner.model.embedding.weight[harmful] = torch.nan
    beside = bench.add(generate("beside", PROMPT[:10], 4, read=False))
    failing = bench.one(generate("failing", [1, harmful, 2], 4))
    assert failing.done is not None
    assert failing.done.reason == "error"
    assert failing.done.error is not None
    assert "NaN" in failing.done.error
    assert_same(beside, expected)


PENALTIES = {"presence_penalty": 0.4, "frequency_penalty": 0.9, "repetition_penalty": 1.3}


def told(run: Run) -> list[float]:
    """Of each token its own log probability, then those of the likeliest."""
    return [value for one in run.logprobs for value in (one.logprob, *(likely for _, likely in one.top))]


def changed_requests() -> list[Generate]:
    """Requests whose logits are changed, in each way, and told; beside one whose logits are not."""
    bias = dict.fromkeys(range(0, 131, 7), 3.0)
    return [
        generate("greedy", PROMPT[:9], 7),
        generate("penalized", PROMPT[3:12], 8, temperature=0.0, **PENALTIES),
        generate("drawn", PROMPT[5:15], 6, temperature=0.9, seed=3, frequency_penalty=1.5, logit_bias=bias),
        generate("late", PROMPT[2:11], 5, logit_bias={3: -100.0, 40: 4.0}, min_tokens=3, stop_tokens=(40,)),
        generate("told", PROMPT[4:12], 6, temperature=1.1, seed=4, presence_penalty=1.0, logprobs=3),
    ]


@pytest.mark.slow
def test_changed_logits_are_drawn_from_on_the_device(model: Path) -> None:
    """Alone, and together as one after the other comes: what was computed ahead is kept for some, and for some not."""
    stock, alone, together = make_bench(model), fused_bench(model), fused_bench(model)
    with torch.inference_mode():
        compile_draws(alone.engine.executor.runner)
    runs = []
    for request in changed_requests():
        runs.append(together.add(request))
        together.step()
    together.finish()
    for request, run in zip(changed_requests(), runs, strict=True):
        expected = stock.one(request)
        assert_near(run, expected)
        assert_same(run, alone.one(request))
        assert told(run) == pytest.approx(told(expected), abs=1e-4)
        assert len(told(run)) == (24 if request.id == "told" else 0)
    # The slots that they had are others' now.
    again = [
        together.add(request)
        for request in (msgspec.structs.replace(each, id=each.id + "2") for each in reversed(changed_requests()))
    ]
    together.finish()
    assert [run.tokens for run in reversed(again)] == [run.tokens for run in runs]


@pytest.mark.slow
def test_a_request_with_penalties_gives_way_and_comes_back(model: Path) -> None:
    stock = make_bench(model)
    bench = fused_bench(model, blocks=3)
    old = bench.add(generate("old", PROMPT[:60], 12, **PENALTIES))
    young = bench.add(generate("young", PROMPT[40:98], 12, read=False, lane="batch", **PENALTIES))
    bench.finish()
    assert bench.engine.scheduler.preemptions > 0
    assert old.tokens == stock.one(generate("old", PROMPT[:60], 12, **PENALTIES)).tokens
    assert young.tokens == stock.one(generate("young", PROMPT[40:98], 12, **PENALTIES)).tokens


@pytest.mark.slow
def test_a_slot_has_nothing_of_the_request_before(model: Path) -> None:
    """The other one begins at the very position to which the first one was counted."""
    bench, stock = fused_bench(model), make_bench(model)
    penalties = {"frequency_penalty": -9.0}
    bench.one(generate("first", PROMPT[:9], 4, **penalties))
    request = generate("second", PROMPT[20:32], 4, **penalties)
    assert bench.one(request).tokens == stock.one(request).tokens


@pytest.mark.slow
@pytest.mark.parametrize("where", [(Flight, "wait"), (DecodeSteps, "run")], ids=["waiting", "launching"])
def test_a_step_that_failed_counts_nothing_twice(
    model: Path, monkeypatch: pytest.MonkeyPatch, where: tuple[type, str]
) -> None:
    """Behind it the next one was queued, or is what failed.

    Each of its requests runs again. A token comes twice and never again.
    """
    requests = [
        generate(name, PROMPT[:9], 6, temperature=0.0, presence_penalty=-100.0, frequency_penalty=60.0, logit_bias=bias)
        for name, bias in (("one", {}), ("another", {3: 0.5}))
    ]
    expected = [make_bench(model).one(request).tokens for request in requests]
    bench = fused_bench(model)
    runs = [bench.add(request) for request in requests]
    for _ in range(3):
        bench.step()
    calls = []
    original = getattr(*where)

    def fail_once(*given: Any, **more: Any) -> Any:
        calls.append(given)
        if len(calls) == 1:
            raise RuntimeError("the device is gone")
        return original(*given, **more)

    monkeypatch.setattr(*where, fail_once)
    bench.finish()
    assert len(calls) > 2
    assert [run.tokens for run in runs] == expected


@pytest.mark.gpu
def test_the_device_does_not_idle_while_the_step_queued_ahead_is_computed(model: Path) -> None:
    bench = fused_bench(model)
    runner = bench.engine.executor.runner
    runner.on_logits = None
    # Behind what is queued already, and before what the next step queues ahead.
    runner.meanwhile = lambda _computed: torch.cuda._sleep(400_000_000)
    bench.add(generate("a", PROMPT[:20], 40))
    for _ in range(3):
        bench.step()
    assert not runner.idles_between_steps()
    torch.cuda.synchronize()
    assert runner.idles_between_steps()
