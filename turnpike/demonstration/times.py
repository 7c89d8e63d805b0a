"""Where the time of a past request went.

Nobody took it: it is laid out from what its replica computed and how long it took as a whole.
"""

from __future__ import annotations

from billing.usage import UsageEvent
from gateway.admission.prepared_request import PreparedRequest
from protocol.requests import PromptChunk, Timeline
from waterfall import marks as m
from waterfall.record import Attempt, Record, pack
from waterfall.store import Row

_BEFORE = ((m.RECEIVED, 0), (m.AUTH, 180), (m.BODY, 420), (m.PARSE, 700))
"""Until what is written about a prompt is read, in microseconds since it was received."""
_RENDER_US = 0.35
"""To render and tokenize a token of a prompt."""
_AFTER_RENDER = ((m.RENDER, 0), (m.PLAN, 90), (m.PRICE, 130), (m.LIMITS, 260), (m.SCOPE_KEYS, 280), (m.HOLD, 2_900))
_TOKEN_US = 18
"""To compute a token of a prompt."""
_CHUNK = 2_048
_MOST_PROMPT = 0.6
"""The part of a request's time that its prompt takes at most."""
_AT_THE_END = ((m.SPOOL, 900), (m.ANSWER, 1_150), (m.SETTLE, 9_400), (m.END, 9_400))


def row_of(prepared: PreparedRequest, event: UsageEvent) -> Row:
    """The row of a request that ended."""
    tokens, counts = len(prepared.prompt.tokens), event.counts
    rendered = _BEFORE[-1][1] + int(tokens * _RENDER_US)
    marks = [*_BEFORE, *((what, rendered + after) for what, after in _AFTER_RENDER)]
    held = marks[-1][1]
    sent = held + 140
    took = max(1_000, event.finished_at - event.admitted_at - (sent - held))
    began = 60 + took // 50
    first = began + min(200 + counts.computed * _TOKEN_US, int(took * _MOST_PROMPT))
    marks.append((m.ROUTE, sent))
    died = event.status == "failed"
    if died:
        marks.append((m.LOST, sent + took))
        timeline = None
    else:
        marks += [(m.BEGAN, sent + began + 40), (m.FIRST_TOKEN, sent + first + 80), (m.DONE, sent + took)]
        timeline = Timeline(60, began, first, took - 90, chunks=_chunks(counts.computed, began + 100, first))
    marks += [(what, sent + took + after) for what, after in _AT_THE_END]
    received = event.admitted_at - held
    record = Record(
        received_at=received,
        marks=tuple(number for mark in marks for number in mark),
        attempts=(Attempt(event.replica, timeline),),
        status=event.status,
        code="interrupted" if died else "",
        key=prepared.payer.key,
        model=prepared.model.name,
        lane=prepared.generation.lane,
        surface=prepared.generation.surface,
        prompt_tokens=tokens,
        output_tokens=event.usage.output,
        streamed=True,
    )
    return Row(event.id, event.tenant_id, event.project_id, received, pack(record))


def _chunks(computed: int, start: int, end: int) -> tuple[PromptChunk, ...]:
    """The steps that computed the prompt."""
    sizes = [_CHUNK] * (computed // _CHUNK) + ([computed % _CHUNK] if computed % _CHUNK else [])
    chunks, done = [], 0
    for size in sizes:
        begin, done = start + (end - start) * done // computed, done + size
        chunks.append(PromptChunk(begin, start + (end - start) * done // computed, size))
    return tuple(chunks)
