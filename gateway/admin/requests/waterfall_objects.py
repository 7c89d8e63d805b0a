"""/admin/v1/tenants/{tenant}/requests/{name}/waterfall: where each microsecond and each token of a request went."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, get_args

from msgspec import Struct

from billing.calendar import format_instant
from billing.money import format_pico
from billing.prices import PriceVersion
from billing.reports.request_list import ListedEvent
from gateway.generation_request import Dialect
from protocol.requests import Timeline
from waterfall.bars import Bar, Waterfall, waterfall
from waterfall.record import Attempt, Record

CAUSES: Mapping[str, str] = {
    "auth": "The key or session was checked, and whether it may do this.",
    "body": "The body came over the network.",
    "parse": "The JSON was read and checked.",
    "render": "The chat template was filled in and the text became tokens.",
    "plan": "Cache markers became positions in these tokens.",
    "price": "The price was looked up.",
    "limits": "Rate limits were asked, or told of the end.",
    "scope_keys": "The project's cache key was loaded.",
    "hold": "Money was reserved, and leases were decided, in the database.",
    "prefix_wait": "Another request was computing the same prefix.",
    "route": "A replica was chosen and the request sent.",
    "transfer": "The message was on its way between gateway and replica, or waited for the replica's journal.",
    "accept": "The replica's engine finished its step, or compiled the grammar.",
    "queue": "It waited in its lane for its turn on the replica.",
    "match": "The cache was searched, and KV came from farther tiers before anything was computed.",
    "prefill": "The rest of the prompt was computed.",
    "promise": "What leases promise was confirmed in the database.",
    "decode": "Output tokens were drawn.",
    "reader": "The client read slower than tokens came.",
    "funds": "More money had to be held before the answer could go on.",
    "lost": "The replica was lost while it ran the request.",
    "retry": "Another replica was waited for.",
    "spool": "The usage was written to disk.",
    "explain": "The client asked why the prompt missed.",
    "answer": "The last of the answer was sent.",
    "settle": "Event, hold and ledger were written to the database, after the answer.",
    "end": "The request was put away.",
    "running": "It still runs.",
}
"""Stage -> what took the time."""

_UNDONE: Mapping[str, Literal["lost", "stopped", "refused"]] = {
    "lost": "lost",
    "stopped": "stopped",
    "refused": "refused",
}
_SURFACES: Mapping[str, Dialect] = {dialect: dialect for dialect in get_args(Dialect)}
_READ_STAGES = ("match", "prefill", "queue", "transfer")
_WAIT_US = 50_000
"""To so many microseconds the expected wait is told, since it is the work of others."""
_COMPUTE_STAGES = ("prefill", "decode", "queue", "transfer")
_OUTPUT_STAGES = ("decode", "reader", "funds", "transfer")


class WaterfallBar(Struct, frozen=True, kw_only=True):
    """A stage, in microseconds since the request was received. `attempt`: at which replica, from 1; none for what
    belongs to no attempt. `tokens` and `cost`: what was billed for this stage."""

    stage: str
    start_us: int
    duration_us: int
    attempt: int | None
    tokens: int | None
    cost: str | None
    cause: str


class WaterfallChunk(Struct, frozen=True, kw_only=True):
    """What is not in the sum: a part of the prompt that one step of the engine computed, within a bar, or limits that
    were asked while money was held. `attempt`: 0 for none."""

    what: Literal["prefill_chunk", "limits"]
    start_us: int
    duration_us: int
    attempt: int
    computed_tokens: int
    restored_tokens: int


class WaterfallAttempt(Struct, frozen=True, kw_only=True):
    """An attempt at a replica. `told`: whether the replica told its own times. `paused_us`: for how long the replica
    could send nothing, since the client read slowly or more money was being held. `after`: what became of the replica
    before it; `emitted_tokens`: output that it went on after; `other_numerics`: what followed may be other tokens than
    that replica would have drawn. `decode_steps`: steps that drew output behind the first token, fewer than the tokens
    where drafts were accepted. `drafting_us`: for how long drafters held its steps up, whoever they drafted for."""

    replica: str
    after: Literal["lost", "stopped", "refused"] | None
    emitted_tokens: int
    other_numerics: bool
    told: bool
    paused_us: int
    preemptions: int
    decode_steps: int
    drafting_us: int


class WaterfallObject(Struct, frozen=True, kw_only=True):
    """The bars, which add up to `wall_us`. `recorded`: `whole`; `running`, until now; or `none`, and `why` says what is
    the matter. `code`: the error's, if it failed. `surface`: the dialect that the client spoke; none: not known."""

    object: Literal["request.waterfall"] = "request.waterfall"
    id: str
    recorded: Literal["whole", "running", "none"]
    why: str | None
    status: str
    code: str | None
    surface: Dialect | None
    streamed: bool | None
    received_at: str | None
    wall_us: int
    first_token_us: int | None
    bars: list[WaterfallBar]
    beside: list[WaterfallChunk]
    attempts: list[WaterfallAttempt]
    cost: str | None
    currency: str | None


