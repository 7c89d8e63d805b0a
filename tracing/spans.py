"""Makes a trace of a request that has ended: its bars, gathered into the few spans that a trace shows.

    chat MODEL            from the first byte to the last byte of the answer
      receive             who asks, what, under which plan, price and limits
      hold                money was reserved
      route               a replica was chosen, another was waited for, the request sent
      queue               it waited there
      prefill             the prompt was read from the cache, or computed
      decode              the answer was drawn, and read by its client
      settle              the usage was made durable, and billed: it may end after the request's own span

The spans of an attempt carry its number; an attempt that follows another is an event of the request's span too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from random import getrandbits
from uuid import UUID

from msgspec import Struct

from protocol.trace_context import TraceContext
from storage.database.public_ids import public_id
from tracing import names
from waterfall.bars import Bar, waterfall
from waterfall.marks import ANSWER, END, ROUTE
from waterfall.record import Record

Value = str | int | float | bool | tuple[str, ...]
Attributes = Mapping[str, Value]

PHASE_OF = {
    **dict.fromkeys(("auth", "body", "parse", "render", "plan", "price", "limits", "scope_keys"), "receive"),
    "hold": "hold",
    **dict.fromkeys(("prefix_wait", "route", "transfer", "accept", "retry"), "route"),
    "queue": "queue",
    **dict.fromkeys(("match", "prefill", "promise"), "prefill"),
    **dict.fromkeys(("decode", "reader", "funds", "running"), "decode"),
    **dict.fromkeys(("spool", "explain", "answer", "settle", "end"), "settle"),
}
"""The span that each stage of the waterfall is part of."""
_LAST = "settle"


class RequestFacts(Struct, frozen=True, kw_only=True):
    """What a trace says of a request beside its times. None: not said, or not known."""

    operation: str = "chat"
    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    seed: int | None = None
    choices: int = 1
    finish_reasons: tuple[str, ...] = ()
    input_tokens: int | None = None
    output_tokens: int | None = None
    cache_read: int | None = None
    cache_write: int | None = None
    reasoning: int | None = None
    http_status: int = 200


class Event(Struct, frozen=True):
    """Something that happened at a moment, in nanoseconds since the Unix epoch."""

    name: str
    at: int
    attributes: Attributes


class Span(Struct, frozen=True):
    """A span: times in nanoseconds since the Unix epoch, ids in hexadecimal digits. `error`: it failed by our fault;
    `server`: it answers a call from outside."""

    trace_id: str
    span_id: str
    parent_id: str
    name: str
    start: int
    end: int
    attributes: Attributes
    events: tuple[Event, ...] = ()
    error: bool = False
    server: bool = False


class TracedRequest(Struct, frozen=True):
    """A request that is told to the collector: `context` is its own span's place, `parent_id` the caller's span."""

    context: TraceContext
    parent_id: str
    request_id: UUID
    tenant_id: UUID
    project_id: UUID
    record: Record
    facts: RequestFacts


def new_span_id() -> str:
    """A random id of a span."""
    return f"{getrandbits(64) or 1:016x}"


def new_trace_id() -> str:
    """A random id of a trace."""
    return f"{getrandbits(128) or 1:032x}"


def spans_of(request: TracedRequest) -> list[Span]:
    """The request's own span, then its parts in the order of time."""
    record, context = request.record, request.context
    shown = waterfall(record)
    begin = record.received_at * 1000
    last = _answered(record)
    wall = shown.wall if last is None else min(last, shown.wall)
    own = Span(
        context.trace_id,
        context.span_id,
        request.parent_id,
        f"{request.facts.operation} {record.model}".strip(),
        begin,
        begin + wall * 1000,
        _about(request, shown.first_token),
        _events(record, begin),
        request.facts.http_status >= 500,
        server=True,
    )
    computed = {one.attempt: [0, 0] for one in shown.beside if one.attempt}
    for one in shown.beside:
        if one.attempt:
            computed[one.attempt][0] += one.computed
            computed[one.attempt][1] += one.restored
    return [own, *(_part(own, part, record, computed) for part in _parts(shown.bars))]


class _Part(Struct):
    phase: str
    attempt: int
    start: int
    end: int
    stages: dict[str, int]


