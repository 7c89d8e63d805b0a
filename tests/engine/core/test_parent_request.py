"""Several outputs of one prompt: each as a request of its own would give it; the prompt is computed and counted
once."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.sampling.counter_random import choice_seed
from protocol.requests import Counts, Tokens
from tests.engine.conftest import VOCABULARY, Bench, Families, Run, generate, make_bench
from tests.fast import examples, only_fast

Benches = Callable[..., Bench]
LONG = [(11 * i + i * i) % VOCABULARY for i in range(300)]
SEEDED: dict[str, Any] = {"temperature": 1.4, "top_p": 0.95, "seed": 77, "frequency_penalty": 0.3}


def alone(bench: Bench, length: int, output: int, choice: int, **fields: Any) -> list[int]:
    how = {**SEEDED, **fields, "seed": choice_seed(SEEDED["seed"], choice)}
    return bench.one(generate(f"alone{choice}", LONG[:length], output, read=False, store="none", **how)).tokens


def outputs(run: Run) -> list[list[int]]:
    return [run.choices[choice] for choice in sorted(run.choices)]


@pytest.mark.parametrize("length", only_fast(65, of=[1, 63, 64, 65, 300]))
@pytest.mark.parametrize("store", ["all", "none"])
def test_choices_are_what_single_requests_with_the_derived_seeds_are(benches: Benches, length: int, store: str):
    bench = benches(budget=128)
    run = bench.one(generate("many", LONG[:length], 12, choices=5, store=store, **SEEDED))
    assert outputs(run) == [alone(bench, length, 12, choice) for choice in range(5)]
    assert len({tuple(each) for each in outputs(run)}) == 5
    tail = length - (length - 1) // 64 * 64
    assert bench.counts("many") == Counts(prompt=length, computed=length, output=60, recomputed=4 * tail)
    assert run.done is not None
    assert (run.done.reason, run.done.reasons) == ("length", ("length",) * 5)
    assert bench.engine.pool.referenced_blocks == 0


def test_the_whole_blocks_are_shared_while_it_runs(benches: Benches):
    bench = benches()
    bench.add(generate("many", LONG, 30, choices=6, **SEEDED))
    for _ in range(6):
        bench.step()
    assert bench.engine.running == 6
    assert bench.engine.pool.referenced_blocks == 300 // 64 + 6


def test_a_step_tells_the_journal_once_of_a_request_with_many_choices(benches: Benches):
    """The counts are of all its choices: told of each, a step would cost the square of their number."""
    bench = benches()
    bench.add(generate("many", LONG[:70], 8, choices=6, **SEEDED))
    steps = [bench.engine.step() for _ in range(6)]
    drawn = [len(event.tokens) for step in steps for event in step.events if isinstance(event, Tokens)]
    assert [len(step.progress) for step in steps[1:]] == [1] * 5
    assert steps[-1].progress[0].counts.output == sum(drawn) > 6


def test_without_a_store_nothing_is_left_and_nobody_else_reads(bench: Bench):
    bench.add(generate("many", LONG, 5, choices=3, store="none", **SEEDED))
    for _ in range(3):
        bench.step()
    bench.one(generate("other", LONG, 2, store="none"))
    assert bench.counts("other").read_hbm == 0
    assert bench.counts("many").prompt == bench.counts("many").computed == 300
    assert bench.engine.pool.cached_blocks == 0


def test_a_warm_prompt_is_read_once(bench: Bench):
    bench.one(generate("first", LONG, 2))
    bench.one(generate("many", LONG, 4, choices=3, **SEEDED))
    assert bench.counts("many") == Counts(prompt=300, computed=44, read_hbm=256, output=12, recomputed=88)


@pytest.mark.parametrize("name", ["mistral", "deepseek v2"])
def test_with_windows_and_latents(family_folders: Families, name: str):
    bench = make_bench(family_folders(name))
    run = bench.one(generate("many", [token % 90 for token in LONG], 10, choices=3, **SEEDED))
    one = bench.one(
        generate("one", [token % 90 for token in LONG], 10, read=False, **{**SEEDED, "seed": choice_seed(77, 2)})
    )
    assert run.choices[2] == one.tokens


def test_a_choice_stops_alone(benches: Benches):
    bench = benches(budget=128)
    run = bench.add(generate("many", LONG, 20, choices=3, **SEEDED))
    for _ in range(6):
        bench.step()
    assert bench.engine.abort("many", 1)
    assert bench.engine.running == 2
    bench.finish()
    assert run.done is not None
    assert run.done.reasons == ("length", "abort", "length")
    assert run.choices[0] == alone(bench, 300, 20, 0)
    assert run.choices[2] == alone(bench, 300, 20, 2)
    assert len(run.choices[1]) < 20


def test_the_first_choice_computes_the_prompt_though_it_was_stopped(benches: Benches):
    bench = benches(budget=128)
    run = bench.add(generate("many", LONG, 20, choices=3, **SEEDED))
    bench.step()
    bench.engine.abort("many", 0)
    bench.engine.abort("many", 2)
    bench.finish()
    assert run.choices[1] == alone(bench, 300, 20, 1)
    assert set(run.choices) == {1}
    assert run.done is not None
    assert run.done.reasons == ("abort", "length", "abort")
    assert bench.counts("many").prompt == 300
    assert bench.counts("many").output == 20


@pytest.mark.parametrize("steps", range(8))
def test_an_abort_at_any_step_frees_all(benches: Benches, steps: int):
    bench = benches(budget=128)
    bench.add(generate("many", LONG, 8, choices=4, **SEEDED))
    for _ in range(steps):
        bench.step()
    assert bench.engine.abort("many")
    assert bench.engine.pool.referenced_blocks == 0
    assert not bench.engine.scheduler.busy
    bench.step()
    done = bench.runs["many"].done
    assert done is not None
    assert done.reason == "abort"
    assert done.counts.prompt == min(300, 128 * steps)


def test_credit_is_each_choices_own(bench: Bench):
    run = bench.add(generate("many", LONG, 9, choices=3, credit=2, **SEEDED))
    bench.finish()
    assert [len(each) for each in outputs(run)] == [2, 2, 2]
    bench.engine.credit("many", 6, 5)
    bench.finish()
    assert [len(each) for each in outputs(run)] == [5, 5, 5]
    assert bench.engine.credit("many", 15, 100) == (1, 15)
    bench.finish()
    assert run.done is not None
    assert run.done.delivered == 15
    assert outputs(run) == [alone(bench, 300, 9, choice) for choice in range(3)]


@pytest.mark.slow
@settings(max_examples=examples(8), deadline=None)
@given(seed=st.integers(0, 2**32))
def test_under_pressure_among_others(benches: Benches, seed: int):
    """Few blocks, few slots, neighbours and aborts: what is not aborted is what it would be alone."""
    chance = random.Random(seed)
    bench = benches(blocks=chance.choice([8, 12, 40]), budget=80, running=chance.choice([2, 4, 16]))
    length, output, choices = chance.choice([30, 64, 130, 200]), chance.choice([3, 40, 90]), chance.choice([2, 3, 5])
    store = chance.choice(["all", "none"])
    run = bench.add(generate("many", LONG[:length], output, choices=choices, store=store, **SEEDED))
    stopped = set()
    for index in range(6):
        for _ in range(chance.randrange(12)):
            bench.step()
        bench.add(generate(f"n{index}", LONG[index : 60 + index], 30, choices=chance.choice([1, 2]), temperature=1.0))
        if chance.random() < 0.3 and run.done is None:
            stopped.add(chance.randrange(choices))
            bench.engine.abort("many", max(stopped))
    bench.finish()
    assert run.done is not None
    reference = benches()
    for choice in set(range(choices)) - stopped:
        assert run.choices[choice] == alone(reference, length, output, choice)
    assert bench.counts("many").prompt == bench.counts("many").computed == length
    assert bench.engine.pool.referenced_blocks == 0