def waterfall_object(
    name: str,
    record: Record,
    event: ListedEvent | None = None,
    version: PriceVersion | None = None,
    *,
    until: int | None = None,
) -> WaterfallObject:
    """The waterfall of a record; `event` and its price `version` say what its stages cost. `until`: it still runs, so
    many microseconds after it was received."""
    shown = waterfall(record, until)
    billed = {} if event is None or version is None else _billed(shown.bars, event, version)
    return WaterfallObject(
        id=name,
        recorded="whole" if until is None else "running",
        why=None,
        status=record.status or "running",
        code=record.code or None,
        surface=_SURFACES.get(record.surface),
        streamed=record.streamed if record.surface else None,
        received_at=format_instant(record.received_at),
        wall_us=shown.wall,
        first_token_us=shown.first_token,
        bars=[_bar(bar, billed.get(index), record) for index, bar in enumerate(shown.bars)],
        beside=_chunks(shown),
        attempts=[_attempt(one) for one in record.attempts],
        cost=None if event is None else format_pico(event.cost_pico),
        currency=None if version is None else version.currency,
    )


def no_waterfall(
    name: str, why: str, event: ListedEvent | None = None, version: PriceVersion | None = None
) -> WaterfallObject:
    """What is known of a request whose stages were not kept, and why they were not."""
    known = event is not None
    return WaterfallObject(
        id=name,
        recorded="none",
        why=why,
        status=event.dimensions["status"] if event is not None else "running",
        code=None,
        surface=None,
        streamed=None,
        received_at=format_instant(event.admitted_at) if event is not None else None,
        wall_us=max(0, event.finished_at - event.admitted_at) if event is not None else 0,
        first_token_us=None,
        bars=[],
        beside=[],
        attempts=[_attempt(Attempt(event.dimensions["replica"]))]
        if event is not None and event.dimensions["replica"]
        else [],
        cost=format_pico(event.cost_pico) if event is not None else None,
        currency=version.currency if known and version is not None else None,
    )


def _attempt(one: Attempt) -> WaterfallAttempt:
    told = one.timeline or Timeline()
    return WaterfallAttempt(
        replica=one.replica,
        after=_UNDONE.get(one.after),
        emitted_tokens=one.emitted,
        other_numerics=one.other_numerics,
        told=one.timeline is not None,
        paused_us=told.paused,
        preemptions=told.preemptions,
        decode_steps=told.decodes,
        drafting_us=told.drafting,
    )


def _bar(bar: Bar, billed: tuple[int, int] | None, record: Record) -> WaterfallBar:
    return WaterfallBar(
        stage=bar.stage,
        start_us=bar.start,
        duration_us=bar.duration,
        attempt=bar.attempt or None,
        tokens=None if billed is None else billed[0],
        cost=None if billed is None else format_pico(billed[1]),
        cause=_cause(bar, record),
    )


