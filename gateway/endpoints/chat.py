"""POST /v1/chat/completions."""

from __future__ import annotations

import time
from typing import Any

from litestar import Request, post
from litestar.handlers import HTTPRouteHandler
from litestar.types import ASGIApp

from gateway.admission.prepared_request import Payer
from gateway.dialects.openai import chat_request
from gateway.dialects.openai.chat_response import ChatWriter
from gateway.dialects.openai.common_response import ResponseIdentity
from gateway.endpoints.generation_description import CHAT
from gateway.endpoints.generation_response import respond
from gateway.endpoints.idempotent import idempotent
from gateway.endpoints.rate_limits import counting_refusals
from gateway.endpoints.request_body import read_call
from gateway.http.authentication import project_payer
from gateway.http.cache_control import HEADER as CACHE_CONTROL
from gateway.http.cache_control import apply_cache_control, parse_cache_control
from gateway.http.policies import demands
from gateway.request_context import request_context
from gateway.services import Gateway


def chat_completions(gateway: Gateway) -> HTTPRouteHandler:
    """The route, for one worker."""

    @post("/v1/chat/completions", opt=demands("inference", "project_key", dialect="openai") | CHAT)
    @idempotent(gateway)
    async def create_chat_completion(request: Request[Any, Any, Any]) -> ASGIApp:
        """Answer a conversation, whole or streamed."""
        return await answer_chat(gateway, request, project_payer(request.scope))

    return create_chat_completion


async def answer_chat(gateway: Gateway, request: Request[Any, Any, Any], payer: Payer) -> ASGIApp:
    """The answer to a request for a chat completion, which this payer pays for. Raises what keeps it from being
    answered."""
    context = request_context(request.scope)
    async with counting_refusals(gateway, request, payer):
        gateway.requests.check()
        control = parse_cache_control(request.headers.getall(CACHE_CONTROL, ()))
        with gateway.bodies.share(payer.tenant_id) as share:
            call = await read_call(gateway, request, payer, chat_request.parse, share)
            generation = context.as_it_is_run(apply_cache_control(control, call.generation))
            model = gateway.services.models.get(generation.model)
            context.model = model.name
            prepared = await gateway.admission.prepare(context.id, payer, model, generation, share.grow_to)
        lane, created = generation.lane, int(time.time())
        identity = ResponseIdentity.of("chatcmpl", context.id, prepared.model, context.name, created, lane=lane)
        logprobs = generation.logprobs is not None
        writer = ChatWriter(identity, model.tokenizer, logprobs=logprobs, include_usage=call.include_usage)
        return await respond(gateway, request, [prepared], writer, stream=call.stream)
