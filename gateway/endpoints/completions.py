"""POST /v1/completions. Each prompt is a request of its own, with its own hold and usage; the answer is one."""

from __future__ import annotations

import time
from typing import Any

from litestar import Request, post
from litestar.handlers import HTTPRouteHandler
from litestar.types import ASGIApp
from uuid_utils.compat import uuid7

from gateway.admission.admission import Payer
from gateway.authentication import project_principal
from gateway.dialects import openai_completions
from gateway.dialects.openai_answer import Header
from gateway.dialects.openai_completions_answer import TextAnswer
from gateway.endpoints.bodies import read_call
from gateway.endpoints.generating import answer
from gateway.request_scope import of
from gateway.services import Gateway


def completions(gateway: Gateway) -> HTTPRouteHandler:
    """The route, for one worker."""

    @post("/v1/completions")
    async def create_completion(request: Request[Any, Any, Any]) -> ASGIApp:
        """Go on from texts or token ids, whole or streamed."""
        gateway.requests.check()
        about, principal = of(request.scope), project_principal(request.scope)
        call = await read_call(gateway, request, principal, openai_completions.parse)
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
        return await answer(gateway, request, prepared, writer, stream=call.stream)

    return create_completion
