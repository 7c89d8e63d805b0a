"""Bars of any marks: none is negative, together they are the wall time, and a delay is in its stage's alone."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.requests import PromptChunk, Timeline
from tests.fast import examples
from waterfall import marks as m
from waterfall.bars import STAGES, Waterfall, waterfall
from waterfall.record import Attempt, Record, pack, unpack

MICROS = st.integers(0, 10**9)
TIMES = st.integers(-1, 10**9)
CHUNKS = st.lists(st.builds(PromptChunk, TIMES, TIMES, st.integers(0, 9), st.integers(0, 9)), max_size=4)
TIMELINES = st.builds(Timeline, TIMES, TIMES, TIMES, MICROS, MICROS, st.integers(0, 3), st.builds(tuple, CHUNKS))
MARKS = st.lists(st.tuples(st.integers(m.RECEIVED, m.END + 2), MICROS), max_size=40)

TOLD = Timeline(
    accepted=100,
    began=300,
    first=900,
    ended=1900,
    paused=0,
    chunks=(PromptChunk(350, 600, 64), PromptChunk(600, 890, 20)),
)
USUAL = (
    (m.RECEIVED, 0), (m.AUTH, 10), (m.BODY, 20), (m.PARSE, 30), (m.RENDER, 40), (m.PLAN, 50), (m.PRICE, 60),
    (m.LIMITS, 70), (m.HOLD, 100), (m.ROUTE, 120), (m.BEGAN, 460), (m.FIRST_TOKEN, 1060), (m.DONE, 2120),
    (m.READER, 2130), (m.SPOOL, 2200), (m.ANSWER, 2210), (m.SETTLE, 2900),
)  # fmt: skip
"""What the gateway of an unremarkable request marks: messages take 40 µs each way."""


def record(
    marks: list[tuple[int, int]] | tuple[tuple[int, int], ...], *timelines: Timeline | None, **more: Any
) -> Record:
    flat = tuple(number for mark in marks for number in mark)
    return Record(0, flat, tuple(Attempt("r", told) for told in timelines), **more)


def by_stage(shown: Waterfall) -> Counter[str]:
    sums: Counter[str] = Counter()
    for bar in shown.bars:
        sums[bar.stage] += bar.duration
    return sums


def check(shown: Waterfall) -> None:
    end = 0
    for bar in shown.bars:
        assert bar.duration >= 0
        assert bar.start == end, "bars follow each other without a gap"
        assert bar.stage in STAGES
        end += bar.duration
    assert end == shown.wall
    assert all(one.duration >= 0 and one.start >= 0 for one in shown.beside)


@given(MARKS, st.lists(st.none() | TIMELINES, max_size=3), MICROS, st.none() | MICROS)
@settings(max_examples=examples(600))
def test_any_marks_add_up_to_the_wall_time(
    marks: list[tuple[int, int]], told: list[Timeline | None], topped_up: int, until: int | None
) -> None:
    shown = waterfall(record(marks, *told, topped_up=topped_up), until)
    check(shown)
    times = [at for _, at in marks]
    start = min(times, default=0)
    assert shown.wall == max([start if until is None else until, *times]) - start


@given(st.permutations(USUAL), st.sets(st.integers(0, len(USUAL) - 1)))
@settings(max_examples=examples(200))
def test_marks_in_any_order_with_some_absent_give_the_same_wall_time(
    marks: list[tuple[int, int]], absent: set[int]
) -> None:
    left = [mark for mark in marks if mark not in [USUAL[index] for index in absent] or mark[0] == m.RECEIVED]
    shown = waterfall(record(left, TOLD))
    check(shown)
    assert shown.wall == max(at for _, at in left)


def test_a_usual_request() -> None:
    shown = waterfall(record(USUAL, TOLD))
    check(shown)
    assert shown.wall == 2900
    assert shown.first_token == 1060
    assert by_stage(shown) == {
        "auth": 10, "body": 10, "parse": 10, "render": 10, "plan": 10, "price": 10, "limits": 10, "hold": 30,
        "route": 20, "transfer": 40, "accept": 100, "queue": 200, "match": 50, "prefill": 550, "decode": 1060,
        "reader": 10, "spool": 70, "answer": 10, "settle": 690,
    }  # fmt: skip
    assert [(one.start, one.duration, one.computed) for one in shown.beside] == [(490, 250, 64), (740, 290, 20)]


DELAYED = 200_000


@pytest.mark.parametrize(
    ("stage", "first"),
    [
        *(("auth", m.AUTH), ("body", m.BODY), ("parse", m.PARSE), ("render", m.RENDER), ("plan", m.PLAN)),
        *(("price", m.PRICE), ("limits", m.LIMITS), ("hold", m.HOLD), ("route", m.ROUTE), ("decode", m.DONE)),
        *(("reader", m.READER), ("spool", m.SPOOL), ("answer", m.ANSWER), ("settle", m.SETTLE)),
    ],
)
def test_a_delay_at_the_gateway_moves_its_bar_alone(stage: str, first: int) -> None:
    before = by_stage(waterfall(record(USUAL, TOLD)))
    order = [what for what, _ in USUAL]
    late = order.index(first)
    marks = [(what, at + DELAYED * (index >= late)) for index, (what, at) in enumerate(USUAL)]
    told = TOLD if first != m.DONE else Timeline(**{**_fields(TOLD), "ended": TOLD.ended + DELAYED})
    after = by_stage(waterfall(record(marks, told)))
    assert after - before == {stage: DELAYED}
    assert before - after == {}


@pytest.mark.parametrize("stage", ["accept", "queue", "match", "prefill", "decode", "reader", "funds"])
def test_a_delay_at_the_replica_moves_its_bar_alone(stage: str) -> None:
    before = by_stage(waterfall(record(USUAL, TOLD)))
    fields = _fields(TOLD)
    order = ["accepted", "began", "chunks", "first", "ended"]
    begins = {"accept": 0, "queue": 1, "match": 2, "prefill": 3}.get(stage, 4)
    for index, name in enumerate(order):
        if index >= begins and name != "chunks":
            fields[name] += DELAYED
    if begins <= 2:
        fields["chunks"] = tuple(PromptChunk(c.start + DELAYED, c.end + DELAYED, c.computed) for c in TOLD.chunks)
    if stage in ("reader", "funds"):
        fields["paused"] = DELAYED
    late = m.FIRST_TOKEN if begins < 4 else m.DONE
    moved = [what for what, _ in USUAL].index(late)
    marks = [(what, at + DELAYED * (index >= moved)) for index, (what, at) in enumerate(USUAL)]
    shown = waterfall(record(marks, Timeline(**fields), topped_up=DELAYED if stage == "funds" else 0))
    check(shown)
    after = by_stage(shown)
    assert after - before == {stage: DELAYED}
    assert before - after == {}


def _fields(told: Timeline) -> dict[str, object]:
    return {name: getattr(told, name) for name in told.__struct_fields__}


def test_a_lost_replica_and_the_next() -> None:
    marks = (*USUAL[:11], (m.LOST, 1000), (m.RETRY, 1500), (m.ROUTE, 1510), (m.FIRST_TOKEN, 2500), (m.DONE, 3000))
    shown = waterfall(record(marks, None, TOLD))
    check(shown)
    sums = by_stage(shown)
    assert (sums["lost"], sums["retry"], shown.attempts) == (540, 500, 2)
    assert {bar.attempt for bar in shown.bars} == {0, 1, 2}


def test_a_request_that_still_runs_goes_on_until_now() -> None:
    shown = waterfall(record(USUAL[:9]), until=5000)
    check(shown)
    assert (shown.wall, shown.bars[-1].stage, shown.bars[-1].duration) == (5000, "running", 4900)


def test_limits_that_were_asked_beside_the_hold_are_not_in_the_sum() -> None:
    shown = waterfall(record(USUAL, TOLD, limits=(75, 95)))
    check(shown)
    assert shown.bars == waterfall(record(USUAL, TOLD)).bars
    assert (shown.beside[0].what, shown.beside[0].start, shown.beside[0].duration) == ("limits", 75, 20)


def test_a_record_is_the_same_after_it_was_stored() -> None:
    stored = record(USUAL, TOLD, None)
    assert unpack(pack(stored)) == stored
