"""Whoever drafts, whatever happens: each request gets the tokens and bits of plain decoding, and no block is lost."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.grammar import llguidance_guide
from engine.options import TEXT_DRAFTERS
from engine.speculation.drafter import Drafter
from engine.startup.speculation import make_drafters
from protocol.requests import LANES, Generate
from tests.engine.conftest import VOCABULARY, Bench, Families, Run
from tests.engine.memory_store import MemoryStore
from tests.engine.modes import MODES, assert_same, bench_of, request
from tests.engine.speculation.lying_drafter import LyingDrafter, OracleDrafter
from tests.fast import examples

LENGTHS = (1, 20, 56, 60, 62, 63, 64, 65, 120, 128)
CONTEXT = 256
EXAMPLES = int(os.environ.get("DRAFT_EXAMPLES", "0")) or examples(40)
"""`make test-drafts` is the long run, of 100,000."""
TIERS: tuple[dict[str, Any], ...] = (
    {},
    {"blocks": 9, "running": 4, "budget": 200},
    {"blocks": 9, "running": 4, "budget": 200, "swap": 8},
    {"blocks": 12, "running": 4, "budget": 200, "swap": 24, "store": True},
)


@cache
def plain(folder: Path, tokenizer: Path, length: int, mode: str, output: int | None) -> Run:
    """What a request gets alone, without drafts."""
    fields = {} if output is None else {"output": output}
    return bench_of(folder, tokenizer, context=CONTEXT).one(request("x", length, mode, **fields))


def bench_with(folder: Path, tokenizer: Path, drafters: Sequence[Drafter], options: dict[str, Any]) -> Bench:
    given = dict(options)
    if given.pop("store", False):
        given["store"] = MemoryStore()
    return bench_of(folder, tokenizer, context=CONTEXT, drafters=drafters, **given)


def assert_begins(run: Run, expected: Run) -> None:
    """What came of a request that was stopped is the beginning of what plain decoding gives it."""
    for choice, tokens in run.choices.items():
        assert tokens == expected.choices[choice][: len(tokens)]
    assert run.logprobs == expected.logprobs[: len(run.logprobs)]
    for ours, theirs in zip(run.logits, expected.logits, strict=False):
        assert torch.equal(ours, theirs)


@settings(max_examples=EXAMPLES, deadline=None)
@given(data=st.data())
def test_outputs_are_those_of_plain_decoding(tiny_model: Path, tokenizer: Path, data: st.DataObject):
    asked: dict[str, Generate] = {}
    expected: dict[str, Run] = {}
    for at in range(data.draw(st.integers(1, 4), "requests")):
        length, mode = data.draw(st.sampled_from(LENGTHS), "length"), data.draw(st.sampled_from(sorted(MODES)), "mode")
        to_the_end = data.draw(st.booleans(), "long") and "grammar" not in mode
        output = CONTEXT - length if to_the_end and length >= 120 else None
        expected[str(at)] = plain(tiny_model, tokenizer, length, mode, output)
        fields = {"output": output} if output is not None else {}
        asked[str(at)] = request(
            str(at),
            length,
            mode,
            credit=data.draw(st.sampled_from((1 << 20, 1 << 20, 3)), "credit"),
            lane=data.draw(st.sampled_from(LANES), "lane"),
            store=data.draw(st.sampled_from(("all", "all", "hbm", "none")), "store"),
            **fields,
        )
    known = {(id, choice): tokens for id, run in expected.items() for choice, tokens in run.choices.items()}
    liar = LyingDrafter(VOCABULARY, known, data.draw(st.integers(0, 999), "seed"))
    names = data.draw(st.lists(st.sampled_from(TEXT_DRAFTERS), unique=True), "drafters")
    lies = data.draw(st.booleans(), "lies") or not names
    drafters = [*make_drafters(names), *([liar] if lies else [])]
    bench = bench_with(tiny_model, tokenizer, drafters, data.draw(st.sampled_from(TIERS), "tiers"))
    begin = {id: data.draw(st.integers(0, 6), "begins") for id in asked}
    stop = {id: data.draw(st.sampled_from((None, None, None, 4, 9, 15)), "stops") for id in asked}
    forgets = data.draw(st.sampled_from((None, None, 7)), "forgets")
    step = 0
    while step <= max(begin.values()) or bench.engine.busy or bench.engine.scheduler.waits:
        for id, generate in asked.items():
            if begin[id] == step:
                bench.add(generate)
            elif stop[id] is not None and begin[id] + stop[id] == step:
                bench.engine.abort(id)
            elif step % 3 == 2 and id in bench.runs:
                received = max((len(tokens) for tokens in bench.runs[id].choices.values()), default=0)
                bench.engine.credit(id, 0, received + 5)
        if forgets == step:
            bench.engine.forget("project")
        bench.step()
        step += 1
        for id, run in bench.runs.items():
            if run.done is None and not bench.engine.busy:
                bench.engine.credit(id, 0, 1 << 20)
    for id, run in bench.runs.items():
        assert run.done is not None
        if "abort" in (run.done.reason, *run.done.reasons):
            assert_begins(run, expected[id])
        else:
            assert_same(run, expected[id])
        assert run.done.counts.output == sum(map(len, run.choices.values()))
    assert bench.engine.pool.referenced_blocks == 0
    assert not liar.open
    totals = bench.engine.speculator.totals
    counts = [run.done.counts for run in bench.runs.values() if run.done is not None]
    assert totals.drafted == sum(each.drafted for each in counts)
    assert totals.accepted == sum(each.accepted for each in counts) == sum(totals.accepted_at)
    if lies and not names:
        assert [sum(heard) for heard in zip(*liar.heard.values(), strict=True)] in (
            [],
            [totals.drafted, totals.accepted],
        )


@pytest.mark.parametrize("mode", sorted(MODES))
def test_a_drafter_that_knows_saves_steps_in_each_mode(
    tiny_model: Path, tokenizer: Path, mode: str, monkeypatch: pytest.MonkeyPatch
):
    # A grammar that once took long is asked for no further drafts: how many steps are saved would be the machine's.
    monkeypatch.setattr(llguidance_guide, "_GUESS_S", math.inf)
    expected = plain(tiny_model, tokenizer, 20, mode, None)

    known = {("x", choice): tokens for choice, tokens in expected.choices.items()}
    bench = bench_with(tiny_model, tokenizer, [OracleDrafter(VOCABULARY, known, 0)], {})
    run = bench.one(request("x", 20, mode))
    assert_same(run, expected)
    assert run.done is not None
    assert run.done.counts.drafted > 0
    # Where a grammar ends the output at a draft, that is the token behind those before it.
    assert run.done.counts.drafted - run.done.counts.accepted <= ("grammar" in mode) * len(run.choices)
    assert bench.engine.steps < len(expected.tokens)


@pytest.mark.slow
@pytest.mark.parametrize("family", ["gemma2", "mistral", "qwen3 moe", "gpt-oss", "deepseek v3"])
def test_drafters_with_other_families(family_folders: Families, tokenizer: Path, family: str):
    """Windows, sinks, experts and latent attention."""
    folder = family_folders(family)
    for mode in ("penalties", "grammar"):
        expected = bench_of(folder, tokenizer).one(request("x", 129, mode))
        liar = LyingDrafter(VOCABULARY, {("x", 0): expected.tokens}, 1)
        bench = bench_of(folder, tokenizer, drafters=[liar])
        run = bench.one(request("x", 129, mode))
        assert_same(run, expected)
        assert bench.counts("x").accepted > 0


def test_a_drafter_changes_what_is_counted_of_drafts_alone(tiny_model: Path, tokenizer: Path):
    expected = plain(tiny_model, tokenizer, 20, "greedy", None)
    liar = LyingDrafter(VOCABULARY, {("x", 0): expected.tokens}, 3)
    bench = bench_with(tiny_model, tokenizer, [liar], {})
    run = bench.one(request("x", 20, "greedy"))
    assert run.done is not None
    assert expected.done is not None
    assert run.done.counts.drafted > 0
    assert msgspec.structs.replace(run.done.counts, drafted=0, accepted=0) == expected.done.counts
