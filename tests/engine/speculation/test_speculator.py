"""What speculation takes from others (nothing), what it charges, and what happens if a drafter fails."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import ClassVar

import pytest

from engine.core.metrics import engine_metrics
from engine.scheduling.request import Request
from engine.speculation.drafter import Drafter, Proposal, Query
from engine.speculation.ngram_drafter import NgramDrafter
from engine.speculation.speculator import MOST_DRAFTS
from engine.speculation.suffix_drafter import SuffixDrafter
from engine.speculation.verify_costs import VerifyCosts
from protocol.requests import Lane
from tests.engine.conftest import SCOPES, VOCABULARY, Bench, Run, generate, make_bench
from tests.engine.modes import assert_same, bench_of, request
from tests.engine.speculation.lying_drafter import LyingDrafter, OracleDrafter


class Guessing(Drafter):
    """Always has something to propose, which is always wrong."""

    name: ClassVar[str] = "guessing"

    def propose(self, queries: Sequence[Query]) -> Sequence[Proposal | None]:
        return [Proposal([VOCABULARY - 1] * query.most, 1.0) for query in queries]


class Broken(Guessing):
    """Fails in one of its methods."""

    def __init__(self, where: str) -> None:
        setattr(self, where, self._fail)

    def _fail(self, *_: object) -> None:
        raise RuntimeError("broken")


class TooMany(Guessing):
    def propose(self, queries: Sequence[Query]) -> Sequence[Proposal | None]:
        return [Proposal([1])] * (len(queries) + 1)


class NoToken(Guessing):
    def propose(self, queries: Sequence[Query]) -> Sequence[Proposal | None]:
        return [Proposal([VOCABULARY]) for _ in queries]


@pytest.mark.parametrize(
    "make",
    [*(lambda where=where: Broken(where) for where in ("begin", "propose", "verified", "end")), TooMany, NoToken],
)
def test_a_drafter_that_fails_costs_speculation_alone(tiny_model: Path, make: Callable[[], Drafter]) -> None:
    expected = make_bench(tiny_model).one(generate("x", range(20), 12))
    bench = make_bench(tiny_model, drafters=[make()])
    for id in "xy":
        assert_same(bench.one(generate(id, range(20), 12)), expected)
    assert bench.engine.speculator.off == "failed"
    assert engine_metrics(bench.engine)["turnpike_engine_speculation_off_failed"] == 1


def charged(bench: Bench, output: int, lane: Lane = "standard") -> float:
    bench.one(generate("x", range(20), output, lane=lane, flow="tenant"))
    return bench.engine.fairness.service_given()[f"{lane}/tenant"]


def test_a_request_is_charged_what_plain_decoding_costs(tiny_model: Path) -> None:
    plain = make_bench(tiny_model)
    expected = plain.one(generate("y", range(20), 30)).tokens
    service = charged(plain, 30)
    assert charged(make_bench(tiny_model, drafters=[Guessing()]), 30) == service
    oracle = make_bench(tiny_model, drafters=[OracleDrafter(VOCABULARY, {("x", 0): expected}, 0)])
    assert charged(oracle, 30) == service
    assert oracle.counts("x").accepted > 0


def test_nobody_is_preempted_and_no_block_taken_for_a_draft(tiny_model: Path) -> None:
    """Two requests fill the memory to the last block; their drafts end with their blocks."""

    def run(*drafters: Drafter) -> Bench:
        bench = make_bench(tiny_model, blocks=6, budget=200, running=4, drafters=drafters)
        for id, length in (("a", 130), ("b", 129)):
            bench.add(generate(id, [ord(id) % VOCABULARY] * length, 62, flow=id))
        while bench.engine.busy:
            bench.step()
            for running in bench.engine.scheduler.running:
                assert len(running.table) <= running.blocks_for(len(running.tokens) + 1)
        return bench

    plain, drafting = run(), run(Guessing())
    assert drafting.engine.speculator.totals.drafted > 0
    assert drafting.engine.scheduler.preemptions == plain.engine.scheduler.preemptions
    for id in "ab":
        assert_same(drafting.runs[id], plain.runs[id])


def test_a_prompt_is_computed_in_the_same_steps_beside_drafts(tiny_model: Path) -> None:
    def steps(*drafters: Drafter) -> list[int]:
        """How many prompt tokens each step computes, while another request decodes."""
        bench = make_bench(tiny_model, budget=80, running=4, drafters=drafters)
        bench.add(generate("decodes", range(20), 100))
        for _ in range(3):
            bench.step()
        bench.add(generate("prompt", [5] * 400, 1))
        computed = []
        while (run := bench.runs["prompt"]).done is None:
            before = bench.engine.outputs.totals["computed"]
            bench.step()
            computed.append(bench.engine.outputs.totals["computed"] - before)
            assert bench.engine.executor.runner is not None
        assert run.done.counts.computed == 400
        return computed

    assert steps(Guessing()) == steps()


def test_no_step_has_more_rows_than_the_budget(tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bench = make_bench(tiny_model, budget=76, running=8, drafters=[Guessing()])
    run, rows = bench.engine.executor.runner.run, []

    def counted(works):  # type: ignore[no-untyped-def]
        rows.append(sum(work.count for work in works))
        return run(works)

    monkeypatch.setattr(bench.engine.executor.runner, "run", counted)
    for id in "abcdefgh":
        bench.add(generate(id, [ord(id) % VOCABULARY] * 65, 20))
    bench.finish()
    assert max(rows) <= 76
    assert bench.engine.speculator.totals.drafted > 0


def test_a_request_may_say_that_nothing_is_drafted_for_it(tiny_model: Path) -> None:
    bench = make_bench(tiny_model, drafters=[Guessing()])
    bench.one(generate("x", range(20), 12, speculation="off"))
    assert bench.counts("x").drafted == 0
    bench.one(generate("y", range(20), 12))
    assert bench.counts("y").drafted > 0


def test_drafts_that_are_wrong_are_given_up_for_a_while(tiny_model: Path) -> None:
    bench = make_bench(tiny_model, drafters=[Guessing()])
    bench.one(generate("x", range(20), 60))
    assert bench.engine.speculator.totals.verified < 20


def test_where_rows_cost_as_much_as_steps_nothing_is_drafted(tiny_model: Path) -> None:
    bench = make_bench(tiny_model, drafters=[Guessing()])
    bench.engine.speculator.planner.costs = VerifyCosts({64: {1: 1e9, 2: 2e9, 64: 64e9}})
    bench.one(generate("x", range(20), 12))
    assert bench.counts("x").drafted == 0


def test_without_a_drafter_and_on_a_device_that_verifies_none_it_says_why(tiny_model: Path) -> None:
    bench = make_bench(tiny_model)
    assert bench.engine.speculator.off == "setting"
    assert engine_metrics(bench.engine)["turnpike_engine_speculation_off_setting"] == 1


@pytest.mark.parametrize("kind", ["draft-model", "eagle3", "mtp"])
def test_drafts_of_a_head_count_as_those_of_the_draft_model(tiny_model: Path, kind: str) -> None:
    class Head(Guessing):
        name: ClassVar[str] = kind

    bench = make_bench(tiny_model, drafters=[Head()])
    bench.one(generate("x", range(20), 12))
    metrics = engine_metrics(bench.engine)
    drafted = metrics["turnpike_engine_speculation_draft_model_drafted_tokens_total"]
    assert drafted == metrics["turnpike_engine_speculation_drafted_tokens_total"] > 0


def test_a_prediction_is_drafted_from_its_first_token(tiny_model: Path, tokenizer: Path) -> None:
    expected = bench_of(tiny_model, tokenizer).one(request("x", 20, "greedy", output=30))
    bench = bench_of(tiny_model, tokenizer, drafters=[NgramDrafter()])
    run = bench.one(request("x", 20, "greedy", output=30, prediction=tuple(expected.tokens)))
    assert_same(run, expected)
    assert bench.engine.steps < 10
    other = bench.one(request("y", 20, "greedy", output=30, prediction=tuple(range(60, 90))))
    assert other.tokens == expected.tokens


@pytest.mark.parametrize(("prediction", "named"), [((VOCABULARY,), "prediction"), ((1,) * 40_000, "prediction")])
def test_a_prediction_that_is_none_is_refused(tiny_model: Path, prediction: tuple[int, ...], named: str) -> None:
    run = make_bench(tiny_model).one(generate("x", range(20), 4, prediction=prediction))
    assert run.done is not None
    assert run.done.reason == "rejected"
    assert run.done.error is not None
    assert run.done.error.startswith(named)


def again(bench: Bench, **fields: object) -> tuple[Run, int]:
    """The same prompt again; what it got, and how many drafts were accepted."""
    id = str(len(bench.runs))
    run = bench.one(generate(id, range(40, 70), 40, **{"temperature": 1.0, "seed": 3, **fields}))
    return run, bench.counts(id).accepted


def test_a_scope_is_told_of_its_own_earlier_outputs_until_it_is_forgotten(tiny_model: Path) -> None:
    bench = make_bench(tiny_model, drafters=[SuffixDrafter()])
    first, before = again(bench)
    second, after = again(bench)
    assert second.tokens == first.tokens
    assert before == 0 < after
    bench.engine.forget("project")
    assert again(bench)[1] == 0
    again(bench)
    bench.engine.purge("project", ())
    assert again(bench)[1] == 0


@pytest.mark.parametrize("store", ["hbm", "none"])
def test_requests_that_may_not_be_stored_are_not_remembered(tiny_model: Path, store: str) -> None:
    bench = make_bench(tiny_model, drafters=[SuffixDrafter()])
    again(bench, store=store)
    assert again(bench, store=store)[1] == 0


def test_nothing_is_remembered_of_a_scope_without_retention(tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scope = SCOPES["project"]
    fields = {name: getattr(scope, name) for name in scope.__struct_fields__}
    monkeypatch.setitem(SCOPES, "project", type(scope)(**{**fields, "retention": 0.0}))
    bench = make_bench(tiny_model, drafters=[SuffixDrafter()])
    again(bench)
    assert again(bench)[1] == 0


def test_drafters_hear_of_each_request_once(tiny_model: Path) -> None:
    heard: list[tuple[str, str]] = []

    class Listening(LyingDrafter):
        def begin(self, request: Request) -> None:
            heard.append(("begin", request.id))

        def end(self, request: Request) -> None:
            heard.append(("end", request.id))
            assert list(request.tokens)

        def _proposal(self, query: Query) -> Proposal | None:
            assert query.most <= MOST_DRAFTS
            return None

    bench = make_bench(tiny_model, drafters=[Listening(VOCABULARY, {}, 0)])
    bench.one(generate("x", range(20), 5))
    bench.add(generate("y", range(20), 50))
    for _ in range(4):
        bench.step()
    bench.engine.abort("y")
    bench.one(generate("z", range(20), 1))  # it never decodes
    assert heard == [("begin", "x"), ("end", "x"), ("begin", "y"), ("end", "y")]


class Slow(Guessing):
    """Takes longer than its drafts save, by what it says."""

    computes = True

    def __init__(self) -> None:
        super().__init__()
        self.asked = 0

    def cost_us(self, requests: int, tokens: int) -> float:
        return 1e9 * tokens

    def propose(self, queries: Sequence[Query]) -> Sequence[Proposal | None]:
        self.asked += 1
        return super().propose(queries)


def test_a_drafter_that_is_too_slow_is_asked_again_now_and_then(tiny_model: Path) -> None:
    drafter = Slow()
    bench = make_bench(tiny_model, drafters=[drafter])
    bench.engine.speculator.planner.costs = VerifyCosts({64: {1: 1000.0, 64: 1000.0}})
    bench.one(generate("x", range(20), 100))
    assert 1 <= drafter.asked < 10


class SlowToSay(Guessing):
    """Computes nothing, and takes many steps' time for it."""

    def __init__(self) -> None:
        self.asked = 0

    def propose(self, queries: Sequence[Query]) -> Sequence[Proposal | None]:
        self.asked += 1
        until = time.perf_counter() + 0.02
        while time.perf_counter() < until:
            pass
        return [Proposal([1] * query.most, 0.6) for query in queries]