def _cause(bar: Bar, record: Record) -> str:
    cause = CAUSES[bar.stage]
    if bar.stage == "queue" and record.lane:
        return cause.replace("its lane", f"the lane {record.lane}")
    if bar.stage == "route" and 0 < bar.attempt <= len(record.attempts):
        return f"{cause}{_choice(record.attempts[bar.attempt - 1])}"
    if bar.stage == "decode" and 0 < bar.attempt <= len(record.attempts):
        return f"{cause}{_steps(record.attempts[bar.attempt - 1].timeline)}"
    if bar.stage == "answer" and record.status == "refused":
        return f"It was refused: {record.code}."
    return cause


_WHY: Mapping[str, str] = {
    "cached": "it holds the most of the prompt",
    "spilled": "the wait at a replica that holds more was longer than computing it here",
    "least_work": "of those that hold as much it was expected to be the quickest",
    "new_group": "no replica holds any of the prompt",
    "only": "no other could be chosen",
}


def _choice(attempt: Attempt) -> str:
    """Why this replica was chosen, and what was expected of it."""
    chosen = attempt.chosen
    if chosen is None:
        return ""
    wait = _roughly(chosen.wait)
    parts = [("wait", wait), ("compute", chosen.compute), ("fetch", chosen.fetch)]
    seconds = " + ".join(f"{name} {_seconds(micros)}" for name, micros in parts if micros or name == "compute")
    other = ""
    if chosen.next_replica:
        expected = _seconds(max(_WAIT_US, _roughly(chosen.next_us)))
        other = f" The best of {chosen.others} others, {chosen.next_replica}, was expected to take about {expected}."
    return (
        f" {attempt.replica}, since {_WHY.get(chosen.why, chosen.why)}: {chosen.held:,} of {chosen.tokens:,} tokens "
        f"cached, first token in {_seconds(wait + chosen.compute + chosen.fetch)} ({seconds}).{other}"
    )


def _roughly(micros: int) -> int:
    return round(micros / _WAIT_US) * _WAIT_US


def _seconds(micros: int) -> str:
    return f"{micros / 1e6:.3g} s" if micros >= 1_000_000 else f"{micros / 1000:.3g} ms"


def _steps(told: Timeline | None) -> str:
    """In how many steps output was drawn, as far as the replica told it; and what drafting took of the time."""
    if told is None or not told.decodes:
        return ""
    drafting = f" Drafters held it up for {told.drafting / 1000:.1f} ms." if told.drafting >= 50 else ""
    return f" It took {told.decodes} {'step' if told.decodes == 1 else 'steps'} behind the first token.{drafting}"


def _billed(bars: Sequence[Bar], event: ListedEvent, version: PriceVersion) -> dict[int, tuple[int, int]]:
    """Index of a bar -> tokens and pico-units billed for it. Together they are all that was billed."""
    lane, billed = event.dimensions["lane"], dict[int, tuple[int, int]]()
    for meter, units in event.meters.items():
        pico = units * version.price(meter, lane, event.context_from)
        stages = _OUTPUT_STAGES if meter == "output" else _READ_STAGES if meter.startswith("read_") else _COMPUTE_STAGES
        index = _place(bars, stages)
        if index is not None:
            tokens, cost = billed.get(index, (0, 0))
            billed[index] = tokens + units, cost + pico
    return billed


def _place(bars: Sequence[Bar], stages: Sequence[str]) -> int | None:
    """The last bar of the first of these stages that there is; the last bar of all if there is none."""
    for stage in stages:
        for index in range(len(bars) - 1, -1, -1):
            if bars[index].stage == stage:
                return index
    return len(bars) - 1 if bars else None


def _chunks(shown: Waterfall) -> list[WaterfallChunk]:
    return [
        WaterfallChunk(
            what="limits" if one.what == "limits" else "prefill_chunk",
            start_us=one.start,
            duration_us=one.duration,
            attempt=one.attempt,
            computed_tokens=one.computed,
            restored_tokens=one.restored,
        )
        for one in shown.beside
    ]