def _parts(bars: Sequence[Bar]) -> list[_Part]:
    """Bars that follow each other in one phase, as one. After the first bar of the last phase all is of that phase,
    which tells limits at the end from those at the beginning."""
    parts: list[_Part] = []
    for bar in bars:
        phase = PHASE_OF.get(bar.stage, _LAST)
        latest = parts[-1] if parts else None
        if bar.stage == "transfer" and latest is not None and latest.phase == "prefill":
            phase = "prefill"  # its first token on the way
        elif bar.stage == "lost":  # what its replica was at
            phase = "decode" if latest is not None and latest.phase in ("prefill", "decode") else "queue"
        if latest is not None and latest.phase == _LAST and bar.stage != "retry" and not bar.attempt:
            phase = _LAST
        if latest is not None and latest.phase == phase and (bar.attempt in (0, latest.attempt) or not latest.attempt):
            latest.end = bar.start + bar.duration
            latest.attempt = latest.attempt or bar.attempt
            latest.stages[bar.stage] = latest.stages.get(bar.stage, 0) + bar.duration
        elif bar.duration or not parts:
            end = bar.start + bar.duration
            parts.append(_Part(phase, bar.attempt, bar.start, end, {bar.stage: bar.duration}))
    return parts


def _part(own: Span, part: _Part, record: Record, computed: Mapping[int, Sequence[int]]) -> Span:
    attributes: dict[str, Value] = {}
    if len(part.stages) > 1:
        attributes |= {names.STAGE + stage: took for stage, took in part.stages.items() if took}
    if 0 < part.attempt <= len(record.attempts):
        attempt = record.attempts[part.attempt - 1]
        attributes[names.ATTEMPT] = part.attempt
        attributes[names.REPLICA] = attempt.replica
        if part.phase == "prefill" and part.attempt in computed:
            attributes[names.COMPUTED], attributes[names.RESTORED] = computed[part.attempt]
        if part.phase == "decode" and attempt.timeline is not None:
            attributes[names.DECODE_STEPS] = attempt.timeline.decodes
    start, end = own.start + part.start * 1000, own.start + part.end * 1000
    return Span(own.trace_id, new_span_id(), own.span_id, part.phase, start, end, attributes)


def _answered(record: Record) -> int | None:
    """Microseconds until the answer was over; without one, until the request was put away."""
    ends = {what: at for what, at in zip(record.marks[::2], record.marks[1::2], strict=False) if what in (ANSWER, END)}
    at = ends.get(ANSWER, ends.get(END))
    return None if at is None else max(0, at - min(record.marks[1::2]))


def _events(record: Record, begin: int) -> tuple[Event, ...]:
    """Each attempt that followed another."""
    sent = [at for what, at in zip(record.marks[::2], record.marks[1::2], strict=False) if what == ROUTE]
    return tuple(
        Event(
            "continuation" if attempt.emitted else "another replica",
            begin + at * 1000,
            {
                names.ATTEMPT: number,
                names.REPLICA: attempt.replica,
                names.AFTER: attempt.after,
                names.EMITTED: attempt.emitted,
                names.OTHER_NUMERICS: attempt.other_numerics,
            },
        )
        for number, (at, attempt) in enumerate(zip(sent, record.attempts, strict=False), 1)
        if number > 1
    )


def _about(request: TracedRequest, first_token: int | None) -> Attributes:
    record, facts = request.record, request.facts
    said: dict[str, Value | None] = {
        names.OPERATION_NAME: facts.operation,
        names.PROVIDER_NAME: names.PROVIDER,
        names.REQUEST_MODEL: record.model or None,
        names.RESPONSE_MODEL: record.model or None,
        names.RESPONSE_ID: public_id("request", request.request_id),
        names.REQUEST_STREAM: record.streamed,
        names.REQUEST_MAX_TOKENS: facts.max_tokens,
        names.REQUEST_TEMPERATURE: facts.temperature,
        names.REQUEST_TOP_P: facts.top_p,
        names.REQUEST_SEED: facts.seed,
        names.REQUEST_CHOICES: facts.choices if facts.choices > 1 else None,
        names.FINISH_REASONS: facts.finish_reasons or None,
        names.FIRST_CHUNK: None if first_token is None else first_token / 1e6,
        names.INPUT_TOKENS: facts.input_tokens,
        names.OUTPUT_TOKENS: facts.output_tokens,
        names.CACHE_READ_TOKENS: facts.cache_read,
        names.CACHE_WRITE_TOKENS: facts.cache_write,
        names.REASONING_TOKENS: facts.reasoning or None,
        names.HTTP_STATUS: facts.http_status or None,
        names.ERROR_TYPE: record.code or None,
        names.TENANT: str(request.tenant_id),
        names.PROJECT: str(request.project_id),
        names.KEY: record.key,
        names.LANE: record.lane or None,
        names.SURFACE: record.surface or None,
        names.STATUS: record.status,
    }
    return {name: value for name, value in said.items() if value is not None}
