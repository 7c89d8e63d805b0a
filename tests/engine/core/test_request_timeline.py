"""What a replica tells of a request's times: in order, of all that happened, and longer where something took longer."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from engine.core.request_timeline import RequestTimeline
from protocol.requests import MOST_CHUNKS, Credit, Timeline
from tests.engine.conftest import SCOPES, VOCABULARY, Bench, generate, make_bench
from tests.engine.speculation.lying_drafter import OracleDrafter

LONG = [(11 * i + i * i) % VOCABULARY for i in range(300)]


def timeline(bench: Bench, id: str) -> Timeline:
    done = bench.runs[id].done
    assert done is not None
    assert done.timeline is not None
    return done.timeline


def test_the_times_of_a_request_are_in_order_and_its_chunks_are_its_prompt(bench: Bench):
    bench.one(generate("a", LONG, 3))
    told = timeline(bench, "a")
    assert 0 <= told.accepted <= told.began <= told.chunks[0].start <= told.first <= told.ended
    assert sum(chunk.computed for chunk in told.chunks) == 300
    assert [chunk.end for chunk in told.chunks] == sorted(chunk.end for chunk in told.chunks)
    assert all(chunk.start <= chunk.end <= told.first for chunk in told.chunks)


def test_what_was_read_is_in_no_chunk(bench: Bench):
    bench.one(generate("a", LONG, 1))
    bench.one(generate("b", LONG, 1))
    assert sum(chunk.computed for chunk in timeline(bench, "b").chunks) == 44


def test_a_wait_before_the_engine_takes_a_request_is_told(bench: Bench):
    bench.engine.add(generate("late", LONG, 1), SCOPES, arrived=time.monotonic() - 0.5)
    bench.one(generate("prompt", LONG, 1))
    assert timeline(bench, "late").accepted >= 500_000
    assert timeline(bench, "prompt").accepted < 500_000


def test_waiting_for_credit_is_told_apart(bench: Bench):
    bench.add(generate("a", LONG[:20], 4, credit=2))
    bench.finish()
    assert bench.runs["a"].done is None
    time.sleep(0.05)
    message = Credit("a", 2, 10)
    bench.engine.credit(message.id, message.delivered, message.limit)
    bench.finish()
    told = timeline(bench, "a")
    assert 50_000 <= told.paused <= told.ended - told.first


def test_accepted_drafts_are_fewer_steps(tiny_model: Path):
    plain = make_bench(tiny_model)
    output = plain.one(generate("a", LONG[:20], 25)).tokens
    told = timeline(plain, "a")
    assert (told.decodes, told.drafting) == (24, 0), "the first token is the prompt's"
    bench = make_bench(tiny_model, drafters=[OracleDrafter(VOCABULARY, {("a", 0): output}, 0)])
    bench.one(generate("a", LONG[:20], 25))
    told = timeline(bench, "a")
    assert told.decodes == 24 - bench.counts("a").accepted < 24
    assert 0 < told.drafting < told.ended


def test_a_request_that_never_began_says_so(bench: Bench):
    bench.add(generate("a", LONG, 1))
    bench.engine.abort("a")
    bench.finish()
    told = timeline(bench, "a")
    assert (told.began, told.first, told.chunks) == (-1, -1, ())


@pytest.mark.parametrize("chunks", [1, MOST_CHUNKS, MOST_CHUNKS + 1, 200])
def test_chunks_are_bounded_and_keep_their_sums(chunks: int):
    timeline = RequestTimeline(time.monotonic())
    timeline.begin(read=5)
    for index in range(chunks):
        timeline.chunk(time.monotonic(), time.monotonic(), 64, 5 + index)
    told = timeline.message(0).chunks
    assert len(told) == min(chunks, MOST_CHUNKS)
    assert sum(chunk.computed for chunk in told) == 64 * chunks
    assert sum(chunk.restored for chunk in told) == chunks - 1
