"""E1 and C2 over everything together: however a request draws its tokens, whoever runs beside it, in whatever chunks,
cold or warm, preempted by copying out or by computing again, with neighbours that are aborted: the same tokens, and
logits and log probabilities to the bit (fp32, CPU)."""

from __future__ import annotations

import json
import os
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.grammar.llguidance_grammar import LlguidanceGrammars
from engine.options import KvDtype
from engine.protocol import Generate
from engine.scheduling.lanes import LANES
from tests.engine.conftest import VOCABULARY, Bench, Families, Run, generate, make_bench
from tests.engine.tiny_tokenizer import END, text_of, write_tokenizer

MORE = int(os.environ.get("TURNPIKE_COMPANY_EXAMPLES", "0"))
"""How many examples of each test, in long runs."""
LENGTHS = [1, 63, 64, 65, 129, 200]
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
}


@pytest.fixture(scope="session")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tokenizer(tmp_path_factory.mktemp("tokenizer"))


@cache
def grammars(folder: Path) -> LlguidanceGrammars:
    return LlguidanceGrammars(folder, VOCABULARY, [END])


def bench_of(folder: Path, tokenizer: Path, **options: Any) -> Bench:
    bench = make_bench(folder, **options)
    bench.engine.acceptance.grammars = grammars(tokenizer)
    return bench


def request(id: str, length: int, mode: str, **fields: Any) -> Generate:
    given = {"output": OUTPUT, **MODES[mode], **fields}
    prompt = [(i * i * 31 + 17 * i + length) % VOCABULARY for i in range(length)]
    return generate(id, prompt, given.pop("output"), **given)


@cache
def alone(folder: Path, tokenizer: Path, length: int, mode: str, kv_dtype: KvDtype) -> Run:
    """The reference: by itself, cold, in one chunk."""
    run = bench_of(folder, tokenizer, budget=512, kv_dtype=kv_dtype).one(request("alone", length, mode))
    assert run.done is not None
    assert run.done.reason in {"length", "stop"}
    return run


def check(run: Run, expected: Run) -> None:
    assert run.done is not None
    assert expected.done is not None
    assert (run.done.reason, run.done.reasons) == (expected.done.reason, expected.done.reasons)
    assert run.choices == expected.choices
    assert run.logprobs == expected.logprobs
    assert run.prompt_logprobs == expected.prompt_logprobs
    assert len(run.logits) == len(expected.logits)
    for ours, theirs in zip(run.logits, expected.logits, strict=True):
        assert torch.equal(ours, theirs)


def check_prefix(run: Run, expected: Run) -> None:
    for choice, tokens in run.choices.items():
        assert tokens == expected.choices[choice][: len(tokens)]
    assert run.logprobs == expected.logprobs[: len(run.logprobs)]


def test_modes_are_told_apart(tiny_model: Path, tokenizer: Path):
    """Else the test below would not see one taken for another; and the grammars are fulfilled."""
    runs = {mode: alone(tiny_model, tokenizer, 65, mode, "auto") for mode in MODES}
    assert len({tuple(run.tokens) for run in runs.values()}) == len(MODES)
    for mode in ("grammar", "greedy grammar"):
        assert runs[mode].done.reason == "stop"  # type: ignore[union-attr]
        jsonschema.validate(json.loads(text_of(tokenizer, runs[mode].tokens)), SCHEMA)


