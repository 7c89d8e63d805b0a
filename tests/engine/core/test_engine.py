"""The step loop: counts on every way out (E2), scopes (C1), credit, preemption, cancelling (E4), bad requests."""

from __future__ import annotations

import gc
import random
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.execution import attention_plan_cache
from engine.scheduling.step_work import Work
from prompt_cache.kv.block_keys import BLOCK_TOKENS
from protocol.requests import Counts, Generate, Sampling, Segment
from tests.engine.conftest import VOCABULARY, Bench, generate
from tests.fast import examples

Benches = Callable[..., Bench]
LONG = [(11 * i + i * i) % VOCABULARY for i in range(300)]


def scoped(id: str, segments: list[tuple[int, str]], tokens: list[int], **fields: object) -> Generate:
    return generate(id, tokens, 2, segments=tuple(Segment(until, scope) for until, scope in segments), **fields)


# ------------------------------------------------------------ scopes and sharing


def test_what_was_computed_is_read_in_the_same_scope_only(bench: Bench):
    bench.one(scoped("first", [(300, "project")], LONG))
    bench.one(scoped("same", [(300, "project")], LONG))
    bench.one(scoped("other", [(300, "other")], LONG))
    assert bench.counts("first") == Counts(prompt=300, computed=300, output=2)
    assert bench.counts("same") == Counts(prompt=300, computed=44, read_hbm=256, output=2)
    assert bench.counts("other") == Counts(prompt=300, computed=300, output=2)
    began = bench.runs["same"].began
    assert began is not None
    assert began.counts == Counts(prompt=300, computed=44, read_hbm=256)
    assert [(miss.start, miss.end, miss.cause) for miss in began.misses] == [(256, 300, "cold")]


def test_a_public_prefix_is_shared_and_what_follows_is_not(bench: Bench):
    bench.one(scoped("a", [(130, "public"), (300, "project")], LONG))
    bench.one(scoped("b", [(130, "public"), (300, "other")], LONG))
    bench.one(scoped("c", [(130, "public"), (300, "project")], LONG))
    # Where the scope narrows inside a block, the block belongs to the narrower one.
    assert bench.counts("b").read_hbm == 128
    assert bench.counts("c").read_hbm == 256
    # The same tokens, all of them public, share just what was public.
    bench.one(scoped("d", [(300, "public")], LONG))
    assert bench.counts("d").read_hbm == 128


def test_a_diverging_prompt_reads_up_to_where_it_diverges(bench: Bench):
    bench.one(generate("a", LONG, 2))
    changed = [*LONG[:200], (LONG[200] + 1) % VOCABULARY, *LONG[201:]]
    assert bench.one(generate("b", changed, 2)).done is not None
    assert bench.counts("b").read_hbm == 192


def test_a_prompt_that_is_computed_and_not_answered_is_read_by_the_next(bench: Bench):
    warmed = bench.one(generate("a", LONG, 0))
    assert warmed.done is not None
    assert (warmed.done.reason, warmed.done.counts.output, warmed.tokens) == ("length", 0, [])
    bench.one(generate("b", LONG, 2))
    assert bench.counts("b").read_hbm == 256


def test_at_least_one_token_is_computed(bench: Bench):
    bench.one(generate("a", LONG[:128], 2))
    bench.one(generate("b", LONG[:128], 2))
    assert bench.counts("b") == Counts(prompt=128, computed=64, read_hbm=64, output=2)


def test_output_blocks_are_published_too(bench: Bench):
    run = bench.one(generate("a", LONG[:60], 80))
    bench.one(generate("b", LONG[:60] + run.tokens, 2))
    assert bench.counts("b").read_hbm == 128


