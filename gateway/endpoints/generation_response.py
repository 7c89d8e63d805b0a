"""Runs prepared requests and responds, whole or streamed: what all generating endpoints share."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, Protocol, TypeAlias

from litestar import MediaType, Request
from litestar.response.base import ASGIResponse
from litestar.types import ASGIApp, Receive, Scope, Send
from msgspec.structs import replace

from gateway.admission.estimates import within_max_cost
from gateway.admission.prepared_request import PreparedRequest
from gateway.dialects.large_bodies import LARGE_BYTES
from gateway.endpoints.rate_limits import ask_limits
from gateway.endpoints.receipts import with_receipts
from gateway.errors import InvalidField, RateLimited
from gateway.generation.answer_parts import AnswerParts
from gateway.generation.delivery import (
    ChoiceDelta,
    DeliveryChunk,
    DeliveryReader,
    DeliverySequence,
    Failed,
    Finished,
    Item,
    ReaderGone,
    Started,
    merge_deltas,
)
from gateway.generation.generation_task import GenerationTask
from gateway.http.cache_status import HEADER as CACHE_STATUS
from gateway.http.cache_status import cache_status
from gateway.http.sse import ClientWatch, EventStream, EventWriter
from gateway.limits.permit import AskedPermit
from gateway.request_context import request_context
from gateway.services import Gateway
from prompt_cache.promise.lease_decisions import is_certain
from protocol.trace_context import HEADER, parse_traceparent
from tenancy.rights.key_limits import Network, is_inside
from tracing.exporter import Traces
from waterfall.marks import ANSWER, LIMITS, Marks

AFFORDABLE_TOKENS_HEADER = "x-turnpike-max-tokens"
_NOBODY_READS = 503
"""The status of a response that nobody will read."""
MOST_SCORES = 3 * 1024 * 1024
"""Log probabilities of an answer, or echoed tokens without any. So 131,072 tokens may have the 20 likeliest each."""
_AGAIN_S = 0.25


Keep: TypeAlias = Callable[[Finished], Awaitable[None]]
"""Keeps a response that ended well, before its client hears of the end."""


class _KeptReader:
    """A reader that lets the response be kept before it gives out the end."""

    def __init__(self, reader: DeliveryReader, keep: Keep) -> None:
        self._reader = reader
        self._keep = keep
        self.confirm = reader.confirm

    async def next(self, timeout: float | None = None) -> Item | None:  # noqa: ASYNC109  # None is an answer here
        """What the reader has next."""
        item = await self._reader.next(timeout)
        if isinstance(item, Finished):
            await self._keep(item)
        return item


class ResponseWriter(EventWriter, Protocol):
    """A dialect's response as bytes, whole or in events."""

    def whole(self, deltas: Sequence[ChoiceDelta], end: Finished) -> bytes:
        """The whole response, of one delta for each choice, in order."""
        ...


async def respond(
    gateway: Gateway,
    request: Request[Any, Any, Any],
    prepared: Sequence[PreparedRequest],
    writer: ResponseWriter,
    *,
    stream: bool,
    keep: Keep | None = None,
) -> ASGIApp:
    """Run requests that have equally many choices each, and answer them as one. `keep` is called when the writer has
    all of a response.

    Raises CostAboveMaximum, and InvalidField for an answer that could be too large, before any work; the GatewayError
    of a request that fails before its first text, or, if not streamed, at any time.
    """
    options = gateway.services.options
    tasks: list[GenerationTask] = []
    gone = asyncio.Event()

    def client_gone(why: str = "client") -> None:
        gone.set()
        for task in tasks:
            gateway.requests.client_left(task, why)

    prepared = await with_receipts(gateway, request, within_max_scores(within_max_cost(prepared)))
    in_thread = partial(_in_thread, gateway, prepared[0])
    context = request_context(request.scope)
    for part in prepared:
        part.marks.follow(context.marks)
    if gateway.traces is not None:
        _join_trace(gateway.traces, request, prepared, options.trusted_proxies)
    context.marks = prepared[0].marks
    watch = ClientWatch(request.scope, request.receive, client_gone)
    try:
        await gateway.requests.wait_for_replica(prepared[0], gone.is_set)
        permit = await _ask_limits(gateway, request, prepared)
    except BaseException:
        watch.stop()
        raise
    try:
        parts = AnswerParts(len(prepared), streamed=stream)
        tasks.extend(gateway.requests.start(part, streamed=stream, permit=permit, parts=parts) for part in prepared)
        if gone.is_set():  # while limits were asked
            client_gone()
        reader: DeliveryReader = DeliverySequence([task.delivery for task in tasks], prepared[0].generation.choices)
        if not stream:
            choices = len(prepared) * prepared[0].generation.choices
            response = await _whole(reader, writer, choices, tasks, keep=keep, in_thread=in_thread)
            watch.stop()
            return MarkedResponse(response, prepared)
        if keep is not None:
            reader = _KeptReader(reader, keep)
        first = await _first_items(reader, options.keep_alive)
    except BaseException:
        client_gone("handler")
        watch.stop()
        answered(prepared)
        if unstarted := prepared[len(tasks) :]:
            await permit.refusal()
            for part in unstarted:
                await permit.ended(part.request_id, 0)
        raise
    events = EventStream(
        reader,
        first,
        writer,
        watch=watch,
        on_gone=client_gone,
        keep_alive=options.keep_alive,
        client_timeout=options.client_timeout,
        in_thread=in_thread,
        headers=_headers(tasks, first),
    )
    return MarkedResponse(events, prepared)


