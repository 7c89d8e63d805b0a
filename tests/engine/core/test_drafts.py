"""Steps with several rows of a request: drafts are verified, and it gets what plain decoding gives it, to the bit (E1).

Drafts are given here by hand, right ones and wrong ones: the tokens of a plain run are known.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.scheduling.request import Request
from prompt_cache.kv.block_keys import BLOCK_TOKENS
from tests.engine.conftest import VOCABULARY, Bench, Families, Run, make_bench, without_output
from tests.engine.modes import MODES, assert_same, bench_of, request
from tests.fast import examples

ALL_MODES = sorted(MODES)
LENGTHS = [1, 56, 62, 63, 64, 65, 129]


class Snapshots:
    """The KV of a request's computed tokens, [layers, parts, heads, tokens, dim], by how many there are."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self.by_tokens: dict[tuple[int, int], list[torch.Tensor]] = {}

    def take(self) -> None:
        for running in self.bench.engine.scheduler.running:
            if running.id == "x" and running.slot >= 0:
                self.by_tokens[running.choice, running.kv] = [
                    torch.cat([memory.data[block[group]] for block in running.table], -2)[..., : running.kv, :].clone()
                    for group, memory in enumerate(self.bench.engine.executor.runner.memories)
                ]


@cache
def plain(folder: Path, tokenizer: Path, length: int, mode: str) -> tuple[Run, Snapshots]:
    """What a request gets without drafts."""
    bench = bench_of(folder, tokenizer)
    run, kv = bench.add(request("x", length, mode)), Snapshots(bench)
    while bench.engine.busy:
        bench.step()
        kv.take()
    return run, kv


def next_tokens(running: Request, expected: Run) -> list[int]:
    """What plain decoding goes on with."""
    return expected.choices[running.choice][running.output :]


@settings(max_examples=examples(25), deadline=None)
@given(data=st.data())
def test_verified_drafts_give_what_plain_decoding_gives(tiny_model: Path, tokenizer: Path, data: st.DataObject):
    length, mode = data.draw(st.sampled_from(LENGTHS), "length"), data.draw(st.sampled_from(ALL_MODES), "mode")
    expected, expected_kv = plain(tiny_model, tokenizer, length, mode)
    bench = bench_of(tiny_model, tokenizer)
    run, kv = bench.add(request("x", length, mode)), Snapshots(bench)
    bench.add(request("beside", 70, data.draw(st.sampled_from(ALL_MODES), "beside")))
    while bench.engine.busy:
        for work in list(bench.engine.scheduler.batch.decodes):
            if work.request.id == "x":
                drafts = next_tokens(work.request, expected)[: data.draw(st.integers(0, 5), "right")]
                drafts += data.draw(st.lists(st.integers(0, VOCABULARY - 1), max_size=3), "others")
                verified = bench.engine.scheduler.batch.draft(work.request, drafts)
                assert work.count == 1 + verified
        bench.step()
        kv.take()
    assert_same(run, expected)
    assert kv.by_tokens.keys() <= expected_kv.by_tokens.keys()
    for tokens, held in kv.by_tokens.items():
        assert all(map(torch.equal, held, expected_kv.by_tokens[tokens])), f"other KV of {tokens}"
    done, wanted = run.done, expected.done
    assert done is not None
    assert wanted is not None
    assert (without_output(done.counts), done.counts.output) == (without_output(wanted.counts), wanted.counts.output)
    assert done.delivered == wanted.delivered


def steps_with_drafts(bench: Bench, expected: Run, drafts: int, wrong_at: int | None = None) -> list[int]:
    """How many tokens each step brought the only request, all of whose drafts are right but one."""
    brought = []
    while bench.engine.busy:
        before = len(bench.runs["x"].tokens)
        for work in list(bench.engine.scheduler.batch.decodes):
            tokens = next_tokens(work.request, expected)[:drafts]
            if wrong_at is not None and wrong_at < len(tokens):
                tokens[wrong_at] = (tokens[wrong_at] + 1) % VOCABULARY
            bench.engine.scheduler.batch.draft(work.request, tokens)
        bench.step()
        brought.append(len(bench.runs["x"].tokens) - before)
    return brought


def test_accepted_drafts_save_steps_and_wrong_ones_end_the_run(tiny_model: Path, tokenizer: Path):
    """With 9 tokens to write: the first behind the prompt, then four a step; 2 where the second draft is wrong."""
    expected, _ = plain(tiny_model, tokenizer, 20, "penalties")
    for wrong_at, brought in ((None, [1, 4, 4]), (1, [1, 2, 2, 2, 2])):
        bench = bench_of(tiny_model, tokenizer)
        run = bench.add(request("x", 20, "penalties"))
        assert steps_with_drafts(bench, expected, 3, wrong_at) == brought
        assert_same(run, expected)


