"""Steps with grammars: the next one is queued before this one's tokens are read, and every token is the reference's."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

from engine.execution.cuda import step_grammars
from engine.execution.cuda.flights import Flight
from engine.execution.cuda.runner import CudaRunner
from engine.grammar.llguidance_grammar import LlguidanceGrammars
from engine.sampling.sampler import logprobs_of, sample
from protocol.requests import Generate, Reasoning, TokenLogprob
from tests.engine.conftest import SCOPES, VOCABULARY, Bench, generate
from tests.engine.grammar.test_grammar import DEMO
from tests.engine.grammar.test_grammar_time import Clock
from tests.engine.tiny_tokenizer import END
from tests.gpu import test_grammars
from tests.gpu.execution.fused_bench import fused_bench, small_model
from tests.gpu.execution.tally_model import TallyModel

# The interpreter computes what a mask leaves out as well.
pytestmark = pytest.mark.filterwarnings("ignore:.*encountered in:RuntimeWarning")

PROMPT = [(7 * i * i + 3 * i) % 131 for i in range(160)]
LETTERS = json.dumps({"regex": "[a-f]{20,60}"})
OBJECT = json.dumps(
    {"json_schema": {
        "type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "string", "maxLength": 9}},
        "required": ["a", "b"], "additionalProperties": False,
    }}
)  # fmt: skip


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_model(tmp_path_factory.mktemp("grammar steps") / "model")


@pytest.fixture(scope="module")
def grammars(tokenizer: Path) -> LlguidanceGrammars:
    return LlguidanceGrammars(tokenizer, VOCABULARY, [END])


def tally_bench(model: Path, grammars: LlguidanceGrammars, **sizes: int) -> tuple[Bench, TallyModel]:
    bench = fused_bench(model, **sizes)
    bench.engine.input_processor.grammars = grammars
    assert isinstance(bench.engine.executor.runner, CudaRunner)
    bench.engine.executor.runner.on_logits = None  # who looks at logits waits for them
    return bench, TallyModel(bench.engine.executor.runner)


def reference(bench: Bench, tally: TallyModel, request: Generate) -> tuple[list[int], list[TokenLogprob], str]:
    """Tokens of the general sampler, each once those before are known; what is told of them; and why they end."""
    row = bench.engine.input_processor.accept(request, SCOPES).first.row
    assert row is not None
    tokens, told = list(request.tokens), []
    while True:
        logits = torch.zeros(1, VOCABULARY)
        logits[0, tally.likeliest(tokens)] = 1.0
        (token,) = sample(logits.clone(), [row])
        if request.sampling.logprobs is not None:
            told += logprobs_of(logits, [token], [request.sampling.logprobs])
        tokens.append(token)
        row.accept_token(token)
        output = tokens[len(request.tokens) :]
        if row.guide.ended if row.guide is not None else token in request.sampling.stop_tokens:
            return output, told, "stop"
        if len(output) == request.sampling.max_tokens:
            return output, told, "length"


def assert_as_reference(bench: Bench, tally: TallyModel, requests: Sequence[Generate]) -> None:
    """An output that was stopped from outside is the beginning of the reference's."""
    for request in requests:
        tokens, told, reason = reference(bench, tally, request)
        run = bench.runs[request.id]
        assert run.done is not None
        if run.done.reason == "abort":
            tokens, told = tokens[: len(run.tokens)], told[: len(run.tokens)]
        else:
            assert run.done.reason == reason, request.id
        assert run.tokens == tokens, request.id
        # Which ones of equally likely tokens are told depends on the padding.
        assert [values(one) for one in run.logprobs] == [values(one) for one in told], request.id


def values(told: TokenLogprob) -> list[float]:
    return [told.logprob, *(logprob for _, logprob in told.top)]


