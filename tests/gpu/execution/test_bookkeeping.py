"""The runner's bookkeeping: whatever fails or joins, each request reads its own blocks and its own logits."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from engine.execution.cuda.model import Rows
from engine.execution.cuda.runner import CudaRunner
from engine.execution.cuda.slots import Chunk
from protocol.requests import Reasoning
from tests.engine.conftest import Bench, generate
from tests.gpu.execution.fused_bench import SPARE, fused_bench, small_model
from tests.gpu.execution.tally_model import TallyModel

# The interpreter computes what a mask leaves out as well.
pytestmark = pytest.mark.filterwarnings("ignore:.*encountered in:RuntimeWarning")

PROMPT = [(7 * i * i + 3 * i) % 131 for i in range(160)]
FIRST, SECOND, THIRD = PROMPT[:60], PROMPT[20:90], PROMPT[50:110]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_model(tmp_path_factory.mktemp("bookkeeping") / "model")


def cuda_runner(bench: Bench) -> CudaRunner:
    assert isinstance(bench.engine.executor.runner, CudaRunner)
    bench.engine.executor.runner.on_logits = None  # who looks at logits has them computed otherwise
    return bench.engine.executor.runner


class Fault:
    """Raises once, at the call of the device after this many."""

    def __init__(self, after: int) -> None:
        self.left = after

    def __call__(self) -> None:
        self.left -= 1
        if self.left == -1:
            raise RuntimeError("CUDA error: out of memory")


def test_whatever_call_of_the_device_fails_each_request_reads_its_own_blocks(model: Path) -> None:
    """The third one gets the slot and the blocks of the second one, and the first one goes into its second block, whose
    first token is written ahead to a spare one."""
    bench = fused_bench(model, blocks=5, running=2)
    runner = cuda_runner(bench)
    tally = TallyModel(runner)
    after, fault = 0, Fault(-1)
    while fault.left < 0:
        fault = tally.called = Fault(after)
        first = bench.add(generate(f"first {after}", FIRST, 9, read=False, store="none"))
        second = bench.add(generate(f"second {after}", SECOND, 3, read=False, store="none"))
        third = bench.add(generate(f"third {after}", THIRD, 9, read=False, store="none"))
        bench.finish()
        assert first.tokens == tally.expected(FIRST, 9), after
        assert second.tokens == tally.expected(SECOND, 3), after
        assert third.tokens == tally.expected(THIRD, 9), after
        after += 1
    assert after > 20
    # None was lost, or the engine would no longer be a step ahead where a block ends.
    assert sorted(runner._spare) == list(range(SPARE))
    assert len(bench.engine.quarantine) == 0


def test_drafts_are_not_taken_and_are_an_error_where_they_are_forced(model: Path) -> None:
    """Its graphs have a row for each request. Who drafts all the same ends that request alone."""
    bench = fused_bench(model)
    tally = TallyModel(cuda_runner(bench))
    first, second = bench.add(generate("first", FIRST, 9)), bench.add(generate("second", SECOND, 9))
    bench.step()
    works = bench.engine.scheduler.batch.decodes
    assert [bench.engine.scheduler.batch.draft(work.request, [5, 6]) for work in works] == [0, 0]
    bench.step()
    works[0].draft([5, 6])
    bench.finish()
    assert first.done is not None
    assert first.done.error == "DraftsUnsupported: drafts: 2 of request first, 0 can be verified here"
    assert second.tokens == tally.expected(SECOND, 9)


@pytest.mark.parametrize("drawing", [{}, {"temperature": 0.7, "seed": 3}, {"logprobs": 1}, {"logit_bias": {5: 1.0}}])
def test_logits_of_a_prompt_that_are_not_finite_end_its_request_alone(model: Path, drawing: dict[str, object]) -> None:
    """A row of the head may be damaged: the hidden states are finite all the same."""
    bench = fused_bench(model)
    runner = cuda_runner(bench)
    tally = TallyModel(runner)
    head = runner.fused.head
    (harmful,) = tally.expected(FIRST, 1)

    def damaged(hidden: torch.Tensor) -> torch.Tensor:
        logits = head(hidden)
        logits[hidden[:, 0] == harmful, 9] = torch.nan
        return logits

    runner.fused.head = damaged  # type: ignore[assignment]
    failing = bench.add(generate("failing", FIRST, 4, **drawing))
    beside = bench.add(generate("beside", SECOND, 4))
    bench.finish()
    assert failing.done is not None
    assert failing.done.error is not None
    assert "NaN" in failing.done.error
    assert beside.tokens == tally.expected(SECOND, 4)


def test_a_grammar_that_begins_to_have_a_say_reads_its_own_rows_logits(model: Path) -> None:
    """Its row was computed ahead while nothing was to be said, and others join in that very step."""
    bench = fused_bench(model)
    tally = TallyModel(cuda_runner(bench))
    expected = tally.expected(FIRST, 12)
    # After the sixth token another one is forbidden, which would not come there anyway.
    reasoning = Reasoning((1,), begin=(expected[5], (expected[6] + 1) % 131), budget=0)
    assert expected.index(expected[5]) == 5
    for before in range(10):
        guided = bench.add(generate(f"guided {before}", FIRST, 12, read=False, reasoning=reasoning))
        beside = [bench.add(generate(f"beside {before} {n}", SECOND[n:], 20, read=False)) for n in range(2)]
        for _ in range(before):
            bench.step()
        late = bench.add(generate(f"late {before}", THIRD, 4, read=False))
        bench.finish()
        assert guided.tokens == expected, before
        assert [run.tokens for run in beside] == [tally.expected(SECOND[n:], 20) for n in range(2)]
        assert late.tokens == tally.expected(THIRD, 4)


def test_prompts_of_any_length_are_computed_by_the_same_kernels(model: Path) -> None:
    """A kernel is compiled for integers that are a multiple of 16, again for others, and again for 1: it takes seconds,
    in which nobody decodes."""
    prefill = cuda_runner(fused_bench(model)).prefill
    passes: list[Rows] = []
    prefill.model = lambda rows, _attend: passes.append(rows)  # type: ignore[assignment]
    for widths in ((1,), (3, 2), (15,), (16,), (2, 17)):
        prefill([Chunk(np.arange(5, dtype=np.int32), 0, np.arange(width, dtype=np.int32)[None]) for width in widths])
    tables = [table for rows in passes for table in rows.block_tables]
    assert {table.stride(0) % 16 for table in tables} == {0}
    assert passes[1].block_tables[0][:, :4].tolist() == [[0, 1, 2, 0], [0, 1, 0, 0]]
