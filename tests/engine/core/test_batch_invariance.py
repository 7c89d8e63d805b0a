"""E1 and C2 over everything together: requests that share batches with any others get the same tokens, to the bit.

They draw their tokens in every mode, in any chunks, cold or warm, preempted by copying out or by computing again,
beside neighbours that are aborted. Logits and log probabilities are compared to the bit, too (fp32, CPU).
"""

from __future__ import annotations

import json
import os
from functools import cache
from pathlib import Path

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.options import KvDtype
from protocol.requests import LANES, Counts
from tests.engine.conftest import Families, Run, without_output
from tests.engine.modes import MODES, OUTPUT, SCHEMA, assert_same, bench_of, preempt, request
from tests.engine.tiny_tokenizer import text_of
from tests.fast import examples, only_fast

MORE = int(os.environ.get("TURNPIKE_COMPANY_EXAMPLES", "0"))
"""How many examples of each test, in long runs."""
LENGTHS = [1, 63, 64, 65, 129, 200]


@cache
def alone(folder: Path, tokenizer: Path, length: int, mode: str, kv_dtype: KvDtype) -> Run:
    """The reference: alone, cold, in one chunk."""
    run = bench_of(folder, tokenizer, budget=512, kv_dtype=kv_dtype).one(request("alone", length, mode))
    assert run.done is not None
    assert run.done.reason in {"length", "stop"}
    return run


def assert_a_beginning(run: Run, expected: Run) -> None:
    """An aborted choice is a beginning of the reference; choices that had ended before the abort are whole."""
    assert run.done is not None
    reasons = run.done.reasons or (run.done.reason,)
    assert "abort" in reasons
    for choice, tokens in run.choices.items():
        whole = expected.choices[choice]
        assert tokens == (whole[: len(tokens)] if reasons[choice] == "abort" else whole)
    assert run.logprobs == expected.logprobs[: len(run.logprobs)]


@pytest.mark.slow
def test_modes_are_told_apart(tiny_model: Path, tokenizer: Path):
    """Otherwise the tests below could not see one mode taken for another. Grammars are fulfilled."""
    runs = {mode: alone(tiny_model, tokenizer, 65, mode, "auto") for mode in MODES}
    assert len({tuple(run.tokens) for run in runs.values()}) == len(MODES)
    for mode in ("grammar", "greedy grammar"):
        assert runs[mode].done.reason == "stop"  # type: ignore[union-attr]
        jsonschema.validate(json.loads(text_of(tokenizer, runs[mode].tokens)), SCHEMA)


def assert_in_company(folder: Path, tokenizer: Path, data: st.DataObject) -> None:
    """Requests as hypothesis draws them get what each gets alone."""
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
            assert_a_beginning(run, expected)
        else:
            assert_same(run, expected)
            assert run.done.counts.prompt == length


@settings(max_examples=MORE or examples(15), deadline=None)
@given(data=st.data())
def test_in_any_company(tiny_model: Path, tokenizer: Path, data: st.DataObject):
    assert_in_company(tiny_model, tokenizer, data)


# The families whose attention or feed-forward layers are computed in other ways than Llama's.
DIFFERENT = [
    *("qwen2", "phi3 longrope", "gemma2", "gemma3", "mistral", "qwen3 moe", "gpt-oss", "deepseek v3"),
    *("qwen2 moe", "smollm3", "granite", "olmo2", "glm4", "starcoder2", "phi"),
]


@pytest.mark.slow
@pytest.mark.parametrize("family", DIFFERENT)
@settings(max_examples=MORE or examples(3), deadline=None)
@given(data=st.data())
def test_every_family_in_any_company(family_folders: Families, tokenizer: Path, family: str, data: st.DataObject):
    assert_in_company(family_folders(family), tokenizer, data)