def some_request(chance: random.Random, name: str) -> Generate:
    """One with a grammar or without, with penalties or without, near its limit or not."""
    first = chance.randrange(60)
    how: dict[str, Any] = chance.choice(
        [
            {},
            {"temperature": 0.5},
            {"temperature": 1.2, "min_p": 0.1},
            {"frequency_penalty": 0.6, "presence_penalty": 0.3},
        ]
    )
    how = how | chance.choice([{}, {}, {"logprobs": 2}, {"logit_bias": {40: 1.5}}])
    kind = chance.choice(["plain", "letters", "object", "tight", "reasoning", "late"])
    output = {"tight": 16, "object": 20}.get(kind, chance.randrange(4, 16))
    if kind in ("letters", "tight"):
        how["grammar"] = LETTERS if kind == "letters" else json.dumps({"regex": "[a-z]{2,}:[0-9]{9}"})
    elif kind == "object":
        how["grammar"] = OBJECT
    elif kind == "reasoning":
        reasoning = Reasoning((35, 36), begun=True, budget=chance.randrange(6))
        how |= {"reasoning": reasoning} | chance.choice([{}, {"grammar": LETTERS}])
    elif kind == "late":
        how |= {"grammar": json.dumps({"regex": "a*"}), "min_tokens": 3, "stop_tokens": (END,)}
    how |= {"read": chance.random() < 0.5, "lane": chance.choice(["standard", "batch"])}
    # Many come to the end of a block.
    length = chance.choice([9, 55, 60, 63])
    return generate(name, PROMPT[first : first + length], output, seed=first, **how)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
def test_the_reference_s_tokens_in_random_company(model: Path, grammars: LlguidanceGrammars, seed: int) -> None:
    """Requests come one after the other, some are stopped, and memory is short, so that some give way."""
    chance = random.Random(seed)
    bench, tally = tally_bench(model, grammars, blocks=5, running=4)
    requests = [some_request(chance, f"{seed}/{number}") for number in range(7)]
    for request in requests:
        bench.add(request)
        for _ in range(chance.randrange(6)):
            bench.step()
        if chance.random() < 0.2:
            bench.engine.abort(chance.choice(requests[: requests.index(request) + 1]).id)
    bench.finish()
    assert_as_reference(bench, tally, requests)
    assert bench.engine.pool.referenced_blocks == 0