@pytest.mark.parametrize("length", [60, 63, 64])
def test_rows_stay_in_the_blocks_that_the_request_has(tiny_model: Path, tokenizer: Path, length: int):
    """No block is taken, and nobody preempted, for a draft: a run ends at the block's end."""
    expected, _ = plain(tiny_model, tokenizer, length, "greedy")
    bench = bench_of(tiny_model, tokenizer)
    run = bench.add(request("x", length, "greedy"))
    while bench.engine.busy:
        for work in list(bench.engine.scheduler.batch.decodes):
            room = len(work.request.table) * BLOCK_TOKENS - len(work.request.tokens)
            tokens = next_tokens(work.request, expected)
            assert bench.engine.scheduler.batch.draft(work.request, tokens) == max(0, min(room, len(tokens) - 1))
        bench.step()
    assert_same(run, expected)


def test_credit_a_limit_and_a_stop_token_bound_the_drafts(tiny_model: Path):
    bench = make_bench(tiny_model)
    scheduler = bench.engine.scheduler
    asked = {
        "credit": request("credit", 10, "greedy", credit=4),
        "limit": request("limit", 10, "greedy", output=6),
        "stop": request("stop", 10, "greedy", stop_tokens=(7,)),
    }
    for each in asked.values():
        bench.add(each)
    bench.step()
    verified = {
        work.request.id: scheduler.batch.draft(work.request, [5, 6, 8, 9, 7, 5, 6, 8])
        for work in scheduler.batch.decodes
    }
    assert verified == {"credit": 2, "limit": 4, "stop": 4}
    for work in scheduler.batch.decodes:
        assert scheduler.batch.draft(work.request, []) == 0
    assert scheduler.batch.drafted == 0


def test_a_step_has_no_more_rows_than_its_budget(tiny_model: Path):
    """A block of somebody's prompt has room beside all rows."""
    bench = make_bench(tiny_model, budget=64 + 4 + 3, running=4)
    for id in "ab":
        bench.add(request(id, 10, "greedy"))
    bench.step()
    scheduler = bench.engine.scheduler
    assert [scheduler.batch.draft(work.request, [3, 4]) for work in scheduler.batch.decodes] == [2, 1]
    bench.add(request("c", 100, "greedy"))
    step = scheduler.schedule()
    assert [(work.request.id, work.count) for work in step.work] == [("a", 3), ("b", 2), ("c", 64)]


def test_a_draft_whose_row_is_not_finite_harms_nobody(
    tiny_model: Path, tokenizer: Path, monkeypatch: pytest.MonkeyPatch
):
    """Plain decoding would not have computed it. Its key is masked in the rows before, but 0 x NaN is NaN."""
    expected, _ = plain(tiny_model, tokenizer, 20, "greedy")
    harmful = next(token for token in range(3, VOCABULARY) if token not in expected.tokens)
    bench = bench_of(tiny_model, tokenizer)
    embed = bench.engine.executor.runner.model.embedding

    def poisoned(tokens: torch.Tensor) -> torch.Tensor:
        hidden = embed(tokens)
        hidden[tokens == harmful] = torch.nan
        return hidden

    monkeypatch.setattr(bench.engine.executor.runner.model, "embedding", poisoned)
    run = bench.add(request("x", 20, "greedy"))
    while bench.engine.busy:
        for work in list(bench.engine.scheduler.batch.decodes):
            bench.engine.scheduler.batch.draft(
                work.request, [*next_tokens(work.request, expected)[:1], harmful, harmful]
            )
        bench.step()
    assert_same(run, expected)


@pytest.mark.slow
@pytest.mark.parametrize("family", ["gemma2", "mistral", "qwen3 moe", "gpt-oss", "deepseek v3"])
def test_drafts_of_other_families(family_folders: Families, tokenizer: Path, family: str):
    """Windows, sinks, experts and latent attention."""
    folder = family_folders(family)
    expected, _ = plain(folder, tokenizer, 129, "penalties")
    for wrong_at in (None, 2):
        bench = bench_of(folder, tokenizer)
        run = bench.add(request("x", 129, "penalties"))
        brought = steps_with_drafts(bench, expected, 4, wrong_at)
        assert max(brought) > 1
        assert_same(run, expected)