def test_read_and_store_policies(bench: Bench):
    bench.one(generate("a", LONG, 2, store="none"))
    assert bench.engine.pool.cached_blocks == 0
    bench.one(generate("b", LONG, 2, store="hbm"))
    bench.one(generate("c", LONG, 2, read=False))
    bench.one(generate("d", LONG, 2, store="none"))
    assert [bench.counts(id).read_hbm for id in "abcd"] == [0, 0, 0, 256]
    began = bench.runs["c"].began
    assert began is not None
    assert began.misses[0].cause == "no_read"


def test_forgotten_and_purged_blocks_are_not_found(bench: Bench):
    bench.one(scoped("a", [(128, "public"), (300, "project")], LONG))
    bench.engine.forget("project")
    bench.one(scoped("b", [(128, "public"), (300, "project")], LONG))
    assert bench.counts("b").read_hbm == 128
    keys = list(bench.engine.pool.pools[0]._index)
    for scope in ("public", "project"):
        bench.engine.purge(scope, keys)
    bench.one(scoped("c", [(128, "public"), (300, "project")], LONG))
    assert bench.counts("c").read_hbm == 0


def test_identical_prompts_together_store_their_blocks_once(bench: Bench):
    for id in "abc":
        bench.add(generate(id, LONG, 2))
    bench.finish()
    assert bench.engine.pool.cached_blocks == 300 // BLOCK_TOKENS
    assert bench.runs["a"].tokens == bench.runs["b"].tokens == bench.runs["c"].tokens


# ------------------------------------------------------------ ways out


def test_stop_token_ends_and_is_sent_and_counted(bench: Bench):
    expected = bench.one(generate("a", LONG, 8)).tokens
    stop = expected[3]
    run = bench.one(generate("b", LONG, 8, stop_tokens=(stop,)))
    assert run.tokens == expected[: expected.index(stop) + 1]
    assert run.done is not None
    assert run.done.reason == "stop"
    assert run.done.counts.output == len(run.tokens)


@pytest.mark.parametrize("steps", range(6))
def test_abort_in_any_phase_frees_at_once_and_counts_what_was_done(benches: Benches, steps: int):
    bench = benches(budget=128, running=2)
    bench.add(generate("a", LONG, 8, claim=b"who pays"))
    for _ in range(steps):
        bench.step()
    assert bench.engine.abort("a")
    assert bench.engine.pool.referenced_blocks == 0
    assert not bench.engine.scheduler.busy
    bench.step()
    done = bench.runs["a"].done
    assert done is not None
    assert (done.reason, done.claim) == ("abort", b"who pays"), "also if it never began"
    computed = min(128 * steps, 300)
    assert done.counts == Counts(prompt=computed, computed=computed, output=max(0, steps - 2))
    assert not bench.engine.abort("a")


def test_abort_of_a_warm_request_counts_what_it_read(benches: Benches):
    bench = benches(budget=66, running=2)
    bench.one(generate("a", LONG[:200], 2))
    bench.add(generate("b", LONG, 8))
    bench.step()
    bench.engine.abort("b")
    bench.step()
    assert bench.counts("b") == Counts(prompt=256, computed=64, read_hbm=192)


def test_deadline(benches: Benches):
    bench = benches(budget=128, running=2)
    bench.add(generate("waits", LONG, 8, deadline=3.0, credit=0))
    bench.add(generate("runs", LONG, 8, deadline=5.0))
    bench.add(generate("later", LONG[:10], 500, deadline=7.0))
    for _ in range(4):
        bench.step()
    assert bench.engine.next_deadline == 3.0
    for now in (3.0, 5.0, 7.0):
        bench.now = now
        bench.step()
    done = {id: run.done for id, run in bench.runs.items()}
    assert {id: end.reason if end else None for id, end in done.items()} == {
        "waits": "deadline",
        "runs": "deadline",
        "later": "deadline",
    }
    assert bench.counts("waits") == Counts()
    assert bench.counts("runs").prompt == 300
    assert bench.counts("later").output > bench.counts("runs").output
    assert bench.engine.pool.referenced_blocks == 0


