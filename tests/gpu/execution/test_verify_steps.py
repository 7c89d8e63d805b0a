"""Steps with drafts on the decode graphs: whoever drafts, each request gets the tokens of plain decoding."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from engine.execution.cuda.draft_trials import drafts_keep_their_bits, time_verification
from engine.execution.cuda.probe import Probe
from engine.execution.cuda.runner import CudaRunner
from engine.grammar.llguidance_grammar import LlguidanceGrammars
from engine.sampling import grammar_allowance
from engine.speculation.drafter import Drafter
from engine.speculation.speculator import MOST_DRAFTS
from protocol.requests import Generate
from tests.engine.conftest import VOCABULARY, Bench, generate
from tests.engine.speculation.lying_drafter import LyingDrafter, OracleDrafter
from tests.engine.tiny_tokenizer import END
from tests.gpu.execution.fused_bench import fused_bench, small_model
from tests.gpu.execution.tally_model import TallyModel
from tests.gpu.execution.test_grammar_steps import LETTERS, assert_as_reference, reference, some_request
from tests.gpu.kernels.interpreter import INTERPRETED

# The interpreter computes what a mask leaves out as well.
pytestmark = pytest.mark.filterwarnings("ignore:.*encountered in:RuntimeWarning")

PROMPT = [(7 * i * i + 3 * i) % 131 for i in range(160)]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_model(tmp_path_factory.mktemp("verify steps") / "model")


@pytest.fixture(scope="module")
def grammars(tokenizer: Path) -> LlguidanceGrammars:
    return LlguidanceGrammars(tokenizer, VOCABULARY, [END])


def tally_bench(
    model: Path, grammars: LlguidanceGrammars, drafters: Sequence[Drafter], **sizes: int
) -> tuple[Bench, TallyModel]:
    bench = fused_bench(model, drafters=drafters, **sizes)
    bench.engine.input_processor.grammars = grammars
    assert isinstance(bench.engine.executor.runner, CudaRunner)
    bench.engine.executor.runner.on_logits = None
    return bench, TallyModel(bench.engine.executor.runner)


class Told:
    """What drafters know of requests: the tokens that the reference gives them."""

    def __init__(self, bench: Bench, tally: TallyModel) -> None:
        self.bench, self.tally = bench, tally
        self.outputs: dict[tuple[str, int], Sequence[int]] = {}

    def add(self, request: Generate) -> None:
        self.outputs[request.id, 0] = reference(self.bench, self.tally, request)[0]
        self.bench.add(request)


def liar_bench(
    model: Path, grammars: LlguidanceGrammars, kind: type[LyingDrafter], seed: int = 0, **sizes: int
) -> tuple[Bench, TallyModel, Told, LyingDrafter]:
    outputs: Mapping[tuple[str, int], Sequence[int]] = {}
    liar = kind(VOCABULARY, outputs, seed)
    bench, tally = tally_bench(model, grammars, [liar], **sizes)
    told = Told(bench, tally)
    liar._known = told.outputs
    return bench, tally, told, liar


@pytest.mark.parametrize("seed", range(2))
def test_a_liar_changes_no_token_in_random_company(model: Path, grammars: LlguidanceGrammars, seed: int) -> None:
    """Grammars, penalties, minima, log probabilities; some are stopped, and memory is short, so that some give way."""
    chance = random.Random(seed)
    bench, tally, told, liar = liar_bench(model, grammars, LyingDrafter, seed, blocks=6, running=4)
    requests = [some_request(chance, f"{seed}/{number}") for number in range(7)]
    for request in requests:
        told.add(request)
        for _ in range(chance.randrange(5)):
            bench.step()
        if chance.random() < 0.2:
            bench.engine.abort(chance.choice(requests[: requests.index(request) + 1]).id)
    bench.finish()
    assert_as_reference(bench, tally, requests)
    assert bench.engine.pool.referenced_blocks == 0
    totals = bench.engine.speculator.totals
    assert 0 < totals.accepted < totals.drafted
    assert not liar.open


@pytest.mark.parametrize(
    "drawing",
    [
        {},
        {"temperature": 0.7, "seed": 3, "logprobs": 2},
        {"temperature": 0.9, "seed": 3, "frequency_penalty": 0.9, "repetition_penalty": 1.3},
        {"temperature": 0.9, "min_tokens": 9, "stop_tokens": (5, 9)},
        {"grammar": LETTERS, "temperature": 0.8},
    ],
    ids=["greedy", "drawn", "penalized", "minimum", "grammar"],
)
def test_drafts_that_are_right_save_steps(
    model: Path, grammars: LlguidanceGrammars, drawing: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    # The interpreter's draws take the time that the masks of drafts may take.
    monkeypatch.setattr(grammar_allowance, "MASKS_S", 60.0)
    bench, tally, told, _ = liar_bench(model, grammars, OracleDrafter)
    request = generate("x", PROMPT[:50], 24, **drawing)
    told.add(request)
    bench.finish()
    assert_as_reference(bench, tally, [request])
    output = len(bench.runs["x"].tokens)
    assert output > 10
    assert bench.engine.speculator.totals.accepted >= 0.6 * output
    assert bench.engine.steps < 8


def test_what_flies_lands_before_drafts_are_verified_and_plain_steps_fly_again(
    model: Path, grammars: LlguidanceGrammars
) -> None:
    bench, tally, told, _ = liar_bench(model, grammars, OracleDrafter)
    pipeline = bench.engine.executor.pipeline
    request = generate("x", PROMPT[:20], 40)
    expected = tally.expected(PROMPT[:20], 40)
    bench.add(request)
    for _ in range(4):
        bench.step()
    assert (pipeline.queued, pipeline.held, len(bench.runs["x"].tokens)) == (True, False, 4)
    told.outputs["x", 0] = expected[:30]
    bench.step()
    assert (pipeline.queued, pipeline.held, len(bench.runs["x"].tokens)) == (False, True, 5)
    bench.step()
    assert (pipeline.queued, pipeline.held, len(bench.runs["x"].tokens)) == (False, True, 6 + MOST_DRAFTS)
    while len(bench.runs["x"].tokens) < 30:
        bench.step()
    bench.step()
    assert (pipeline.queued, pipeline.held) == (True, False)
    bench.finish()
    assert bench.runs["x"].tokens == expected


@pytest.mark.parametrize("drawing", [{}, {"logit_bias": {5: 0.5}}, {"grammar": LETTERS}])
def test_what_a_draft_makes_that_is_not_finite_is_nobodys(
    model: Path, grammars: LlguidanceGrammars, drawing: dict[str, Any]
) -> None:
    bench, tally, told, _ = liar_bench(model, grammars, LyingDrafter, 4)
    request = generate("x", PROMPT[:50], 24, **drawing)
    told.add(request)
    right, expected = tally._next, list(told.outputs["x", 0])
    behind = [*PROMPT[:50], *expected]

    def damaged(blocks: Sequence[int], position: int) -> float:
        """Not finite behind each token that is not the request's."""
        last = float(tally._data[blocks[position // 64], 0, 0, 0, position % 64, 0])
        return right(blocks, position) if last == behind[position] else float("nan")

    tally._next = damaged  # type: ignore[method-assign]
    bench.finish()
    assert bench.runs["x"].tokens == expected
    totals = bench.engine.speculator.totals
    assert 0 < totals.accepted < totals.drafted


def test_a_request_that_is_not_finite_by_itself_fails_alone_and_where_plain_decoding_fails(
    model: Path, grammars: LlguidanceGrammars
) -> None:
    bench, tally, told, _ = liar_bench(model, grammars, OracleDrafter)
    failing, beside = generate("failing", PROMPT[:50], 12), generate("beside", PROMPT[20:50], 12)
    for request in (failing, beside):
        told.add(request)
    right = tally._next

    def damaged(blocks: Sequence[int], position: int) -> float:
        first = float(tally._data[blocks[0], 0, 0, 0, 0, 0])
        return float("nan") if first == PROMPT[0] and position == 56 else right(blocks, position)

    tally._next = damaged  # type: ignore[method-assign]
    bench.finish()
    assert bench.runs["failing"].tokens == told.outputs["failing", 0][:7]
    done = bench.runs["failing"].done
    assert done is not None
    assert "NaN" in (done.error or "")
    assert bench.runs["beside"].tokens == told.outputs["beside", 0]


def test_the_probe_reads_rows_of_one_request(model: Path) -> None:
    """The numbers of tokens are told exactly, so that a row that reads another's keys is found."""
    runner = fused_bench(model, drafters=[OracleDrafter(VOCABULARY, {}, 0)]).engine.executor.runner
    assert isinstance(runner, CudaRunner)
    tally = TallyModel(runner)
    probe = Probe(runner, 150)
    probe.prefill([0])
    logits = probe.verify([64, 70, 150], 8)
    ends = [position for end in (64, 70, 150) for position in range(end - 8, end)]
    tokens = probe.tokens.tolist()
    assert logits.argmax(-1).tolist() == [tally.likeliest(tokens[: at + 1]) for at in ends]
    costs = time_verification(runner)
    assert {rows for times in costs.values() for rows in times} == set(runner.steps.counts)


@pytest.mark.slow
def test_rows_of_one_request_that_depend_on_each_other_are_found(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runner = fused_bench(model, drafters=[OracleDrafter(VOCABULARY, {}, 0)]).engine.executor.runner
    assert isinstance(runner, CudaRunner)
    if not INTERPRETED:
        assert drafts_keep_their_bits(runner)
    verify = Probe.verify

    def leaking(self: Probe, ends: Sequence[int], rows: int) -> torch.Tensor:
        logits = verify(self, ends, rows)
        return logits + logits[-1:] * 1e-3

    monkeypatch.setattr(Probe, "verify", leaking)
    assert not drafts_keep_their_bits(runner)


@pytest.mark.slow
@pytest.mark.parametrize("drawing", [{}, {"temperature": 1.1, "seed": 5, "logprobs": 1, "presence_penalty": 0.4}])
def test_by_the_kernels_themselves(model: Path, drawing: dict[str, Any]) -> None:
    """Rows that straddle the end of a block and of a split; equal bits of logits on a GPU alone."""
    requests = [generate(f"{length}", PROMPT[:length], 14, **drawing) for length in (9, 50)]
    plain = fused_bench(model)
    expected = [plain.one(request) for request in requests]
    known = {(request.id, 0): run.tokens for request, run in zip(requests, expected, strict=True)}
    bench = fused_bench(model, drafters=[LyingDrafter(VOCABULARY, known, 1)])
    runs = [bench.add(request) for request in requests]
    bench.finish()
    for run, want in zip(runs, expected, strict=True):
        assert run.tokens == want.tokens
        for ours, theirs in zip(run.logits, want.logits, strict=True):
            assert torch.equal(ours, theirs) if not INTERPRETED else torch.allclose(ours, theirs, atol=1e-4)
    assert bench.engine.speculator.totals.accepted > 0
