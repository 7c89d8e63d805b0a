"""Runs prepared requests and responds, whole or streamed: what all generating endpoints share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from litestar import MediaType, Request
from litestar.response.base import ASGIResponse
from litestar.types import ASGIApp

from gateway.admission.admission import PreparedRequest
from gateway.endpoints.rate_limits import permit_request
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
from gateway.services import Gateway

AFFORDABLE_TOKENS_HEADER = "x-turnpike-max-tokens"
_NOBODY_READS = 503
"""The status of a response that nobody will read."""


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
) -> ASGIApp:
    """Run requests that have equally many choices each, and answer them as one.

    Raises the GatewayError of a request that fails before its first text, or, if not streamed, at any time.
    """
    options = gateway.services.options
    tasks: list[GenerationTask] = []

    def client_gone(why: str = "client") -> None:
        for task in tasks:
            gateway.requests.client_left(task, why)

    permit = await permit_request(gateway, request, prepared)
    watch = ClientWatch(request.receive, client_gone)
    try:
        tasks.extend(gateway.requests.start(part, streamed=stream, permit=permit) for part in prepared)
        reader = DeliverySequence([task.delivery for task in tasks], prepared[0].generation.choices)
        if not stream:
            response = await _whole(reader, writer, len(prepared) * prepared[0].generation.choices, tasks)
            watch.stop()
            return response
        first = await _first_items(reader, options.keep_alive)
    except BaseException:
        client_gone("handler")
        watch.stop()
        if permit is not None:
            for part in prepared[len(tasks) :]:
                await permit.ended(part.request_id, 0)
        raise
    return EventStream(
        reader,
        first,
        writer,
        watch=watch,
        on_gone=client_gone,
        keep_alive=options.keep_alive,
        client_timeout=options.client_timeout,
        headers=_headers(tasks, first),
    )


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
    known = next((item for item in items if isinstance(item, Started | Finished)), None)
    if known is not None:
        headers[CACHE_STATUS] = cache_status(prepared, known.usage, known.counts)
    elif prepared.leases is not None and (prepared.leases.hit is None or prepared.leases.hit.billed):
        headers[CACHE_STATUS] = cache_status(prepared)
    return headers


async def _whole(
    reader: DeliveryReader, writer: ResponseWriter, choices: int, tasks: Sequence[GenerationTask]
) -> ASGIApp:
    """The response after everything has arrived. Raises the failure."""
    deltas = [ChoiceDelta(choice, "") for choice in range(choices)]
    while True:
        item = await reader.next()
        if isinstance(item, Finished):
            body = writer.whole(merge_deltas(deltas), item)
            return ASGIResponse(body=body, media_type=MediaType.JSON, headers=_headers(tasks, [item]))
        if isinstance(item, Failed):
            raise item.failure
        if isinstance(item, ReaderGone):
            return ASGIResponse(body=b"", status_code=_NOBODY_READS)
        if isinstance(item, DeliveryChunk):
            deltas += item.deltas
