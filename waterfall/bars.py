"""Turns marks into bars: each is the time between two of them, so that together they are the wall time, to the
microsecond.

A replica has a clock of its own. What it told is laid between the marks that the gateway made when it sent the request
and when it heard of its first token: no clock needs to be right, and no bar can be negative.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from protocol.requests import PromptChunk, Timeline
from waterfall import marks as m
from waterfall.record import Record

STAGES = (
    *("auth", "body", "parse", "render", "plan", "price", "limits", "scope_keys", "hold", "prefix_wait", "route"),
    *("transfer", "accept", "queue", "match", "prefill", "promise", "decode", "reader", "funds", "lost", "retry"),
    *("spool", "explain", "answer", "settle", "end", "running"),
)
"""All stages, in the order in which a request usually passes them.

A new stage is also: its mark in `waterfall/marks.py`, and that in `_STAGE_OF` below; what took its time in
`gateway/admin/requests/waterfall_objects.py` (`CAUSES`); its label and party in `web/src/pages/requests/waterfall.ts`;
its row in docs/waterfall.md. The mark is made where the time ends.
"""

_STAGE_OF = {
    m.AUTH: "auth",
    m.BODY: "body",
    m.PARSE: "parse",
    m.RENDER: "render",
    m.PLAN: "plan",
    m.PRICE: "price",
    m.LIMITS: "limits",
    m.SCOPE_KEYS: "scope_keys",
    m.HOLD: "hold",
    m.PREFIX_WAIT: "prefix_wait",
    m.ROUTE: "route",
    m.BEGAN: "queue",
    m.FIRST_TOKEN: "prefill",
    m.PROMISE: "promise",
    m.DONE: "decode",
    m.LOST: "lost",
    m.RETRY: "retry",
    m.READER: "reader",
    m.SPOOL: "spool",
    m.EXPLAIN: "explain",
    m.ANSWER: "answer",
    m.SETTLE: "settle",
    m.END: "end",
}
_RUNS_ON = "running"


class Bar(Struct, frozen=True):
    """A stage from `start` for `duration`, in microseconds since the request was received. `attempt`: of those at
    replicas, from 1; 0 for what belongs to none."""

    stage: str
    start: int
    duration: int
    attempt: int = 0


class Beside(Struct, frozen=True):
    """Something that ran beside the bars, or within one, and is not in the sum: a chunk of the prompt on a replica, or
    limits that were asked while money was held."""

    what: str
    start: int
    duration: int
    attempt: int = 0
    computed: int = 0
    restored: int = 0


class Waterfall(Struct, frozen=True):
    """`wall` is the sum of the bars. `first_token`: microseconds until the gateway had it, None if none came."""

    wall: int
    bars: tuple[Bar, ...]
    beside: tuple[Beside, ...] = ()
    first_token: int | None = None
    attempts: int = 0


class _Span(Struct):
    """One attempt: when it was sent, when its first token came, when it ended; None: not yet. `latest`: the last mark
    of all."""

    sent: int
    latest: int
    first: int | None = None
    ended: int | None = None

    @property
    def heard(self) -> int:
        """When the gateway heard of its first token, or of what came instead."""
        if self.first is not None:
            return self.first
        return self.latest if self.ended is None else self.ended


def waterfall(record: Record, until: int | None = None) -> Waterfall:
    """The bars of a record. `until`: the request still runs, so many microseconds after it was received."""
    marks = list(zip(record.marks[::2], record.marks[1::2], strict=False))
    points: list[tuple[int, str, int]] = []
    """(when, the stage that ended, attempt)"""
    beside = _limits(record)
    first_token: int | None = None
    start = min((at for _, at in marks), default=0)
    last = max([start if until is None else until, *(at for _, at in marks)])
    attempt, span = 0, _Span(start, last)
    for index, (what, at) in enumerate(marks):
        if what == m.RECEIVED:
            continue
        stage = _STAGE_OF.get(what, _RUNS_ON)
        told = _told(record, attempt)
        if what == m.ROUTE:
            attempt += 1
            span = _span(marks, index, last)
            points.append((at, stage, attempt))
            if (told := _told(record, attempt)) is not None:
                points += _replica_points(told, span, attempt)
                beside += _chunks(told, span, attempt)
            continue
        if what == m.BEGAN and told is not None:
            continue  # the replica said it more exactly
        if what == m.FIRST_TOKEN:
            first_token = at - start if first_token is None else first_token
            stage = stage if told is None else "transfer"
        elif what == m.DONE and span.first is None:
            stage = _unanswered(told)
        points.append((at, stage, attempt if what in (m.BEGAN, m.FIRST_TOKEN, m.DONE, m.LOST) else 0))
    if until is not None:
        points.append((last, _RUNS_ON, 0))
    elif last > max((at for at, _, _ in points), default=start):
        points.append((last, "end", 0))
    bars = _bars(start, points, record)
    wall = sum(bar.duration for bar in bars)
    shifted = tuple(_shifted(one, start) for one in beside)
    return Waterfall(wall, bars, shifted, first_token, attempt)


def _bars(start: int, points: list[tuple[int, str, int]], record: Record) -> tuple[Bar, ...]:
    bars: list[Bar] = []
    before = start
    topped_up = max(0, record.topped_up)
    for at, stage, attempt in sorted(points, key=lambda point: point[0]):  # stable: ties stay in their order
        length = at - before
        told = _told(record, attempt)
        stalled = min(length, max(0, told.paused)) if stage == "decode" and told is not None else 0
        bars.append(Bar(stage, before - start, length - stalled, attempt))
        if stalled:
            funds = min(stalled, topped_up)
            topped_up -= funds
            begin = before - start + length - stalled
            if stalled > funds:
                bars.append(Bar("reader", begin, stalled - funds, attempt))
            if funds:
                bars.append(Bar("funds", begin + stalled - funds, funds, attempt))
        before = at
    return tuple(bars)


def _told(record: Record, attempt: int) -> Timeline | None:
    return record.attempts[attempt - 1].timeline if 0 < attempt <= len(record.attempts) else None


def _span(marks: Sequence[tuple[int, int]], index: int, latest: int) -> _Span:
    """The attempt that begins at this mark."""
    span = _Span(marks[index][1], latest)
    for what, at in marks[index + 1 :]:
        if what == m.FIRST_TOKEN and span.first is None:
            span.first = max(at, span.sent)
        elif what in (m.DONE, m.LOST):
            span.ended = max(at, span.sent)
            break
        elif what == m.ROUTE:
            break
    return span


def _unanswered(told: Timeline | None) -> str:
    """What an attempt without a token was at when it ended."""
    if told is None:
        return "prefill"
    return "transfer" if told.began >= 0 else "queue"


def _replica_points(told: Timeline, span: _Span, attempt: int) -> list[tuple[int, str, int]]:
    """What the replica did, by the gateway's clock: within what the gateway saw."""
    stages = [("accept", told.accepted), ("queue", told.began)]
    if told.began >= 0 and told.chunks:
        early = [chunk for chunk in told.chunks if told.first < 0 or chunk.start <= told.first] or told.chunks[:1]
        stages += [("match", told.chunks[0].start), ("prefill", told.first if told.first >= 0 else early[-1].end)]
    elif told.first >= 0:
        stages.append(("prefill", told.first))
    offset = _offset(told, span)
    points = [(span.sent + offset, "transfer", attempt)]
    points += [(span.sent + offset + at, stage, attempt) for stage, at in stages if at >= 0]
    reached, ordered = span.sent, []
    for at, stage, number in points:
        reached = max(reached, min(at, span.heard))
        ordered.append((reached, stage, number))
    return ordered


