"""What the endpoints that generate have in common: run what was prepared, answer whole or as it comes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from litestar import MediaType, Request
from litestar.response.base import ASGIResponse
from litestar.types import ASGIApp

from gateway.admission.admission import PreparedRequest
from gateway.generation.delivery import (
    ChoiceDelta,
    DeliveryReader,
    DeliverySequence,
    Failed,
    Finished,
    ReaderGone,
    merge_deltas,
)
from gateway.generation.generation_task import GenerationTask
from gateway.http.sse import ClientWatch, EventStream, EventWriter
from gateway.services import Gateway

SHORTENED = "x-turnpike-max-tokens"
_GONE = 503
"""The status of an answer that nobody will read."""


class ResponseWriter(EventWriter, Protocol):
    """A dialect's answer as bytes, in events or whole."""

    def whole(self, parts: Sequence[ChoiceDelta], end: Finished) -> bytes:
        """The answer of one part for each choice, in their order."""
        ...


async def respond(
    gateway: Gateway,
    request: Request[Any, Any, Any],
    prepared: Sequence[PreparedRequest],
    writer: ResponseWriter,
    *,
    stream: bool,
) -> ASGIApp:
    """Run requests of equally many choices each and answer them as one. Raises what is wrong before the first text."""
    options = gateway.services.options
    owners: list[GenerationTask] = []

    def gone(why: str = "client") -> None:
        for owner in owners:
            gateway.requests.client_left(owner, why)

    watch = ClientWatch(request.receive, gone)
    try:
        owners.extend(gateway.requests.start(each, streamed=stream) for each in prepared)
        source = DeliverySequence([owner.delivery for owner in owners], prepared[0].generation.choices)
        if not stream:
            whole = await _whole(source, writer, len(prepared) * prepared[0].generation.choices, owners)
            watch.stop()
            return whole
        first = await source.next(options.keep_alive)
        if isinstance(first, Failed):
            raise first.failure
    except BaseException:
        gone("handler")
        watch.stop()
        raise
    return EventStream(
        source,
        first,
        writer,
        watch=watch,
        gone=gone,
        keep_alive=options.keep_alive,
        patience=options.patience,
        headers=_shortened(owners),
    )


def _shortened(owners: Sequence[GenerationTask]) -> dict[str, str]:
    """The header that says to how many output tokens the money reaches, if that is fewer than there was room for."""
    limits = [owner.affordable_max_tokens for owner in owners if owner.affordable_max_tokens is not None]
    return {SHORTENED: str(min(limits))} if limits else {}


async def _whole(
    source: DeliveryReader, writer: ResponseWriter, choices: int, owners: Sequence[GenerationTask]
) -> ASGIApp:
    """The answer when all of it is there. Raises its failure."""
    parts = [ChoiceDelta(choice, "") for choice in range(choices)]
    while True:
        item = await source.next()
        if isinstance(item, Finished):
            body = writer.whole(merge_deltas(parts), item)
            return ASGIResponse(body=body, media_type=MediaType.JSON, headers=_shortened(owners))
        if isinstance(item, Failed):
            raise item.failure
        if isinstance(item, ReaderGone):
            return ASGIResponse(body=b"", status_code=_GONE)
        if item is not None:
            parts += item.parts
