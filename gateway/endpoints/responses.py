"""POST /v1/responses and POST /v1/responses/input_tokens: OpenAI's Responses API."""

from __future__ import annotations

import asyncio
import time
from typing import Any

from litestar import MediaType, Request, Response, post
from litestar.handlers import HTTPRouteHandler
from litestar.response.base import ASGIResponse
from litestar.types import ASGIApp

from gateway.admission.estimates import within_max_cost
from gateway.admission.prepared_request import Payer, PreparedRequest
from gateway.admission.truncation import fitted
from gateway.dialects.openai.common_request import SERVICE_TIER_OF
from gateway.dialects.openai.common_response import encoder
from gateway.dialects.openai.responses.request import ResponsesRequest
from gateway.dialects.openai.responses.response_object import TokenCount, begun
from gateway.dialects.openai.responses.tools import ToolNames
from gateway.dialects.openai.responses.writer import ResponsesWriter
from gateway.endpoints.generation_response import Keep, respond
from gateway.endpoints.idempotent import idempotent
from gateway.endpoints.rate_limits import ask_limits, count_request, counting_refusals
from gateway.endpoints.response_events import ResponseEvents
from gateway.endpoints.responses_description import INPUT_TOKENS, RESPONSES
from gateway.endpoints.responses_reading import read_responses
from gateway.generation.delivery import Finished
from gateway.http.authentication import project_payer
from gateway.http.cache_control import HEADER as CACHE_CONTROL
from gateway.http.cache_control import apply_cache_control, parse_cache_control
from gateway.http.policies import demands
from gateway.http.responses import json_response
from gateway.http.sse import ClientWatch
from gateway.kept_responses.keeper import PREFIX, Terms
from gateway.request_context import request_context
from gateway.services import Gateway
from response_store.sealing import ReasoningSeal


def response_routes(gateway: Gateway) -> list[HTTPRouteHandler]:
    """The routes, for one worker."""

    @post("/v1/responses", opt=demands("inference", "project_key", dialect="openai") | RESPONSES, status_code=200)
    @idempotent(gateway)
    async def create_response(request: Request[Any, Any, Any]) -> ASGIApp:
        """Answer a conversation of items, whole or streamed, or in the background."""
        context, payer = request_context(request.scope), project_payer(request.scope)
        async with counting_refusals(gateway, request, payer):
            gateway.requests.check()
            asked, names, seal, terms, prepared = await _prepared(gateway, request, payer)
            model, generation = prepared.model, prepared.generation
            response = begun(
                asked,
                id=f"{PREFIX}{context.id.hex}",
                created=int(time.time()),
                model=model.name,
                tier=SERVICE_TIER_OF[generation.lane],
                stored=terms is not None and terms.kind != "chain",
            )
            writer = ResponsesWriter(
                response,
                model.tokenizer,
                names,
                logprobs=generation.logprobs is not None,
                seal=seal.seal if seal is not None and asked.encrypted else None,
                prewarm=generation.cache.prewarm,
            )
            if asked.background:
                assert terms is not None, "terms were refused otherwise"
                return await _in_background(gateway, request, asked, prepared, writer, terms=terms)
            keep = None if terms is None or generation.cache.prewarm else _keeping(gateway, payer, asked, writer, terms)
            return await respond(gateway, request, [prepared], writer, stream=bool(asked.stream), keep=keep)

    @post(
        "/v1/responses/input_tokens",
        opt=demands("inference", "project_key", dialect="openai") | INPUT_TOKENS,
        status_code=200,
    )
    async def count_input_tokens(request: Request[Any, Any, Any]) -> Response[bytes]:
        """The tokens of a prompt, as a request with it would be billed. It costs nothing, and counts as a
        request of the rate limits."""
        context, payer = request_context(request.scope), project_payer(request.scope)
        await count_request(gateway, request, payer)
        with gateway.bodies.share(payer.tenant_id) as share:
            _, call, _ = await read_responses(gateway, request, payer, share)
            model = gateway.services.models.get(call.generation.model)
            context.model = model.name
            payer.check(model.name)
            model = await gateway.adapted_models.adapted_in_time(
                payer.tenant_id, payer.project_id, model, call.generation.model, gateway.questions
            )
            prompt = await gateway.admission.prompt(payer.tenant_id, model, call.generation, share.grow_to)
        return json_response(TokenCount(len(prompt.tokens)))

    return [create_response, count_input_tokens]


async def _prepared(
    gateway: Gateway, request: Request[Any, Any, Any], payer: Payer
) -> tuple[ResponsesRequest, ToolNames, ReasoningSeal | None, Terms | None, PreparedRequest]:
    """What is asked for, the names of its tools, what seals its reasoning, how it is kept, and the prepared request.
    The conversation as it was loaded, which may be much longer than what fits the context, is let go of."""
    context = request_context(request.scope)
    control = parse_cache_control(request.headers.getall(CACHE_CONTROL, ()))
    with gateway.bodies.share(payer.tenant_id) as share:
        asked, call, seal = await read_responses(gateway, request, payer, share)
        generation = context.as_it_is_run(apply_cache_control(control, call.generation))
        terms = await gateway.response_keeper.terms(payer, asked)
        model = gateway.services.models.get(generation.model)
        context.model = model.name
        if asked.truncation == "auto":
            payer.check(model.name, generation.lane)
            generation = await fitted(gateway.admission, payer, model, generation, share.grow_to)
        prepared = await gateway.admission.prepare(context.id, payer, model, generation, share.grow_to)
        return asked, call.names, seal, terms, prepared


def _keeping(gateway: Gateway, payer: Payer, asked: ResponsesRequest, writer: ResponsesWriter, terms: Terms) -> Keep:
    async def keep(end: Finished) -> None:
        writer.end(end)
        await gateway.response_keeper.save(payer, asked, writer.response, terms)

    return keep


async def _in_background(
    gateway: Gateway,
    request: Request[Any, Any, Any],
    asked: ResponsesRequest,
    prepared: PreparedRequest,
    writer: ResponsesWriter,
    *,
    terms: Terms,
) -> ASGIApp:
    """Begin it, and answer with what there is of it: at first that it is queued."""
    assert gateway.background_responses is not None, "there are terms"
    (prepared,) = within_max_cost([prepared])
    gone = asyncio.Event()
    watch = ClientWatch(request.scope, request.receive, gone.set)
    try:
        await gateway.requests.wait_for_replica(prepared, gone.is_set)
    finally:
        watch.stop()
    permit = await ask_limits(gateway, request, [prepared])
    if (refusal := await permit.refusal()) is not None:
        raise refusal
    queued = await gateway.background_responses.start(asked, prepared, writer, terms, permit)
    if asked.stream:
        return ResponseEvents(gateway, prepared.payer.tenant_id, prepared.payer.project_id, queued.id)
    return ASGIResponse(body=encoder.encode(queued), media_type=MediaType.JSON)
