"""A draft model: whatever it guesses, requests get what plain decoding gives them; its KV is its own."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.scheduling.token_sequence import TokenSequence
from engine.speculation.draft_model import PREFIX_ROWS, DraftModel
from engine.speculation.drafter import Drafter, Proposal, Query
from protocol.requests import Retain, Segment
from tests.engine.conftest import Bench, Families, Run, generate, make_bench, without_output, write_model
from tests.engine.memory_store import MemoryStore
from tests.engine.modes import MODES, assert_same, bench_of, request
from tests.engine.speculation.side_drafters import Recorder, draft_model
from tests.fast import examples

LENGTHS = [1, 56, 62, 63, 64, 65, 129, 300]


@cache
def plain(folder: Path, tokenizer: Path, length: int, mode: str) -> Run:
    return bench_of(folder, tokenizer).one(request("x", length, mode))


@pytest.fixture(scope="session")
def other_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that rarely guesses what the tiny one writes."""
    return write_model(tmp_path_factory.mktemp("models") / "other", seed=7, num_hidden_layers=1)


@settings(max_examples=examples(20), deadline=None)
@given(data=st.data())
def test_requests_get_what_plain_decoding_gives(
    tiny_model: Path, other_model: Path, tokenizer: Path, data: st.DataObject
):
    """By a drafter that is always right where sampling is greedy, and by one that is wrong, in any company."""
    drafter = draft_model(
        data.draw(st.sampled_from([tiny_model, other_model]), "drafter"),
        blocks=data.draw(st.sampled_from([2, 5, 64]), "blocks"),
    )
    bench = bench_of(tiny_model, tokenizer, drafters=[drafter])
    expected: dict[str, Run] = {}
    for id in "abcd"[: data.draw(st.integers(1, 4), "requests")]:
        length, mode = data.draw(st.sampled_from(LENGTHS), "length"), data.draw(st.sampled_from(sorted(MODES)), "mode")
        expected[id] = plain(tiny_model, tokenizer, length, mode)
        bench.add(request(id, length, mode))
        for _ in range(data.draw(st.integers(0, 3), "steps before the next")):
            if bench.engine.busy:
                bench.step()
    bench.finish()
    drafter.side.pool.check()
    for id, wanted in expected.items():
        assert_same(bench.runs[id], wanted)


def test_a_model_that_is_the_served_one_is_always_right(tiny_model: Path):
    """So its own KV is what it should be, over block edges, whatever was accepted before."""
    bench = make_bench(tiny_model, drafters=[draft_model(tiny_model)])
    for length in (62, 63, 64, 65, 200):
        bench.add(request(str(length), length, "greedy", output=90))
    bench.finish()
    totals = bench.engine.speculator.totals
    assert totals.drafted > 300
    assert totals.accepted == totals.drafted


def test_what_was_refused_leaves_no_trace(tiny_model: Path, other_model: Path):
    """A model that is mostly wrong proposes what it would write behind the same tokens without any history."""
    recorder = Recorder(draft_model(other_model))
    bench, fresh = make_bench(tiny_model, drafters=[recorder]), make_bench(other_model)
    for length in (1, 62, 200):
        wanted = request(str(length), length, "greedy", output=30)
        recorder.outputs[wanted.id] = make_bench(tiny_model).one(wanted).tokens
        bench.one(wanted)
    totals = bench.engine.speculator.totals
    assert 30 < totals.accepted < totals.drafted
    for at, (tokens, proposal) in enumerate(recorder.proposals[::3]):
        assert proposal == fresh.one(generate(str(at), tokens, len(proposal), read=False)).tokens


@pytest.mark.parametrize("swap", [0, 12])
def test_preemption(tiny_model: Path, tokenizer: Path, swap: int):
    expected = bench_of(tiny_model, tokenizer).one(request("x", 129, "penalties", output=70))
    drafter = draft_model(tiny_model)
    bench = bench_of(tiny_model, tokenizer, blocks=6, budget=200, running=4, swap=swap, drafters=[drafter])
    bench.add(request("old", 130, "greedy", output=70))
    young = bench.add(request("young", 129, "penalties", output=70, read=False, lane="batch"))
    bench.finish()
    assert bench.engine.scheduler.preemptions
    assert_same(young, expected)
    drafter.side.pool.check()
    assert not len(drafter.side)


# ---------------------------------------------------------------- the side group


def rows_for(bench: Bench, drafter: DraftModel, id: str, length: int, **fields: object) -> int:
    """How many rows the drafter computes for a request of this prompt."""
    before = drafter.runner.rows
    bench.one(request(id, length, "greedy", output=12, **fields))
    return drafter.runner.rows - before


def test_its_kv_of_a_prefix_is_found_by_whoever_finds_the_models(tiny_model: Path):
    """In the same scope, and as long as the scope is not forgotten."""
    drafter = draft_model(tiny_model)
    bench = make_bench(tiny_model, drafters=[drafter])
    cold = rows_for(bench, drafter, "a", 200)
    assert cold - rows_for(bench, drafter, "b", 200) == 192
    assert rows_for(bench, drafter, "other", 200, segments=(Segment(200, "other"),)) == cold
    assert rows_for(bench, drafter, "not read", 200, read=False) == cold
    bench.engine.forget("project")
    assert rows_for(bench, drafter, "c", 200) == cold


