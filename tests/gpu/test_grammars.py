"""Grammars and the search for their end on a device, with the demo model: fulfilled, and the CPU's very output."""

from __future__ import annotations

import json
import re
from functools import cache

import jsonschema

from protocol.requests import Generate
from tests.engine.conftest import Bench, generate, make_bench
from tests.engine.grammar.test_grammar import DEMO, END, PERSON, grammars, prompt, text_of

PATTERN = "[0-9]{3}-[a-f]{4,}"
LIMITS = (50, 53, 60)
"""49 tokens are enough for a person."""


@cache
def demo(device: str) -> Bench:
    bench = make_bench(DEMO, blocks=60, device=device)
    bench.engine.input_processor.grammars = grammars()
    return bench


def requests(name: str) -> list[Generate]:
    """People just within the limit, wild and greedy, which without the search for an end would be cut off; and more."""
    person = json.dumps({"json_schema": PERSON})
    wild = {"temperature": 1.5, "top_p": 0.95}
    of_limits = [
        generate(f"{name}{limit}", prompt(), limit, grammar=person, seed=limit, stop_tokens=(END,), **wild)
        for limit in LIMITS
    ]
    return [
        *of_limits,
        generate(f"{name}greedy", prompt(), 50, grammar=person, stop_tokens=(END,)),
        generate(f"{name}regex", prompt(), 24, grammar=json.dumps({"regex": PATTERN}), seed=1, **wild),
        generate(f"{name}plain", prompt(), 24, seed=1, **wild),
    ]


def test_near_the_limit_only_what_can_still_close(device: str):
    bench = demo(device)
    runs = [bench.add(request) for request in requests("together ")]
    bench.finish()
    for run in runs[:-1]:
        assert run.done is not None
        assert run.done.reason == "stop"
    for run in runs[: len(LIMITS) + 1]:
        jsonschema.validate(json.loads(text_of([token for token in run.tokens if token != END])), PERSON)
    assert re.fullmatch(PATTERN, text_of([token for token in runs[-2].tokens if token != END]))
    assert [run.tokens for run in runs] == cpu_alone()


@cache
def cpu_alone() -> list[list[int]]:
    return [demo("cpu").one(request).tokens for request in requests("alone ")]


def test_an_impossible_grammar_is_refused_and_disturbs_nobody(device: str):
    bench = demo(device)
    running = bench.add(generate(f"running {device}", prompt(), 8))
    bench.step()
    bad = bench.add(generate(f"bad {device}", prompt(), 8, grammar='{"regex": "("}'))
    bench.finish()
    assert bad.done is not None
    assert (bad.done.reason, bad.done.invalid) == ("rejected", "grammar")
    assert running.tokens == demo("cpu").one(generate(f"alone {device}", prompt(), 8)).tokens
