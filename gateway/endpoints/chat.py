"""POST /v1/chat/completions."""

from __future__ import annotations

import asyncio
import time
from functools import partial
from typing import Any

from litestar import MediaType, Request, post
from litestar.handlers import HTTPRouteHandler
from litestar.response.base import ASGIResponse
from litestar.types import ASGIApp

from gateway.admission.admission import Payer
from gateway.authentication import project_principal
from gateway.delivery import Delivery, Failed, Finished, Left
from gateway.dialects import openai_answer, openai_chat
from gateway.dialects.openai_answer import ChatEvents, Header
from gateway.failures import BodyTooSlow
from gateway.request_scope import of
from gateway.services import Gateway
from gateway.sse import ClientWatch, EventStream

_GONE = 503
"""The status of an answer that nobody will read."""


def chat_completions(gateway: Gateway) -> HTTPRouteHandler:
    """The route, for one worker."""
    options = gateway.services.options

    @post("/v1/chat/completions")
    async def create_chat_completion(request: Request[Any, Any, Any]) -> ASGIApp:
        """Generate an answer, whole or streamed."""
        gateway.requests.check()
        about, principal = of(request.scope), project_principal(request.scope)
        assert principal.project_id is not None
        call = openai_chat.parse(await _body(request, options.patience))
        model = gateway.services.models.get(call.generation.model)
        about.model = model.name
        payer = Payer(principal.tenant_id, principal.project_id, principal.key_id)
        prepared = await gateway.admission.prepare(about.id, payer, call.generation)
        fingerprint = f"fp_{model.text_digest[:12]}"
        header = Header(f"chatcmpl-{about.id.hex}", int(time.time()), model.name, about.name, fingerprint)
        owner = gateway.requests.start(prepared, streamed=call.stream)
        gone = partial(gateway.requests.client_left, owner)
        watch = ClientWatch(request.receive, gone)
        try:
            if not call.stream:
                answer = await _whole(owner.delivery, header)
                watch.stop()
                return answer
            first = await owner.delivery.next(options.keep_alive)
            if isinstance(first, Failed):
                raise first.failure
        except BaseException:
            gone("handler")
            watch.stop()
            raise
        return EventStream(
            owner.delivery,
            first,
            ChatEvents(header, include_usage=call.include_usage),
            watch=watch,
            gone=gone,
            keep_alive=options.keep_alive,
            patience=options.patience,
        )

    return create_chat_completion


async def _body(request: Request[Any, Any, Any], patience: float) -> bytes:
    """The body. Raises BodyTooSlow for one that does not end within `patience` seconds."""
    try:
        async with asyncio.timeout(patience):
            return await request.body()
    except TimeoutError as error:
        raise BodyTooSlow(f"The request's body did not come within {patience:g} s.") from error


async def _whole(delivery: Delivery, header: Header) -> ASGIApp:
    """The answer when all of it is there. Raises its failure."""
    texts: list[str] = []
    while True:
        item = await delivery.next()
        if isinstance(item, Finished):
            body = openai_answer.completion(header, "".join(texts), item)
            return ASGIResponse(body=body, media_type=MediaType.JSON)
        if isinstance(item, Failed):
            raise item.failure
        if isinstance(item, Left):
            return ASGIResponse(body=b"", status_code=_GONE)
        if item is not None:
            texts.append(item.text)