def test_who_has_ended_leaves_no_deadline(bench: Bench):
    bench.add(generate("early", LONG, 3, deadline=100.0))
    bench.add(generate("later", LONG, 3, deadline=200.0))
    assert bench.engine.next_deadline == 100.0
    bench.engine.abort("early")
    assert bench.engine.next_deadline == 200.0
    bench.finish()
    assert bench.engine.next_deadline is None


class Broken(Exception):
    """What a failing kernel raises here."""


def test_a_request_that_raises_fails_alone(bench: Bench, monkeypatch: pytest.MonkeyPatch):
    run = bench.engine.executor.runner._run

    def failing(works: list[Work]) -> object:
        if any(work.request.id == "bad" and work.start + work.count > 300 for work in works):
            raise Broken("no")
        return run(works)

    expected = bench.one(generate("alone", LONG, 8)).tokens
    monkeypatch.setattr(bench.engine.executor.runner, "_run", failing)
    for id in ("one", "bad", "two"):
        bench.add(generate(id, LONG, 8))
    bench.finish()
    done = bench.runs["bad"].done
    assert done is not None
    assert (done.reason, done.error) == ("error", "Broken: no")
    assert (done.counts.prompt, done.counts.output) == (300, 1)
    assert bench.runs["one"].tokens == bench.runs["two"].tokens == expected
    assert bench.engine.pool.referenced_blocks == 0


def test_a_request_that_computes_nan_fails_alone_and_its_blocks_reach_nobody(bench: Bench):
    expected = bench.one(generate("alone", LONG, 8, store="none")).tokens
    weight = bench.engine.executor.runner.model.embedding.weight  # type: ignore[attr-defined]  # it is a Llama
    poison = next(token for token in range(VOCABULARY) if token not in {*LONG, *expected})
    with torch.inference_mode():
        weight[poison] = torch.nan
    bench.add(generate("one", LONG, 8))
    bench.add(generate("bad", [*LONG[:100], poison, *LONG[:100]], 8))
    bench.finish()
    done = bench.runs["bad"].done
    assert done is not None
    assert done.reason == "error"
    assert "NaN" in (done.error or "")
    assert bench.runs["one"].tokens == expected
    # Its first, sound block may stay; whoever gets the others next is not affected by what was in them.
    for index in range(12):
        assert bench.one(generate(f"next{index}", LONG, 8, read=False, store="none")).tokens == expected


# ------------------------------------------------------------ credit


def test_tokens_stop_where_credit_ends(bench: Bench):
    run = bench.add(generate("a", LONG, 8, credit=3))
    other = bench.add(generate("b", LONG, 8))
    for _ in range(20):
        bench.step()
    assert len(run.tokens) == 3
    assert other.done is not None
    assert not bench.engine.busy
    assert bench.engine.credit("a", 2, 5) == (1, 2)
    bench.finish()
    assert len(run.tokens) == 5
    bench.engine.credit("a", 99, 4)  # neither grows beyond what was sent nor shrinks
    bench.engine.credit("a", 1, 100)
    bench.finish()
    assert run.done is not None
    assert run.done.reason == "length"
    assert run.done.delivered == 5
    assert run.tokens == other.tokens
    assert bench.engine.credit("a", 1, 1) is None


def test_without_credit_nothing_is_computed(bench: Bench):
    run = bench.add(generate("a", LONG, 8, credit=0))
    for _ in range(3):
        bench.step()
    assert bench.engine.steps == 0
    assert run.began is None
    bench.engine.credit("a", 0, 8)
    bench.finish()
    assert len(run.tokens) == 8


def test_a_paused_request_gives_its_memory_and_its_slot_to_others(benches: Benches):
    bench = benches(blocks=12, budget=192, running=1)
    slow = bench.add(generate("slow", LONG, 20, credit=2))
    bench.step()
    bench.step()
    bench.step()
    assert bench.engine.running == 1
    fast = bench.one(generate("fast", LONG, 20, read=False, store="none"))
    assert fast.done is not None
    bench.engine.credit("slow", 2, 100)
    bench.finish()
    assert slow.tokens == fast.tokens
    assert bench.counts("slow").computed == 300


