"""How a request may draw its tokens: the modes that tests run through, and what makes requests of them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch

from engine.grammar.llguidance_grammar import LlguidanceGrammars
from protocol.requests import Generate, Reasoning
from tests.engine.conftest import VOCABULARY, Bench, Run, generate, make_bench
from tests.engine.tiny_tokenizer import END

OUTPUT = 9
SCHEMA = {
    "type": "object",
    "properties": {"a": {"type": "array", "items": {"type": "integer"}, "minItems": 2}, "b": {"enum": ["x", "yz"]}},
    "required": ["a", "b"],
    "additionalProperties": False,
}
GRAMMAR = {"grammar": json.dumps({"json_schema": SCHEMA}), "output": 48, "stop_tokens": (END,)}
PENALTIES = {"presence_penalty": 0.4, "frequency_penalty": 0.9, "repetition_penalty": 1.3, "logit_bias": {7: 2.5}}
MODES: dict[str, dict[str, Any]] = {
    "greedy": {},
    "top-p": {"temperature": 1.3, "top_p": 0.9, "seed": 1},
    "top-k": {"temperature": 1.5, "top_k": 12, "min_p": 0.02, "seed": 2},
    "penalties": {"temperature": 0.9, "seed": 3, **PENALTIES},
    "greedy with penalties": {**PENALTIES, "stop_tokens": (5, 9), "min_tokens": 6},
    "logprobs": {"temperature": 1.1, "seed": 4, "logprobs": 3},
    "of the prompt": {"temperature": 1.1, "seed": 5, "logprobs": 2, "prompt_logprobs": 2},
    "three": {"temperature": 1.2, "seed": 6, "choices": 3},
    "grammar": {**GRAMMAR, "temperature": 1.4, "seed": 7, "logprobs": 1},
    "greedy grammar": {**GRAMMAR, **PENALTIES},
    "reasoning": {"temperature": 1.3, "seed": 8, "reasoning": Reasoning(end=(0, 9), begin=(8,), begun=True, budget=4)},
    "reasoning before a grammar": {
        **GRAMMAR,
        "temperature": 1.4,
        "seed": 9,
        "output": 70,
        "reasoning": Reasoning(end=(0, 9), begin=(8, 7), budget=6, opening=(8, 7, 6), answer=(5, 4)),
    },
}


@cache
def grammars(folder: Path) -> LlguidanceGrammars:
    return LlguidanceGrammars(folder, VOCABULARY, [END])


def bench_of(folder: Path, tokenizer: Path, **options: Any) -> Bench:
    """A bench whose engine has grammars."""
    bench = make_bench(folder, **options)
    bench.engine.input_processor.grammars = grammars(tokenizer)
    return bench


def request(id: str, length: int, mode: str, **fields: Any) -> Generate:
    """A request of a prompt of this length, with these changes; `output` is how many tokens it may have."""
    given = {"output": OUTPUT, **MODES[mode], **fields}
    prompt = [(i * i * 31 + 17 * i + length) % VOCABULARY for i in range(length)]
    return generate(id, prompt, given.pop("output"), **given)


def assert_same(run: Run, expected: Run) -> None:
    """The same tokens, and logits and log probabilities to the bit."""
    assert run.done is not None
    assert expected.done is not None
    assert (run.done.reason, run.done.reasons) == (expected.done.reason, expected.done.reasons)
    assert run.choices == expected.choices
    assert run.logprobs == expected.logprobs
    assert run.prompt_logprobs == expected.prompt_logprobs
    assert len(run.logits) == len(expected.logits)
    for ours, theirs in zip(run.logits, expected.logits, strict=True):
        assert torch.equal(ours, theirs)


@dataclass
class Preempted:
    """What a request got that gave way `written` tokens into its output, and what it gets alone."""

    run: Run
    alone: Run
    written: list[int]
    recomputed: int


def preempt(folder: Path, tokenizer: Path, mode: str, swap: int, **options: Any) -> Preempted:
    """Run a request beside an older one where there is not memory for both; `swap`: host blocks for what gives way."""
    fields: dict[str, Any] = {"output": 70}
    if mode in ("grammar", "reasoning before a grammar"):
        # Long enough to be in need of another block while it is written.
        schema = {"type": "array", "items": {"type": "integer"}, "minItems": 25, "maxItems": 25}
        fields = {"output": 190, "grammar": json.dumps({"json_schema": schema})}
    alone = bench_of(folder, tokenizer, **options).one(request("x", 129, mode, **fields))
    bench = bench_of(folder, tokenizer, blocks=6, budget=200, running=4, swap=swap, **options)
    bench.add(request("old", 130, "greedy", output=70))
    young = bench.add(request("young", 129, mode, read=False, lane="batch", **fields))
    written: list[int] = []
    while bench.engine.busy:
        before = [one.output for one in bench.engine.scheduler.running if one.id == "young"]
        preemptions = bench.engine.scheduler.preemptions
        bench.step()
        if bench.engine.scheduler.preemptions > preemptions:
            written += before
    return Preempted(young, alone, written, bench.counts("young").recomputed)