def _join_trace(
    traces: Traces, request: Request[Any, Any, Any], prepared: Sequence[PreparedRequest], trusted: Sequence[Network]
) -> None:
    """Trace the request as a part of its caller's trace, if it names one. Its own parts are in one trace."""
    headers = request.headers.getall(HEADER, [])
    caller = parse_traceparent(headers[0]) if len(headers) == 1 else None
    client = request.scope.get("client")
    by_proxy = client is not None and bool(trusted) and is_inside(client[0], trusted)
    for part in prepared:
        context = traces.begin(part.marks, caller, trusted=by_proxy)
        caller, by_proxy = caller or context, by_proxy or caller is None


async def _ask_limits(
    gateway: Gateway, request: Request[Any, Any, Any], prepared: Sequence[PreparedRequest]
) -> AskedPermit:
    try:
        return await ask_limits(gateway, request, prepared)
    finally:
        for part in prepared:
            part.marks.mark(LIMITS)


def within_max_scores(prepared: Sequence[PreparedRequest]) -> Sequence[PreparedRequest]:
    """The parts of one request, if its answer can have MOST_SCORES log probabilities at most. A request without
    `max_tokens` is shortened until it can. Raises InvalidField."""
    first = prepared[0]
    generation, scored = first.generation, first.generation.logprobs is not None
    each = generation.choices * (1 + (generation.logprobs or 0))
    echoed = each * sum(len(part.prompt.tokens) for part in prepared) if generation.echo else 0
    generated = each * sum(part.sampling.max_tokens for part in prepared) if scored else 0
    if echoed + generated <= MOST_SCORES:
        return prepared
    fits = (MOST_SCORES - echoed) // each
    if len(prepared) == 1 and generation.max_tokens is None and fits >= max(1, generation.min_tokens):
        sampling = replace(first.sampling, max_tokens=fits)
        return [replace(first, sampling=sampling, held_output=min(first.held_output, fits))]
    raise InvalidField(
        "$.echo" if echoed > generated else generation.max_tokens_path,
        f"the answer could have {echoed + generated} tokens and log probabilities of them in all choices, more than "
        f"{MOST_SCORES}; ask for fewer choices, tokens or likeliest tokens",
    )


async def _in_thread(gateway: Gateway, prepared: PreparedRequest, work: Callable[[], bytes]) -> bytes:
    """Do it in a thread, of which tenants have equal shares. What is answered was paid for: it waits for its turn."""
    while True:
        try:
            return await gateway.threads.run(prepared.payer.tenant_id, work)
        except RateLimited:
            await asyncio.sleep(_AGAIN_S)


class MarkedResponse:
    """A response after which the requests that it answers are marked as answered."""

    def __init__(self, response: ASGIApp, prepared: Sequence[PreparedRequest]) -> None:
        self._response = response
        self._marks = [part.marks for part in prepared]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send it."""
        try:
            await self._response(scope, receive, send)
        finally:
            _answer(self._marks)


def answered(prepared: Sequence[PreparedRequest]) -> None:
    """Mark requests as answered: now, or in a moment, by their error."""
    _answer([part.marks for part in prepared])


def _answer(of: Sequence[Marks]) -> None:
    for marks in of:
        marks.mark(ANSWER)
        marks.answered = True


async def _first_items(reader: DeliveryReader, keep_alive: float) -> list[Item | None]:
    """What comes up to the first text, which decides over the status of the response; a silence of `keep_alive` seconds
    does so too. Raises the failure of a request that fails before."""
    items = [await reader.next(keep_alive)]
    if isinstance(items[0], Started):
        items.append(await reader.next(keep_alive))
    if isinstance(items[-1], Failed):
        raise items[-1].failure
    return items


def _headers(tasks: Sequence[GenerationTask], items: Sequence[Item | None]) -> dict[str, str]:
    """The headers that say what is known from these items on: how many output tokens the money allows, where that is
    fewer than was possible; and what the cache did."""
    limits = [task.prepared.sampling.max_tokens for task in tasks if task.prepared.shortened]
    headers = {AFFORDABLE_TOKENS_HEADER: str(min(limits))} if limits else {}
    prepared = tasks[0].prepared
    known: Started | Finished | None = next((item for item in items if isinstance(item, Started | Finished)), None)
    if isinstance(known, Started):
        known = tasks[0].delivery.started
    if known is not None and known.counts is not None:
        headers[CACHE_STATUS] = cache_status(prepared, known.usage, known.counts)
    elif prepared.leases is not None and is_certain(prepared.leases):
        headers[CACHE_STATUS] = cache_status(prepared)
    return headers


async def _whole(
    reader: DeliveryReader,
    writer: ResponseWriter,
    choices: int,
    tasks: Sequence[GenerationTask],
    *,
    keep: Keep | None,
    in_thread: Callable[[Callable[[], bytes]], Awaitable[bytes]],
) -> ASGIApp:
    """The response after everything has arrived. Raises the failure."""
    deltas = [ChoiceDelta(choice, "") for choice in range(choices)]
    while True:
        item = await reader.next()
        if isinstance(item, Finished):
            work = partial(writer.whole, merge_deltas(deltas), item)
            body = await in_thread(work) if sum(delta.size for delta in deltas) > LARGE_BYTES else work()
            if keep is not None:
                await keep(item)
            return ASGIResponse(body=body, media_type=MediaType.JSON, headers=_headers(tasks, [item]))
        if isinstance(item, Failed):
            raise item.failure
        if isinstance(item, ReaderGone):
            return ASGIResponse(body=b"", status_code=_NOBODY_READS)
        if isinstance(item, DeliveryChunk):
            deltas += item.deltas
