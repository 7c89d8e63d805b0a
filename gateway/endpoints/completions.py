"""POST /v1/completions. Each prompt is a request with a hold and usage of its own; one response answers all."""

from __future__ import annotations

import time
from typing import Any

from litestar import Request, post
from litestar.handlers import HTTPRouteHandler
from litestar.types import ASGIApp
from uuid_utils.compat import uuid7

from gateway.admission.request_size import request_memory
from gateway.dialects.openai import completions_request
from gateway.dialects.openai.common_response import ResponseIdentity
from gateway.dialects.openai.completions_response import TextWriter
from gateway.endpoints.generation_description import COMPLETIONS
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


def completions(gateway: Gateway) -> HTTPRouteHandler:
    """The route, for one worker."""

    @post("/v1/completions", opt=demands("inference", "project_key", dialect="openai") | COMPLETIONS)
    @idempotent(gateway)
    async def create_completion(request: Request[Any, Any, Any]) -> ASGIApp:
        """Continue texts or token ids, whole or streamed."""
        context, payer = request_context(request.scope), project_payer(request.scope)
        async with counting_refusals(gateway, request, payer):
            gateway.requests.check()
            control = parse_cache_control(request.headers.getall(CACHE_CONTROL, ()))
            with gateway.bodies.share(payer.tenant_id) as share:
                call = await read_call(gateway, request, payer, completions_request.parse, share)
                generations = [
                    context.as_it_is_run(apply_cache_control(control, generation)) for generation in call.generations
                ]
                first = generations[0]
                model = gateway.services.models.get(first.model)
                context.model = model.name
                share.grow_to(sum(map(request_memory, generations)))
                prepared = [
                    await gateway.admission.prepare(uuid7() if index else context.id, payer, model, generation)
                    for index, generation in enumerate(generations)
                ]
            created = int(time.time())
            identity = ResponseIdentity.of(
                "cmpl", context.id, prepared[0].model, context.name, created, lane=first.lane
            )
            writer = TextWriter(identity, model.tokenizer, logprobs=first.logprobs, include_usage=call.include_usage)
            return await respond(gateway, request, prepared, writer, stream=call.stream)

    return create_completion