def _offset(told: Timeline, span: _Span) -> int:
    """Microseconds that the request was probably on its way: half of what sending it and hearing of it took."""
    slack = []
    if span.first is not None and told.first >= 0:
        slack.append(span.first - span.sent - told.first)
    if span.ended is not None:
        slack.append(span.ended - span.sent - told.ended)
    return max(0, min(slack, default=0)) // 2


def _chunks(told: Timeline, span: _Span, attempt: int) -> list[Beside]:
    base = span.sent + _offset(told, span)
    latest = span.latest if span.ended is None else span.ended
    found = []
    for chunk in told.chunks:
        begin, end = (min(base + max(0, at), latest) for at in (chunk.start, chunk.end))
        found.append(_chunk(chunk, begin, max(begin, end), attempt))
    return found


def _limits(record: Record) -> list[Beside]:
    if len(record.limits) != 2:
        return []
    asked, told = (max(0, at) for at in record.limits)
    return [Beside("limits", asked, max(0, told - asked))]


def _chunk(chunk: PromptChunk, begin: int, end: int, attempt: int) -> Beside:
    return Beside("prefill_chunk", begin, end - begin, attempt, chunk.computed, chunk.restored)


def _shifted(one: Beside, start: int) -> Beside:
    return Beside(one.what, max(0, one.start - start), one.duration, one.attempt, one.computed, one.restored)
