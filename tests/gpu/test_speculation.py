"""Drafts on a GPU: whoever proposes them, each request gets the tokens and log probabilities of plain decoding."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from engine.core.engine import Engine
from engine.execution.cuda.runner import CudaRunner
from engine.options import DRAFT_MODEL
from engine.speculation.drafter import Drafter
from engine.startup.assembly import assemble
from engine.startup.options import ReplicaOptions
from engine.startup.speculation import make_drafters
from gateway.generation_request import Text, Turn
from gateway.served_models.served_model import load_served_model
from protocol.replicas import Scope
from protocol.requests import Done, Generate, Reasoning, Sampling, Segment, TokenLogprob, Tokens
from tests.engine.speculation.lying_drafter import LyingDrafter

pytestmark = pytest.mark.gpu

DEMO_MODEL = Path(__file__).resolve().parents[2] / "models" / "stdlib-qa"
DEMO_DRAFT = DEMO_MODEL.with_name("stdlib-qa-draft")
END = 4095
SCOPES = {"project": Scope("project", b"root" * 8, b"key".ljust(32), retention=3600.0)}
REQUESTS = 200
PRECISIONS: dict[str, dict[str, Any]] = {
    "bf16": {},
    "fp8": {"quantize": "fp8", "kv_dtype": "fp8"},
}
DRAFTERS: dict[str, Sequence[str]] = {"of text": ("grammar", "ngram", "suffix"), "lying": ()}
SCHEMA = {
    "type": "object",
    "properties": {"raises_an_exception": {"type": "boolean"}, "name_of_it": {"type": "string", "maxLength": 12}},
    "required": ["raises_an_exception", "name_of_it"],
    "additionalProperties": False,
}
MODES: Sequence[dict[str, Any]] = (
    {},
    {},
    {"temperature": 0.8},
    {"temperature": 1.1, "top_p": 0.9, "logprobs": 3},
    {"temperature": 1.2, "top_k": 12, "min_p": 0.02},
    {"temperature": 0.9, "presence_penalty": 0.4, "frequency_penalty": 0.5, "repetition_penalty": 1.2},
    {"frequency_penalty": 0.7, "logit_bias": {300: 2.5}, "logprobs": 1},
    {"min_tokens": 12, "stop_tokens": (END, 300, 301)},
    {"temperature": 1.0, "choices": 3},
    {"temperature": 0.9, "grammar": json.dumps({"json_schema": SCHEMA}), "logprobs": 1},
    {"grammar": json.dumps({"regex": "[a-f ]{10,40}"}), "frequency_penalty": 0.3},
    {"temperature": 0.7, "reasoning": Reasoning((5, 6), begun=True, budget=6)},
)


@cache
def demo_prompts() -> list[list[int]]:
    """Questions, with answers in front of them that may be copied."""
    model = load_served_model(DEMO_MODEL)
    asked = ("textwrap.dedent", "json.dumps", "os.path.join", "shutil.copyfile", "itertools.chain", "functools.reduce")
    prompts = []
    for name in asked:
        question = Text(f"What does {name} do?", "question")
        answer = Text(f"{name} is a function of Python's standard library. It returns what {name} returns. ", "answer")
        turns = [Turn("user", (question,)), Turn("assistant", (answer,)), Turn("user", (question,))]
        prompts += [list(model.prompt(tuple(turns[-1:])).tokens), list(model.prompt(tuple(turns)).tokens)]
    return prompts


def mixed_requests() -> list[Generate]:
    """Requests of every mode, with prompts that end near the ends of blocks, among others."""
    dice = random.Random(11)
    requests = []
    for number in range(REQUESTS):
        prompt = list(dice.choice(demo_prompts()))
        length = dice.choice((len(prompt), 61, 63, 64, 65, 126, 200))
        tokens = (prompt * (length // len(prompt) + 1))[-max(length, 4) :]
        how = {"temperature": 0.0, **MODES[number % len(MODES)]}
        fields = {name: how.pop(name) for name in ("grammar", "reasoning", "choices") if name in how}
        output = dice.choice((1, 12, 30, 70))
        output = max(output, 40) if "grammar" in fields or "min_tokens" in how else output
        sampling = Sampling(output, **{"stop_tokens": (END,), **how, "seed": number})
        requests.append(
            Generate(
                f"{number}", 1, (Segment(len(tokens), "project"),), tokens, sampling, 1 << 20,
                read=dice.random() < 0.7, lane=dice.choice(("interactive", "standard", "batch")), **fields,
            )
        )  # fmt: skip
    return requests


def engine_of(folder: Path, precision: str, speculation: Sequence[str], **options: Any) -> Engine:
    given = ReplicaOptions(
        DEMO_MODEL, "unix:unused", folder, "gpu", b"", device="cuda", dtype="bfloat16", kv_memory=1 << 28,
        max_running=48, context=2_048, swap_share=0.0, speculation=speculation, **PRECISIONS[precision],
        **options,
    )  # fmt: skip
    assembled = assemble(given)
    assembled.engine.input_processor.grammars = assembled.grammars
    assert isinstance(assembled.engine.executor.runner, CudaRunner)
    return assembled.engine


Outputs = dict[tuple[str, int], tuple[list[int], list[TokenLogprob]]]


def outputs_of(engine: Engine, requests: Sequence[Generate]) -> Outputs:
    """What requests get that come one after the other."""
    waiting, left, outputs = list(requests), len(requests), Outputs()
    while left:
        for request in waiting[:3]:
            engine.add(request, SCOPES)
        del waiting[:3]
        for event in engine.step().events:
            if isinstance(event, Tokens):
                tokens, told = outputs.setdefault((event.id, event.choice), ([], []))
                tokens += event.tokens
                told += event.logprobs
            elif isinstance(event, Done):
                assert event.reason in ("stop", "length"), event
                event.counts.check()
                left -= 1
        engine.pool.check()
    return outputs


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Outputs]:
    """By precision."""
    return {
        precision: outputs_of(engine_of(tmp_path_factory.mktemp("plain"), precision, ()), mixed_requests())
        for precision in PRECISIONS
    }


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("names", DRAFTERS)
def test_two_hundred_mixed_requests_get_the_bits_of_plain_decoding(
    tmp_path: Path, plain: dict[str, Outputs], precision: str, names: str
) -> None:
    expected = plain[precision]
    engine = engine_of(tmp_path, precision, ("ngram",))
    assert engine.speculator.off is None
    engine.speculator.planner.costs = None  # drafts are verified whatever they cost
    drafters: Sequence[Drafter] = make_drafters(DRAFTERS[names])
    if names == "lying":
        drafters = [LyingDrafter(4096, {key: tokens for key, (tokens, _) in expected.items()}, 5)]
    engine.speculator.ask(drafters)
    found = outputs_of(engine, mixed_requests())
    differing = [key for key, output in expected.items() if found.get(key) != output]
    tokens = [key for key in differing if key not in found or found[key][0] != expected[key][0]]
    totals = engine.speculator.totals
    print(
        f"{precision}, {names}: {sum(len(tokens) for tokens, _ in expected.values())} tokens, {len(differing)} of"
        f" {len(expected)} outputs differ, {len(tokens)} in their tokens, {totals.drafted} drafted,"
        f" {totals.accepted} accepted, {engine.steps} steps"
    )
    assert not differing
    assert found.keys() == expected.keys()
    assert totals.accepted > 0
    assert engine.pool.referenced_blocks == 0


def test_a_draft_model_drafts_for_the_fused_kernels(tmp_path: Path) -> None:
    requests = [request for request in mixed_requests() if request.choices == 1][:24]
    expected = outputs_of(engine_of(tmp_path / "plain", "bf16", ()), requests)
    engine = engine_of(tmp_path / "drafts", "bf16", (DRAFT_MODEL,), draft_model=DEMO_DRAFT)
    engine.speculator.planner.costs = None
    assert outputs_of(engine, requests) == expected
    totals = engine.speculator.totals
    print(f"draft model: {totals.drafted} drafted, {totals.accepted} accepted")
    assert totals.accepted > 0


def test_speculation_is_off_where_rows_of_one_request_depend_on_each_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from engine.execution.cuda import draft_trials  # Triton, on a GPU alone

    monkeypatch.setattr(draft_trials, "drafts_keep_their_bits", lambda _runner: False)
    engine = engine_of(tmp_path, "bf16", ("ngram",))
    assert engine.speculator.off == "self_test"