# ------------------------------------------------------------ memory pressure


@pytest.mark.slow
def test_memory_pressure_preempts_the_youngest_and_all_finish(benches: Benches):
    bench = benches(blocks=14, budget=200, running=8)
    for index in range(6):
        bench.add(generate(str(index), LONG[index : index + 130], 150, store="none", read=False))
    finished: list[str] = []
    while bench.engine.busy:
        bench.step()
        finished += [id for id, run in bench.runs.items() if run.done and id not in finished]
    assert finished[0] == "0"
    assert bench.engine.scheduler.preemptions > 0
    assert bench.counts("0").recomputed == 0
    for index in range(6):
        counts = bench.counts(str(index))
        assert (counts.prompt, counts.computed, counts.output) == (130, 130, 150)
    assert bench.engine.pool.referenced_blocks == 0


def test_decodes_go_on_beside_a_long_prefill(benches: Benches):
    bench = benches(budget=66, running=2)
    run = bench.add(generate("a", LONG[:10], 30))
    bench.step()
    bench.add(generate("b", LONG, 2))
    for _ in range(4):
        before = len(run.tokens)
        bench.step()
        assert len(run.tokens) == before + 1
    assert bench.engine._requests["b"].first.kv == 256


# ------------------------------------------------------------ what cannot run


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        (generate("", [1]), "id: 0 characters are not within 1..256"),
        (generate("x" * 257, [1]), "id: 257 characters"),
        (generate("x", []), "tokens: the prompt is empty"),
        (generate("x", [1, VOCABULARY]), "tokens: token id 131 is outside the vocabulary of 131"),
        (generate("x", [1, -1]), "tokens: token id -1 is outside"),
        (generate("x", [1], emitted=([999],)), "emitted: token id 999 is outside"),
        (generate("x", [1], 8, emitted=([1], [1])), "emitted: it is of 2 choices, the request has 1"),
        (generate("x", [1], 8, emitted=([1] * 9,)), "emitted: 9 tokens are more than sampling.max_tokens, 8"),
        (generate("x", [1], 8, emitted=([1],), stopped=(1,)), "stopped: [1] are not all within 0..0"),
        (generate("x", [1], 8, emitted=([1],), counted=Counts(prompt=1)), "counted: prompt is not computed"),
        (generate("x", [1], 8, emitted=([1],), delivered=-1), "delivered: -1 is negative"),
        (generate("x", [1] * 2048), "tokens: a prompt of 2048 tokens leaves no room in a context of 2048"),
        (generate("x", [1] * 2040, 20, emitted=([1] * 20,)), r"sampling.max_tokens: 20 is not within 0..8"),
        (generate("x", [1] * 2000, 49), r"sampling.max_tokens: 49 is not within 0..48"),
        (generate("x", [1], -5), r"sampling.max_tokens: -5"),
        (generate("x", [1], temperature=-0.1), "sampling.temperature"),
        (generate("x", [1], temperature=float("nan")), "sampling.temperature"),
        (generate("x", [1], temperature=float("inf")), "sampling.temperature"),
        (generate("x", [1], top_p=0.0), "sampling.top_p"),
        (generate("x", [1], top_p=1.1), "sampling.top_p"),
        (generate("x", [1], top_p=float("nan")), "sampling.top_p"),
        (generate("x", [1], top_k=-1), "sampling.top_k: -1 is not at least 0"),
        (generate("x", [1], min_p=1.5), "sampling.min_p: 1.5 is not at least 0 and at most 1"),
        (generate("x", [1], presence_penalty=float("inf")), "sampling.presence_penalty: inf is not a finite number"),
        (generate("x", [1], frequency_penalty=float("nan")), "sampling.frequency_penalty"),
        (generate("x", [1], repetition_penalty=0.0), "sampling.repetition_penalty: 0.0 is not above 0"),
        (generate("x", [1], 8, min_tokens=9), "sampling.min_tokens: 9 is not at least 0 and at most 8"),
        (generate("x", [1], min_tokens=2, stop_tokens=tuple(range(VOCABULARY))), "sampling.stop_tokens: it lists"),
        (generate("x", [1], stop_tokens=(VOCABULARY,)), "sampling.stop_tokens: token id 131 is outside"),
        (generate("x", [1], logit_bias={-1: 0.5}), "sampling.logit_bias: token id -1 is outside"),
        (generate("x", [1], logit_bias={1: float("nan")}), "sampling.logit_bias[1]: nan"),
        (generate("x", [1], credit=-1), "credit: -1 is negative"),
        (generate("x", [1], weight=0), "weight: 0 is not at least 1"),
        (generate("x", [1], deadline=float("nan"), lane="batch"), "deadline: nan is no time"),
        (generate("x", [1], deadline=float("inf"), lane="batch"), "deadline: inf is no time"),
        (generate("x", [1], grammar="{}"), "grammar"),
        (generate("x", [1, 2], segments=()), "segments: they end at 0, the prompt at 2"),
        (generate("x", [1, 2], segments=(Segment(1, "project"),)), "segments: they end at 1"),
        (generate("x", [1, 2], segments=(Segment(3, "project"),)), "segments: they end at 3"),
        (
            generate("x", [1, 2], segments=(Segment(2, "public"), Segment(2, "project"))),
            "segments: until 2 does not grow",
        ),
        (generate("x", [1], segments=(Segment(1, "nobody"),)), "scope 'nobody' was not introduced"),
        (generate("runs", [1]), "id: 'runs' is already running"),
    ],
)
def test_a_bad_request_is_rejected_by_name_and_disturbs_nothing(bench: Bench, request_: Generate, message: str):
    expected = bench.one(generate("alone", LONG, 8)).tokens
    running = bench.add(generate("runs", LONG, 8))
    bench.step()
    bench.add(request_)
    result = bench.engine.step()
    rejected = [event for event in result.events if getattr(event, "reason", None) == "rejected"]
    assert len(rejected) == 1
    assert message in rejected[0].error
    assert rejected[0].sequence == 0
    assert rejected[0].counts == Counts()
    running.tokens += [event.tokens[0] for event in result.events if event.id == "runs" and hasattr(event, "start")]
    bench.finish()
    assert running.tokens == expected