def test_the_next_step_is_queued_before_the_tokens_under_a_grammar_are_read(
    model: Path, grammars: LlguidanceGrammars, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And the masks of this one are found out behind its forward pass."""
    bench, tally = tally_bench(model, grammars)
    steps: list[tuple[str, list[int]]] = []
    run, wait, fill = tally.runner.steps.run, Flight.wait, step_grammars.fill_masks

    def told_run(slots: Any, positions: Any, *given: Any, **more: Any) -> None:
        steps.append(("forward", positions.tolist()))
        run(slots, positions, *given, **more)

    def told_wait(flight: Flight) -> list[int]:
        steps.append(("read", flight.starts.tolist()))
        return wait(flight)

    def told_fill(*given: Any) -> None:
        steps.append(("masks", []))
        fill(*given)

    monkeypatch.setattr(tally.runner.steps, "run", told_run)
    monkeypatch.setattr(Flight, "wait", told_wait)
    monkeypatch.setattr(step_grammars, "fill_masks", told_fill)
    requests = [
        generate("letters", PROMPT[:20], 12, grammar=LETTERS, temperature=0.8),
        generate("plain", PROMPT[:9], 10, temperature=0.8),
    ]
    for request in requests:
        bench.add(request)
    for _ in range(3):
        bench.step()
    for _ in range(5):
        starts = [len(request.tokens) - 1 for request in bench.engine.scheduler.running]
        steps.clear()
        bench.step()
        assert steps == [("masks", []), ("forward", [start + 1 for start in starts]), ("read", starts)]
    bench.finish()
    assert_as_reference(bench, tally, requests)


@pytest.mark.slow
def test_a_token_that_is_put_off_comes_later_and_is_the_same(
    model: Path, grammars: LlguidanceGrammars, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench, tally = tally_bench(model, grammars, running=6)
    requests = [generate(f"{at}", PROMPT[at : at + 9], 5, grammar=LETTERS, temperature=0.9) for at in range(5)]
    requests.append(generate("plain", PROMPT[:9], 5, temperature=0.9))
    expected = [reference(bench, tally, request)[0] for request in requests]
    clock = Clock(monkeypatch)
    clock.mask_s = 0.009
    for request in requests:
        bench.add(request)
    steps = 0
    while bench.engine.busy:
        before = clock.now
        bench.step()
        steps += 1
        assert clock.now - before < 0.05
        if bench.runs["plain"].done is None:
            # Whoever is put off, the others do not wait.
            assert len(bench.runs["plain"].tokens) == steps
    assert steps > 6
    assert [bench.runs[request.id].tokens for request in requests] == expected


@pytest.mark.slow
def test_a_grammar_that_is_given_up_ends_its_request_alone(
    model: Path, grammars: LlguidanceGrammars, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench, tally = tally_bench(model, grammars)
    requests = [
        generate("slow", PROMPT[:9], 20, grammar=json.dumps({"regex": "[a-z]{30}"}), temperature=0.9),
        generate("plain", PROMPT[:9], 20, temperature=0.9),
    ]
    expected = [reference(bench, tally, request)[0] for request in requests]
    clock = Clock(monkeypatch)
    slow, plain = (bench.add(request) for request in requests)
    for _ in range(4):
        bench.step()
    clock.mask_s = 1.0
    bench.finish()
    assert slow.done is not None
    assert (slow.done.reason, slow.done.invalid) == ("error", "grammar")
    assert slow.tokens[:4] == expected[0][:4]
    assert len(slow.tokens) == 5
    assert plain.tokens == expected[1]


@pytest.mark.slow
def test_where_a_step_fails_each_token_under_a_grammar_comes_once(model: Path, grammars: LlguidanceGrammars) -> None:
    """Whatever call of the device fails: each request runs again, alone."""
    bench, tally = tally_bench(model, grammars)
    requests = [
        generate("letters", PROMPT[:9], 3, grammar=LETTERS, temperature=0.9, frequency_penalty=0.9, read=False),
        generate("penalized", PROMPT[:9], 3, temperature=0.9, frequency_penalty=0.9, read=False),
    ]
    expected = [reference(bench, tally, request)[0] for request in requests]
    fails, left = -1, -1
    while left < 0:
        fails, left = fails + 5, fails + 5

        def called() -> None:
            nonlocal left
            left -= 1
            if left == -1:
                raise RuntimeError("CUDA error: out of memory")

        tally.called = called
        named = [msgspec.structs.replace(request, id=f"{request.id} {fails}") for request in requests]
        runs = [bench.add(request) for request in named]
        bench.finish()
        assert [run.tokens for run in runs] == expected, fails
    assert fails > 20


def test_a_step_costs_no_less_for_masks_that_the_device_did_not_wait_for(
    model: Path, grammars: LlguidanceGrammars, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the clock of the thread, a mask takes longer here than the clock on the wall says of the step."""
    bench, _ = tally_bench(model, grammars)
    costs: list[float] = []
    monkeypatch.setattr(bench.engine.costs, "observe", lambda _prefill, _decodes, took: costs.append(took))
    clock = Clock(monkeypatch)
    clock.mask_s = 0.099
    bench.one(generate("guided", PROMPT[:9], 2, grammar=LETTERS))
    assert len(costs) == 2
    assert min(costs) > 0


@pytest.mark.gpu
def test_the_demo_model_fulfils_its_grammars_as_on_the_cpu() -> None:
    bench = fused_bench(DEMO, blocks=60, running=8, context=1_024)
    bench.engine.input_processor.grammars = test_grammars.grammars()
    requests = test_grammars.requests("fused ")
    runs = [bench.add(request) for request in requests]
    bench.finish()
    assert [run.tokens for run in runs] == test_grammars.cpu_alone()