def test_a_drafter_that_says_nothing_of_its_time_is_given_up_by_what_it_took(tiny_model: Path) -> None:
    class FixedCosts(VerifyCosts):
        def observe(self, rows: int, kv: float, took: float) -> None:
            """The machine of a test is no measure."""

    drafter = SlowToSay()
    bench = make_bench(tiny_model, drafters=[drafter])
    bench.engine.speculator.planner.costs = FixedCosts({64: {1: 500.0, 64: 500.0}})
    bench.one(generate("x", range(20), 200))
    assert 1 <= drafter.asked < 20


def test_a_step_with_drafts_that_fails_is_run_again(tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As after a moment without memory: its only request runs alone, with the same drafts."""
    expected = make_bench(tiny_model).one(generate("x", range(20), 30))
    bench = make_bench(tiny_model, drafters=[OracleDrafter(VOCABULARY, {("x", 0): expected.tokens}, 0)])
    run, failed = bench.engine.executor.runner.run, []

    def failing_once(works):  # type: ignore[no-untyped-def]
        outcomes = run(works)
        if any(work.drafts for work in works) and not failed:
            failed.append(len(works))
            raise MemoryError("for a moment")
        return outcomes

    monkeypatch.setattr(bench.engine.executor.runner, "run", failing_once)
    assert bench.one(generate("x", range(20), 30)).tokens == expected.tokens
    assert failed == [1]
    assert bench.counts("x").accepted > 0


def test_behind_a_step_that_is_queued_drafts_wait_for_its_token_and_it_says_whether_they_begin_well(
    tiny_model: Path,
) -> None:
    """As on a GPU, whose next step is queued already when drafts for it could be thought of."""
    expected = make_bench(tiny_model).one(generate("x", range(20), 40)).tokens
    for drafter, right in ((OracleDrafter(VOCABULARY, {("x", 0): expected}, 0), True), (Guessing(), False)):
        bench = make_bench(tiny_model, drafters=[drafter])
        pipeline = bench.engine.executor.pipeline
        run = bench.add(generate("x", range(20), 40))
        held = []
        while run.done is None:
            pipeline.queues, pipeline.queued = True, bool(run.tokens) and not pipeline.held
            bench.step()
            held.append(pipeline.held)
        assert run.tokens == expected
        assert run.done.counts.drafted > 0
        assert (run.done.counts.accepted == run.done.counts.drafted) == right
        if not right:
            # Where one is wrong, nothing is held up for the next 32 tokens.
            assert sum(held) < 12


def test_a_drafter_that_computes_is_asked_when_nothing_is_queued(tiny_model: Path) -> None:
    class Computing(OracleDrafter):
        computes: ClassVar[bool] = True
        asked: ClassVar[list[bool]] = []

        def propose(self, queries: Sequence[Query]) -> Sequence[Proposal | None]:
            self.asked.append(pipeline.queued)
            return super().propose(queries)

    expected = make_bench(tiny_model).one(generate("x", range(20), 40)).tokens
    bench = make_bench(tiny_model, drafters=[Computing(VOCABULARY, {("x", 0): expected}, 0)])
    pipeline = bench.engine.executor.pipeline
    run = bench.add(generate("x", range(20), 40))
    while run.done is None:
        pipeline.queued = bool(run.tokens) and not pipeline.held
        bench.step()
    assert run.tokens == expected
    assert run.done.counts.accepted > 20
    assert Computing.asked
    assert not any(Computing.asked)