def test_a_request_that_memory_can_never_hold_is_rejected(benches: Benches):
    bench = benches(blocks=4)
    run = bench.one(generate("a", LONG[:250], 8))
    assert run.done is not None
    assert run.done.error == "sampling.max_tokens: 8 is not within 0..6, the room left"
    assert bench.one(generate("b", LONG[:250], 6)).tokens


@pytest.mark.parametrize("choices", [1, 8])
def test_the_queue_is_bounded_whatever_runs(benches: Benches, choices: int):
    bench = benches(running=choices, queue=2)
    bench.add(generate("runs", LONG[:10], 40, choices=choices))
    for _ in range(3):
        bench.step()
    for id in "abcd":
        bench.add(generate(id, LONG[:10], 4))
    bench.step()
    reasons = {id: run.done.reason for id, run in bench.runs.items() if run.done}
    assert reasons == {"c": "rejected", "d": "rejected"}
    bench.finish()


def test_a_budget_too_small_is_refused(benches: Benches):
    with pytest.raises(ValueError, match="at least 128 are needed"):
        benches(budget=100, running=64)


# ------------------------------------------------------------ anything in any order


@pytest.mark.slow
@settings(max_examples=examples(15), deadline=None)
@given(seed=st.integers(0, 2**32))
def test_random_use_leaks_nothing_and_counts_exactly(benches: Benches, seed: int):
    chance = random.Random(seed)
    bench = benches(blocks=chance.choice([5, 8, 20]), budget=72, running=chance.choice([1, 3, 8]))
    prompts = {}
    for index in range(60):
        match chance.randrange(6):
            case 0 | 1:
                start, length = chance.randrange(3), chance.choice([1, 20, 64, 65, 130])
                prompts[str(index)] = length
                bench.add(
                    generate(
                        str(index),
                        LONG[start : start + length],
                        chance.randrange(1, 30),
                        credit=chance.choice([0, 1, 1 << 20]),
                        deadline=chance.choice([None, None, bench.now + 3]),
                        read=chance.random() < 0.8,
                        store=chance.choice(["all", "none"]),
                        segments=(Segment(length, chance.choice(["project", "other"])),),
                    )
                )
            case 2 if prompts:
                id = chance.choice(list(prompts))
                bench.engine.abort(id)
            case 3 if prompts:
                bench.engine.credit(chance.choice(list(prompts)), chance.randrange(30), chance.randrange(30))
            case 4:
                bench.now += 1
            case _:
                bench.step()
    for id in prompts:
        bench.engine.credit(id, 0, 1 << 20)
    bench.finish()
    pool = bench.engine.pool
    assert pool.referenced_blocks == 0
    totals = [bench.counts(id) for id in prompts]
    assert sum(counts.computed for counts in totals) == bench.engine.outputs.totals["computed"]
    assert sum(counts.output for counts in totals) == bench.engine.outputs.totals["output"]
    assert sum(counts.recomputed for counts in totals) == bench.engine.outputs.totals["recomputed"]
    for id, length in prompts.items():
        done = bench.runs[id].done
        assert done is not None
        if done.reason == "length":
            assert done.counts.prompt == length
        assert done.counts.prompt <= length


