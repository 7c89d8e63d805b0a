"""Grammars take a bounded time of each step, whoever has them: the rest waits, comes out the same, and is charged."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from engine.grammar.llguidance_grammar import LlguidanceGrammars
from engine.grammar.llguidance_guide import LlguidanceGuide, LlguidancePosition, SharedGrammarState
from tests.engine.conftest import Bench, Run, generate, make_bench

DEMO = Path(__file__).resolve().parents[3] / "models" / "stdlib-qa"
PROMPT = list(range(5, 25))
STEP_S = 0.05
"""No step may take more CPU time for grammars, but for what was begun."""


class Clock:
    """A thread's CPU time, which only grammars use up: so much for a mask, and for each place that a search sees."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now, self.mask_s, self.place_s = 0.0, 0.0, 0.0
        self.places = 0
        monkeypatch.setattr(time, "thread_time", lambda: self.now)
        made, allowed = LlguidanceGuide.__init__, LlguidancePosition.allowed

        def make_slow(guide: LlguidanceGuide, matcher: Any, shared: SharedGrammarState) -> None:
            made(guide, SlowMatcher(matcher, self), shared)  # type: ignore[arg-type]

        def look_slowly(place: LlguidancePosition, candidates: NDArray[np.int64]) -> NDArray[np.int64]:
            self.now += self.place_s
            self.places += 1
            return allowed(place, candidates)

        monkeypatch.setattr(LlguidanceGuide, "__init__", make_slow)
        monkeypatch.setattr(LlguidancePosition, "allowed", look_slowly)


class SlowMatcher:
    """The library's matcher, whose masks take their time."""

    def __init__(self, matcher: Any, clock: Clock) -> None:
        self._matcher = matcher
        self._clock = clock

    def __getattr__(self, name: str) -> Any:
        if name == "unsafe_compute_mask_ptr":
            self._clock.now += self._clock.mask_s
        return getattr(self._matcher, name)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


@pytest.fixture
def demo() -> Bench:
    bench = make_bench(DEMO, blocks=200)
    bench.engine.input_processor.grammars = LlguidanceGrammars(DEMO, 4096, [4095])
    return bench


def letters(count: int) -> str:
    return json.dumps({"regex": f"[a-z ]{{{count}}}"})


def ask(bench: Bench, id: str, output: int, **how: Any) -> Run:
    return bench.add(generate(id, PROMPT, output, temperature=1.0, seed=7, **how))


def longest_step(bench: Bench, clock: Clock) -> float:
    """Run all to their ends; the most CPU time that grammars took in one step."""
    longest = 0.0
    while bench.engine.busy:
        before = clock.now
        bench.step()
        longest = max(longest, clock.now - before)
    return longest


@pytest.mark.slow
def test_searches_of_many_outputs_are_spread_over_steps_and_find_the_same(demo: Bench, clock: Clock) -> None:
    clock.place_s = 0.001
    grammars = {f"{count}": letters(count) for count in range(190, 202)}
    alone = {}
    for name, grammar in grammars.items():
        demo.engine.input_processor.grammars = LlguidanceGrammars(DEMO, 4096, [4095])
        alone[name] = ask(demo, f"alone {name}", 3, grammar=grammar, choices=2)
        demo.finish()
    demo.engine.input_processor.grammars = LlguidanceGrammars(DEMO, 4096, [4095])
    for grammar in grammars.values():
        demo.engine.input_processor.grammars.compiled(grammar)
    plain = ask(demo, "plain", 12)
    together = {name: ask(demo, name, 3, grammar=grammar, choices=2) for name, grammar in grammars.items()}
    assert longest_step(demo, clock) <= STEP_S
    assert plain.done is not None
    for name, run in together.items():
        assert run.choices == alone[name].choices
        assert run.tokens == alone[name].tokens
        assert run.done is not None
        assert (run.done.reason, run.done.counts.output) == ("length", 6)
        assert run.done.counts.computed + run.done.counts.read_hbm == len(PROMPT)
    demo.engine.scheduler.check()
    assert demo.engine.pool.referenced_blocks == 0


@pytest.mark.slow
def test_near_their_limit_texts_of_a_fixed_length_end_in_time_and_step_by_step(demo: Bench, clock: Clock) -> None:
    clock.place_s = 0.001
    how: dict[str, Any] = {"grammar": json.dumps({"regex": "[0-9a-f]{40}"}), "choices": 3}
    alone = ask(demo, "alone", 44, **how)
    demo.finish()
    runs = [ask(demo, f"{number}", 44, **how) for number in range(4)]
    assert longest_step(demo, clock) <= STEP_S
    for run in runs:
        assert run.choices == alone.choices
        assert run.done is not None
        assert run.done.reason == "stop"


def test_outputs_with_one_grammar_and_limit_search_once(demo: Bench, clock: Clock) -> None:
    ask(demo, "first", 3, grammar=letters(200))
    demo.finish()
    seen = clock.places
    assert seen > 0
    for number in range(8):
        ask(demo, f"{number}", 3, grammar=letters(200), choices=4)
    demo.finish()
    assert clock.places == seen


def test_slow_masks_hold_up_their_own_flow_alone(demo: Bench, clock: Clock) -> None:
    """A quick flow's row comes first in every step, however many slow ones are put off."""
    clock.mask_s = 0.01
    alone = ask(demo, "alone", 6, grammar=letters(201), flow="quick")
    demo.finish()
    slow = [ask(demo, f"slow {number}", 6, grammar=letters(200), flow="slow") for number in range(12)]
    demo.step(), demo.step()
    quick = ask(demo, "quick", 6, grammar=letters(201), flow="quick")
    steps, longest = 0, 0.0
    while quick.done is None:
        before = clock.now
        demo.step()
        longest = max(longest, clock.now - before)
        steps += 1
    assert longest <= STEP_S
    assert steps <= 8
    assert quick.tokens == alone.tokens
    assert sum(len(run.tokens) for run in slow) < 12 * 6
    assert longest_step(demo, clock) <= STEP_S
    assert {tuple(run.tokens) for run in slow} == {tuple(slow[0].tokens)}
    assert all(run.done is not None and run.done.reason == "length" for run in slow)


def test_a_search_that_fails_ends_its_own_request(demo: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """The step in which it failed is run again, each of its requests alone."""

    def fail(_: LlguidancePosition) -> list[int]:
        raise RuntimeError("the library failed")

    plain = ask(demo, "alone", 6)
    demo.finish()
    demo.engine.input_processor.grammars.compiled(letters(200))
    monkeypatch.setattr(LlguidancePosition, "forced", fail)
    broken, beside = ask(demo, "broken", 3, grammar=letters(200)), ask(demo, "beside", 6)
    demo.finish(100)
    assert broken.done is not None
    assert (broken.done.reason, broken.done.error) == ("error", "RuntimeError: the library failed")
    assert beside.tokens == plain.tokens


def test_the_time_of_a_grammar_is_charged_to_its_flow(demo: Bench, clock: Clock) -> None:
    clock.mask_s = 0.005
    ask(demo, "plain", 6, flow="plain")
    ask(demo, "slow", 6, flow="slow", grammar=letters(200))
    demo.finish()
    service = demo.engine.service()
    more_us = service["standard/slow"] - service["standard/plain"]
    assert 5 * 5_000 <= more_us <= 8 * 5_000
