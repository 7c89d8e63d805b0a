"""POST /v1/messages and POST /v1/messages/count_tokens, in Anthropic's dialect."""

from __future__ import annotations

from functools import partial
from typing import Any

from litestar import Request, Response, post
from litestar.handlers import HTTPRouteHandler
from litestar.types import ASGIApp

from gateway.admission.cache_plans import cache_plan
from gateway.admission.prepared_request import Payer
from gateway.dialects.anthropic import messages_request
from gateway.dialects.anthropic.conversation_turns import ReadThinking
from gateway.dialects.anthropic.messages_response import MessageIdentity, MessageWriter, TokenCount
from gateway.endpoints.generation_description import COUNT_TOKENS, MESSAGES
from gateway.endpoints.generation_response import respond
from gateway.endpoints.idempotent import idempotent
from gateway.endpoints.rate_limits import count_request, counting_refusals
from gateway.endpoints.request_body import read_call
from gateway.errors import InvalidRequest
from gateway.http.authentication import project_payer
from gateway.http.cache_control import HEADER as CACHE_CONTROL
from gateway.http.cache_control import apply_cache_control, parse_cache_control
from gateway.http.policies import demands
from gateway.http.responses import VERSION_HEADER, json_response
from gateway.request_context import request_context
from gateway.services import Gateway


def message_routes(gateway: Gateway) -> list[HTTPRouteHandler]:
    """The routes, for one worker."""

    @post("/v1/messages", opt=demands("inference", "project_key", dialect="anthropic") | MESSAGES)
    @idempotent(gateway)
    async def create_message(request: Request[Any, Any, Any]) -> ASGIApp:
        """Answer a conversation, whole or streamed."""
        context, payer = request_context(request.scope), project_payer(request.scope)
        async with counting_refusals(gateway, request, payer):
            gateway.requests.check()
            control = parse_cache_control(request.headers.getall(CACHE_CONTROL, ()))
            parse = partial(
                messages_request.parse, version=api_version(request), read_thinking=thinking_reader(gateway, payer)
            )
            with gateway.bodies.share(payer.tenant_id) as share:
                call = await read_call(gateway, request, payer, parse, share)
                generation = context.as_it_is_run(apply_cache_control(control, call.generation))
                model = gateway.services.models.get(generation.model)
                context.model = model.name
                prepared = await gateway.admission.prepare(context.id, payer, model, generation, share.grow_to)
            fills_context = prepared.sampling.max_tokens < (generation.max_tokens or 0)
            identity = MessageIdentity.of(
                context.id, prepared.model.full_name, context.name, lane=generation.lane, fills_context=fills_context
            )
            seal = gateway.services.thinking_seal
            sign = partial(seal.sign if call.shows_thinking else seal.seal, payer.project_id)
            writer = MessageWriter(identity, sign, shows_thinking=call.shows_thinking)
            return await respond(gateway, request, [prepared], writer, stream=call.stream)

    @post(
        "/v1/messages/count_tokens",
        opt=demands("inference", "project_key", dialect="anthropic") | COUNT_TOKENS,
        status_code=200,
    )
    async def count_tokens(request: Request[Any, Any, Any]) -> Response[bytes]:
        """The tokens of a prompt, as a request with it would be billed. It costs nothing, and counts as a
        request of the rate limits."""
        context, payer = request_context(request.scope), project_payer(request.scope)
        await count_request(gateway, request, payer)
        parse = partial(
            messages_request.parse_count, version=api_version(request), read_thinking=thinking_reader(gateway, payer)
        )
        with gateway.bodies.share(payer.tenant_id) as share:
            generation = await read_call(gateway, request, payer, parse, share)
            model = gateway.services.models.get(generation.model)
            context.model = model.name
            payer.check(model.name)
            model = await gateway.adapted_models.adapted_in_time(
                payer.tenant_id, payer.project_id, model, generation.model, gateway.questions
            )
            prompt = await gateway.admission.prompt(payer.tenant_id, model, generation, share.grow_to)
        cache_plan(generation, prompt, model)  # a marker that a request would be refused for
        return json_response(TokenCount(len(prompt.tokens)))

    return [create_message, count_tokens]


def thinking_reader(gateway: Gateway, payer: Payer) -> ReadThinking:
    """Reads the thinking that a project sends back."""
    return partial(gateway.services.thinking_seal.read, payer.project_id)


def api_version(request: Request[Any, Any, Any]) -> str:
    """The version that the client speaks. Raises InvalidRequest if it does not say one, or one that is not known."""
    version = request.headers.get(VERSION_HEADER)
    if version is None:
        problem = "the header is missing"
    elif version not in messages_request.VERSIONS:
        problem = f"{version[:40]!r} is not a known version"
    else:
        return version
    known = " or ".join(messages_request.VERSIONS)
    raise InvalidRequest(f"{VERSION_HEADER}: {problem}; send {known}.", path=VERSION_HEADER, code="invalid_value")