def test_seeds_of_any_size_are_taken(bench: Bench):
    outputs = set()
    for index, seed in enumerate([0, 1, -1, 2**63, 2**64 - 1, -(2**63)]):
        sampling = Sampling(12, temperature=2.0, seed=seed)
        outputs.add(tuple(bench.one(generate(str(index), LONG, sampling=sampling)).tokens))
    assert len(outputs) == 4  # the last two are the same 64 bits as two before


@pytest.mark.slow
def test_decodes_in_the_same_blocks_go_on_with_their_plan(bench: Bench, monkeypatch: pytest.MonkeyPatch):
    """What attention reads is worked out when a block begins, and the tokens are those of plans made for each step."""
    made: list[int] = []
    plan = attention_plan_cache.plan_attention
    monkeypatch.setattr(attention_plan_cache, "plan_attention", lambda *args, **kw: made.append(1) or plan(*args, **kw))
    kept = bench.one(generate("kept", range(60), 100))
    assert len(made) == 1 + 3
    monkeypatch.setattr(attention_plan_cache, "Decode", type("Nothing", (), {}))
    fresh = bench.one(generate("fresh", range(60), 100))
    assert len(made) > 100
    assert fresh.tokens == kept.tokens
    assert all(torch.equal(one, other) for one, other in zip(fresh.logits, kept.logits, strict=True))


def test_a_request_that_has_ended_is_freed_at_once(bench: Bench):
    """Not by the collector of garbage: it looks seldom, and what it has not found by then seems to leak."""
    gc.collect()
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        for number in range(20):
            changes = {"flow": f"flow {number}", "lane": ("interactive", "batch")[number % 2], "deadline": 100.0}
            bench.add(generate(str(number), LONG[: 20 * number + 1], 3, choices=1 + number % 3, **changes))
        bench.engine.abort("7")
        bench.finish()
        for flows in bench.engine.fairness.flows.values():
            flows.forget_idle()
        gc.collect()
        left = {type(each).__qualname__ for each in gc.garbage if type(each).__module__.startswith("engine.")}
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
    assert not left