def test_the_prompt_is_scored_once_when_it_is_computed_again_in_parts(tiny_model: Path, tokenizer: Path):
    """Its slot is taken when all of the prompt but its end is computed, and it begins anew."""
    bench = bench_of(tiny_model, tokenizer, budget=70, running=1, swap=0)
    young = bench.add(request("young", 129, "of the prompt", read=False, lane="batch"))
    while len(young.prompt_logprobs) < 128:
        bench.step()
    bench.add(request("urgent", 65, "greedy", lane="interactive"))
    bench.finish()
    assert bench.counts("young").recomputed > 64
    assert_same(young, alone(tiny_model, tokenizer, 129, "of the prompt", "auto"))


@pytest.mark.slow
@pytest.mark.parametrize("swap", [0, 9])
@pytest.mark.parametrize(
    "mode", only_fast("grammar", of=["grammar", "penalties", "logprobs", "reasoning before a grammar"])
)
def test_the_sampler_goes_on_where_it_was_after_preemption(tiny_model: Path, tokenizer: Path, mode: str, swap: int):
    """Half way through its output, and half way through the grammar; by copying out and by computing again."""
    preempted = preempt(tiny_model, tokenizer, mode, swap)
    assert_same(preempted.run, preempted.alone)
    assert any(output > 10 for output in preempted.written), preempted.written
    assert (preempted.recomputed > 0) == (swap == 0)
    if mode == "grammar":
        assert preempted.run.done.reason == "stop"  # type: ignore[union-attr]
        assert len(json.loads(text_of(tokenizer, preempted.run.tokens))) == 25


@pytest.mark.parametrize("mode", only_fast("grammar", "three", of=sorted(MODES.keys() - {"of the prompt"})))
@settings(max_examples=MORE or examples(2), deadline=None)
@given(data=st.data())
def test_a_request_goes_on_where_another_replica_died(
    tiny_model: Path, tokenizer: Path, mode: str, data: st.DataObject
):
    """Penalties, grammar, reasoning, least length and random numbers go on after what it had put out, of each choice
    another amount; all of a choice may have come. What was counted there is counted once."""
    length = data.draw(st.sampled_from(LENGTHS), "length")
    expected = alone(tiny_model, tokenizer, length, mode, "auto")
    assert expected.done is not None
    wholes = [expected.choices[choice] for choice in sorted(expected.choices)]
    told = [data.draw(st.integers(0, len(whole)), "told") for whole in wholes]
    told[0] = told[0] or 1
    emitted = tuple(whole[:some] for whole, some in zip(wholes, told, strict=True))
    earlier = Counts(prompt=length, computed=length - length // 2, read_hbm=length // 2)
    bench = bench_of(tiny_model, tokenizer, budget=data.draw(st.sampled_from([70, 400]), "budget"), running=4)
    run = bench.one(request("rest", length, mode, emitted=emitted, counted=earlier, delivered=1))
    for choice, whole in enumerate(wholes):
        assert emitted[choice] + run.choices.get(choice, []) == whole
    assert run.logprobs == expected.logprobs[told[0] :]
    assert run.done is not None
    assert (run.done.reason, run.done.reasons) == (expected.done.reason, expected.done.reasons)
    counts, whole_counts = run.done.counts, expected.done.counts
    assert without_output(counts) == earlier
    assert (counts.output, run.done.delivered) == (whole_counts.output, 1)
    ended = all(map(len, emitted)) and sum(map(len, emitted)) == whole_counts.output
    assert (counts.recomputed == 0) == ended
    assert bench.engine.pool.referenced_blocks == 0


def test_a_choice_that_is_not_wanted_any_more_does_not_go_on(tiny_model: Path, tokenizer: Path):
    """The first one, too, which else computes the prompt for the others."""
    expected = alone(tiny_model, tokenizer, 129, "three", "auto")
    emitted = tuple(expected.choices[choice][:2] for choice in range(3))
    bench = bench_of(tiny_model, tokenizer, budget=400, running=4)
    run = bench.one(request("rest", 129, "three", emitted=emitted, stopped=(0, 2)))
    assert list(run.choices) == [1]
    assert emitted[1] + run.choices[1] == expected.choices[1]
    assert run.done is not None
    assert (run.done.reasons[0], run.done.reasons[2]) == ("abort", "abort")