def company(folder: Path, tokenizer: Path, data: st.DataObject) -> Bench:
    kv_dtype: KvDtype = data.draw(st.sampled_from(["auto", "auto", "fp8"]), "kv")
    bench = bench_of(
        folder,
        tokenizer,
        blocks=data.draw(st.sampled_from([6, 9, 14, 40]), "blocks"),
        window_blocks=data.draw(st.sampled_from([3, 4, 9]), "window blocks"),
        budget=data.draw(st.sampled_from([70, 100, 192, 400]), "budget"),
        running=data.draw(st.sampled_from([2, 6]), "running"),
        swap=data.draw(st.sampled_from([0, 3, 30]), "swap"),
        kv_dtype=kv_dtype,
    )
    wanted: dict[str, tuple[int, str]] = {}
    aborted: set[str] = set()
    for index in range(data.draw(st.integers(2, 7), "requests")):
        id, length = str(index), data.draw(st.sampled_from(LENGTHS), "length")
        mode = data.draw(st.sampled_from(sorted(MODES)), "mode")
        wanted[id] = length, mode
        options = {
            "read": data.draw(st.booleans(), "read"),
            "store": data.draw(st.sampled_from(["all", "none"]), "store"),
            "credit": data.draw(st.sampled_from([1 << 20, 0, 2]), "credit"),
            "lane": data.draw(st.sampled_from(LANES), "lane"),
        }
        bench.add(request(id, length, mode, **options))
        for _ in range(data.draw(st.integers(0, 4), "steps")):
            bench.step()
        if data.draw(st.integers(0, 5), "abort") == 0:
            victim = data.draw(st.sampled_from(sorted(wanted)))
            if bench.engine.abort(victim):
                aborted.add(victim)
        for other in data.draw(st.sets(st.sampled_from(sorted(wanted))), "credited"):
            bench.engine.credit(other, 0, data.draw(st.integers(0, OUTPUT)))
    for id in wanted:
        bench.engine.credit(id, 0, 1 << 20)
    bench.finish()
    assert bench.engine.pool.referenced_blocks == 0
    for id, (length, mode) in wanted.items():
        run, expected = bench.runs[id], alone(folder, tokenizer, length, mode, kv_dtype)
        assert run.done is not None
        if id in aborted:
            assert run.done.reason == "abort"
            check_prefix(run, expected)
        else:
            check(run, expected)
            assert run.done.counts.prompt == length
    return bench


@settings(max_examples=MORE or 15, deadline=None)
@given(data=st.data())
def test_in_any_company(tiny_model: Path, tokenizer: Path, data: st.DataObject):
    company(tiny_model, tokenizer, data)


# The families whose attention or feed-forward layers are computed in other ways than Llama's.
DIFFERENT = ["qwen2", "phi3 longrope", "gemma2", "gemma3", "mistral", "qwen3 moe", "gpt-oss", "deepseek v3"]


@pytest.mark.slow
@pytest.mark.parametrize("family", DIFFERENT)
@settings(max_examples=MORE or 3, deadline=None)
@given(data=st.data())
def test_every_family_in_any_company(family_folders: Families, tokenizer: Path, family: str, data: st.DataObject):
    company(family_folders(family), tokenizer, data)


@pytest.mark.parametrize("swap", [0, 9])
@pytest.mark.parametrize("mode", ["grammar", "penalties", "logprobs"])
def test_the_sampler_goes_on_where_it_was_after_preemption(tiny_model: Path, tokenizer: Path, mode: str, swap: int):
    """Half way through its output, and half way through the grammar; by copying out and by computing again."""
    fields: dict[str, Any] = {"output": 100}
    if mode == "grammar":
        # Long enough to be in need of another block while it is written.
        schema = {"type": "array", "items": {"type": "integer"}, "minItems": 25, "maxItems": 25}
        fields = {"output": 190, "grammar": json.dumps({"json_schema": schema})}
    expected = bench_of(tiny_model, tokenizer).one(request("x", 129, mode, **fields))
    bench = bench_of(tiny_model, tokenizer, blocks=6, budget=200, running=4, swap=swap)
    bench.add(request("old", 130, "greedy", output=200))
    young = bench.add(request("young", 129, mode, read=False, lane="batch", **fields))
    written: list[int] = []
    while bench.engine.busy:
        before = [one.output for one in bench.engine.scheduler.running if one.id == "young"]
        preemptions = bench.engine.scheduler.preemptions
        bench.step()
        if bench.engine.scheduler.preemptions > preemptions:
            written += before
    check(young, expected)
    assert any(output > 10 for output in written), written
    assert (bench.counts("young").recomputed > 0) == (swap == 0)
    if mode == "grammar":
        assert young.done.reason == "stop"  # type: ignore[union-attr]
        assert len(json.loads(text_of(tokenizer, young.tokens))) == 25