def test_what_is_not_stored_is_not_found(tiny_model: Path):
    drafter = draft_model(tiny_model)
    bench = make_bench(tiny_model, drafters=[drafter])
    cold = rows_for(bench, drafter, "a", 200, store="none")
    assert rows_for(bench, drafter, "b", 200) == cold


def test_it_looks_at_each_token_a_bounded_number_of_times(tiny_model: Path, monkeypatch: pytest.MonkeyPatch):
    """However many steps a prompt takes to compute, and however long the request gets."""
    read, (prompt, output) = [0], (1000, 60)
    get = TokenSequence.__getitem__

    def counting(tokens: TokenSequence, index: int | slice) -> object:
        item = get(tokens, index)  # type: ignore[call-overload]
        read[0] += 1 if isinstance(item, int) else len(item)
        return item

    class Watched(DraftModel):
        def propose(self, queries: Sequence[Query]) -> Sequence[Proposal | None]:
            with monkeypatch.context() as patch:
                patch.setattr(TokenSequence, "__getitem__", counting)
                return super().propose(queries)

    drafter = draft_model(tiny_model)
    watched = Watched(drafter.runner.model, drafter.side, prompt + output)  # type: ignore[arg-type]
    bench = make_bench(tiny_model, blocks=64, budget=2048, drafters=[watched])
    bench.one(request("x", prompt, "greedy", output=output))
    assert bench.counts("x").accepted > 20
    assert read[0] <= 2 * prompt + 10 * output


def test_a_prompt_is_computed_beside_the_decoding_a_bounded_part_a_step(tiny_model: Path):
    """The request decodes meanwhile, without drafts."""
    drafter = draft_model(tiny_model)
    bench = make_bench(tiny_model, blocks=64, budget=2048, drafters=[drafter])
    run = bench.add(request("x", 1000, "greedy", output=60))
    bench.step()
    rows, totals = drafter.runner.rows, bench.engine.speculator.totals
    while not totals.drafted:
        tokens = len(run.tokens)
        bench.step()
        assert len(run.tokens) > tokens
        assert drafter.runner.rows - rows <= PREFIX_ROWS + 16
        rows = drafter.runner.rows
    assert len(run.tokens) >= 4
    bench.finish()


def test_a_prompt_is_not_computed_for_a_few_tokens_of_output(tiny_model: Path):
    drafter = draft_model(tiny_model)
    bench = make_bench(tiny_model, blocks=64, budget=2048, drafters=[drafter])
    bench.one(request("x", 1000, "greedy", output=5))
    assert not drafter.runner.rows


def test_the_least_recent_prefix_gives_way(tiny_model: Path):
    drafter = draft_model(tiny_model, blocks=5)
    bench = make_bench(tiny_model, drafters=[drafter])
    for id, length in (("a", 130), ("b", 131), ("c", 132)):
        rows_for(bench, drafter, id, length)
        drafter.side.pool.check()
    assert rows_for(bench, drafter, "c again", 132) < rows_for(bench, drafter, "a again", 130)
    assert not drafter.side.pool.referenced_blocks


def run_with_disk(folder: Path, store: MemoryStore, drafter: Drafter | None) -> tuple[Run, dict[str, int]]:
    """A conversation's prompt on a replica that was started with this disk: what it got, and what it read."""
    bench = make_bench(folder, swap=16, store=store, drafters=[] if drafter is None else [drafter])
    run = bench.one(request("x", 200, "penalties", retain=(Retain(200, 3600.0),)))
    bench.engine.close(30.0)  # however slow the machine: all is on disk
    assert run.done is not None
    counts = without_output(run.done.counts)
    return run, {"read": counts.read - counts.read_hbm, "computed": counts.computed}


def test_a_drafter_neither_loses_nor_changes_what_is_on_disk(tiny_model: Path, other_model: Path):
    """Written without one, read with one, and with another; and written with one, read without."""
    cold, _ = run_with_disk(tiny_model, MemoryStore(), None)
    for first, *later in ([None, tiny_model, other_model], [tiny_model, None], [other_model, tiny_model, None]):
        store = MemoryStore()
        for start, folder in enumerate([first, *later]):
            run, read = run_with_disk(tiny_model, store, None if folder is None else draft_model(folder))
            assert run.tokens == cold.tokens
            assert run.logprobs == cold.logprobs
            assert read == ({"read": 192, "computed": 8} if start else {"read": 0, "computed": 200})


# ---------------------------------------------------------------- failures


def test_what_is_not_finite_harms_nobody(tiny_model: Path, tmp_path: Path, tokenizer: Path):
    """A draft model whose numbers overflow still names tokens of the vocabulary."""
    drafter = draft_model(write_model(tmp_path / "overflows", scale=1e25))
    bench = bench_of(tiny_model, tokenizer, drafters=[drafter])
    assert_same(bench.one(request("x", 65, "penalties")), plain(tiny_model, tokenizer, 65, "penalties"))


@pytest.mark.slow
@pytest.mark.parametrize("family", ["gemma2", "mistral", "gpt-oss", "deepseek v3"])
def test_draft_models_of_other_families(family_folders: Families, family: str):
    """Windows, sinks, experts and latent attention, in the drafter as in the served model."""
    folder = family_folders(family)
    expected = make_bench(folder).one(request("x", 150, "greedy", output=80))
    bench = make_bench(folder, drafters=[draft_model(folder)])
    run = bench.one(request("x", 150, "greedy", output=80))
    assert_same(run, expected)
    totals = bench.engine.speculator.totals
    assert totals.accepted >= 0.95 * totals.drafted > 0
