"""POST /v1/estimate: what a request would cost, in the body of the request itself. The format of the answer is ours."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any

import msgspec
from litestar import Request, Response, post
from litestar.handlers import HTTPRouteHandler
from msgspec import UNSET, Meta, Raw, Struct, UnsetType

from billing.money import format_pico
from gateway.admission.estimates import estimate
from gateway.admission.prepared_request import Payer
from gateway.admission.truncation import fitted
from gateway.dialects.anthropic import messages_request
from gateway.dialects.anthropic.conversation_turns import ReadThinking
from gateway.dialects.openai import chat_request
from gateway.dialects.openai.chat_request import ChatRequest, UserMessage
from gateway.dialects.usage_reports import expiry_text
from gateway.endpoints.generation_description import VERSION
from gateway.endpoints.messages import api_version, thinking_reader
from gateway.endpoints.rate_limits import count_request
from gateway.endpoints.request_body import read_call
from gateway.endpoints.responses_description import UNKNOWN_EARLIER
from gateway.endpoints.responses_reading import ReadBody, completed, read_body
from gateway.generation_request import GenerationRequest
from gateway.http.authentication import project_payer
from gateway.http.cache_control import HEADER as CACHE_CONTROL
from gateway.http.cache_control import apply_cache_control, parse_cache_control
from gateway.http.operations import describes
from gateway.http.policies import demands
from gateway.http.responses import dialect_of, json_response
from gateway.request_context import request_context
from gateway.services import Gateway


class LaneEstimate(Struct, frozen=True):
    """The most that the request can cost in this lane, as a decimal."""

    max_cost: Annotated[str, Meta(examples=["0.000123000000"])]


class InputEstimate(Struct, frozen=True, kw_only=True):
    """The prompt's tokens as they would be billed now: read from and written to the cache by class of lease, and the
    others, of which some may be read by chance, at a lower price."""

    tokens: int
    uncached: int
    read: dict[str, int]
    write: dict[str, int]
    cache_expires_at: str | None = None


class EstimateObject(Struct, frozen=True, kw_only=True):
    """`max_output_tokens`: of each choice, by the request's own limit or the room in the context. `lanes`: those that
    have a price, and that the key may use."""

    object: str = "estimate"
    model: str
    input: InputEstimate
    max_output_tokens: int
    choices: int
    currency: str
    lanes: dict[str, LaneEstimate]


ESTIMATE: dict[str, Any] = describes(
    EstimateObject(
        model="tiny",
        input=InputEstimate(tokens=1024, uncached=24, read={"1h": 1000}, write={}),
        max_output_tokens=256,
        choices=1,
        currency="USD",
        lanes={"standard": LaneEstimate("0.000512000000"), "batch": LaneEstimate("0.000256000000")},
    ),
    body=ChatRequest(model="tiny", messages=[UserMessage("What is a token?")], max_tokens=256),
    headers=[VERSION],
    errors={"unsupported_parameter": 400, "context_length_exceeded": 400, "model_not_found": 404} | UNKNOWN_EARLIER,
)


def estimate_route(gateway: Gateway) -> HTTPRouteHandler:
    """The route, for one worker."""

    @post("/v1/estimate", status_code=200, opt=demands("inference", "project_key") | ESTIMATE)
    async def create_estimate(request: Request[Any, Any, Any]) -> Response[bytes]:
        """What a body of /v1/chat/completions, of /v1/responses (without `messages`), or with Anthropic's header of
        /v1/messages, would cost if it were sent now: the prompt's tokens by class, exactly, and the upper bound of the
        cost in each lane. Nothing is promised or billed; it counts as a request of the rate limits."""
        return await answer_estimate(gateway, request, project_payer(request.scope))

    return create_estimate


async def answer_estimate(gateway: Gateway, request: Request[Any, Any, Any], payer: Payer) -> Response[bytes]:
    """What the request would cost this payer. Raises what would keep it from being answered."""
    context = request_context(request.scope)
    await count_request(gateway, request, payer)
    control = parse_cache_control(request.headers.getall(CACHE_CONTROL, ()))
    with gateway.bodies.share(payer.tenant_id) as share:
        parse = _parser(gateway, request, payer)
        read: GenerationRequest | ReadBody = await read_call(gateway, request, payer, parse, share)
        truncated = False
        if isinstance(read, tuple):
            asked, call, _ = await completed(gateway, payer, share, *read)
            read, truncated = call.generation, asked.truncation == "auto"
        generation = apply_cache_control(control, read)
        model = gateway.services.models.get(generation.model)
        context.model = model.name
        if truncated:
            generation = await fitted(gateway.admission, payer, model, generation, share.grow_to)
        prepared = await gateway.admission.prepare(context.id, payer, model, generation, share.grow_to)
    found = await gateway.questions.wait(estimate(prepared, gateway.leases))
    expires = found.expires_at
    return json_response(
        EstimateObject(
            model=model.name,
            input=InputEstimate(
                tokens=len(prepared.prompt.tokens),
                uncached=found.uncached,
                read=dict(found.read),
                write=dict(found.write),
                cache_expires_at=None if expires is None else expiry_text(expires),
            ),
            max_output_tokens=prepared.sampling.max_tokens,
            choices=generation.choices,
            currency=prepared.price.currency,
            lanes={lane: LaneEstimate(format_pico(bound)) for lane, bound in found.bounds.items()},
        )
    )


def _parser(gateway: Gateway, request: Request[Any, Any, Any], payer: Payer) -> Any:
    if dialect_of(request.scope) == "anthropic":
        return partial(_of_messages, version=api_version(request), read_thinking=thinking_reader(gateway, payer))
    return _of_openai


class _Which(Struct, frozen=True):
    """The fields by which OpenAI's two bodies differ."""

    messages: Raw | UnsetType = UNSET
    input: Raw | UnsetType = UNSET
    previous_response_id: Raw | UnsetType = UNSET


_which = msgspec.json.Decoder(_Which)


def _of_openai(body: bytes) -> GenerationRequest | ReadBody:
    try:
        which = _which.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        which = _Which()  # whose parser says what is wrong with it
    if which.messages is UNSET and (which.input is not UNSET or which.previous_response_id is not UNSET):
        return read_body(body)
    return chat_request.parse(body).generation


def _of_messages(body: bytes, version: str, read_thinking: ReadThinking) -> GenerationRequest:
    return messages_request.parse(body, version, read_thinking=read_thinking).generation
