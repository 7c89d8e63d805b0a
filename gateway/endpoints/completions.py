"""POST /v1/completions. Each prompt is a request of its own, with its own hold and usage; the answer is one."""

from __future__ import annotations

import time
from typing import Any

from litestar import Request, post
from litestar.handlers import HTTPRouteHandler
from litestar.types import ASGIApp
from uuid_utils.compat import uuid7

from gateway.admission.admission import Payer
from gateway.dialects.openai import completions_request
from gateway.dialects.openai.chat_response import Header
from gateway.dialects.openai.completions_response import TextAnswer
from gateway.endpoints.generation_response import respond
from gateway.endpoints.request_body import read_call
from gateway.http.authentication import project_principal
from gateway.request_context import of
from gateway.services import Gateway


def completions(gateway: Gateway) -> HTTPRouteHandler:
    """The route, for one worker."""

    @post("/v1/completions")
    async def create_completion(request: Request[Any, Any, Any]) -> ASGIApp:
        """Go on from texts or token ids, whole or streamed."""
        gateway.requests.check()
        about, principal = of(request.scope), project_principal(request.scope)
        call = await read_call(gateway, request, principal, completions_request.parse)
        first = call.generations[0]
        model = gateway.services.models.get(first.model)
        about.model = model.name
        payer = Payer.of(principal)
        prepared = [
            await gateway.admission.prepare(uuid7() if index else about.id, payer, generation)
            for index, generation in enumerate(call.generations)
        ]
        header = Header.of("cmpl", about.id, model, about.name, int(time.time()), lane=first.lane)
        writer = TextAnswer(header, model.tokenizer, logprobs=first.logprobs, include_usage=call.include_usage)
        return await respond(gateway, request, prepared, writer, stream=call.stream)

    return create_completion
