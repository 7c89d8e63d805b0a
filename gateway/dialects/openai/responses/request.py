"""POST /v1/responses: OpenAI's JSON to a `GenerationRequest`.

Source: https://platform.openai.com/docs/api-reference/responses/create. Unknown fields are ignored. Fields that are
known, would change the answer and are not supported are refused (`unsupported_fields`).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Annotated, Literal, TypeAlias

import msgspec
from msgspec import UNSET, Meta, Raw, Struct, UnsetType

from gateway.dialects.json_objects import JsonObjects
from gateway.dialects.json_paths import decode, json_bytes
from gateway.dialects.large_bodies import check_large_responses
from gateway.dialects.max_cost import MaxCost, parse_max_cost
from gateway.dialects.openai.cache_fields import ResponseId, parse_directives
from gateway.dialects.openai.common_request import (
    TAG,
    Integer64,
    Label,
    SamplingFields,
    TopLogprobs,
    lane_of,
    parse_sampling,
    prewarming,
    reasoning_of,
)
from gateway.dialects.openai.responses.input_items import InputItem, ResponseTool, ResponseToolChoice
from gateway.dialects.openai.responses.tools import ToolNames, read_response_choice, read_response_tools
from gateway.dialects.openai.responses.turns import TurnReader, Unseal
from gateway.dialects.openai.structured_outputs import Schema, object_grammar, schema_grammar
from gateway.dialects.openai.unsupported_fields import Refused, reject_unsupported
from gateway.dialects.speculation import Speculation, may_speculate
from gateway.errors import InvalidField
from gateway.generation_request import Effort, GenerationRequest, Grammar

LOGPROBS, ENCRYPTED = "message.output_text.logprobs", "reasoning.encrypted_content"
"""What `include` may name that is not there without it."""
EARLIER = "$.previous_response_id"
"""The path of items that come from earlier responses."""
_MOST_INCLUDED = 32
_REFUSED = ("conversation", "prompt", "context_management", "moderation", "max_tool_calls", "structured_outputs")
_CODEX = "x-codex-"
_LONGEST_METADATA = 64 * 1024
_KIND = re.compile(r"\.type$")
_VALUE = re.compile(r"'([^']{0,60})'")


ClientMetadata: TypeAlias = Annotated[
    Raw,
    Meta(
        description="What Codex says of itself, by which its hosted tools are left out.",
        extra_json_schema={"type": ["object", "null"], "additionalProperties": True},
    ),
]


class PlainFormat(Struct, frozen=True, tag="text", tag_field="type"):
    pass


class ObjectFormat(Struct, frozen=True, tag="json_object", tag_field="type"):
    pass


class SchemaFormat(Struct, frozen=True, tag="json_schema", tag_field="type", kw_only=True):
    """`strict` has no effect: the output always fulfils the schema."""

    name: Annotated[str, Meta(min_length=1, max_length=64)]
    schema: Schema | UnsetType = UNSET
    description: str | UnsetType | None = UNSET
    strict: bool | UnsetType | None = UNSET


class TextOptions(Struct, frozen=True):
    """`verbosity` is passed over."""

    format: PlainFormat | ObjectFormat | SchemaFormat | None = None
    verbosity: Literal["low", "medium", "high"] | None = None


class Reasoning(Struct, frozen=True):
    """`summary` is passed over: the reasoning itself is in the answer."""

    effort: Effort | None = None
    summary: Literal["auto", "concise", "detailed"] | None = None


class StreamOptions(Struct, frozen=True):
    """`include_obfuscation` is passed over: there is no padding."""

    include_obfuscation: bool | None = None


class BackgroundOptions(Struct, frozen=True):
    """How long a response in the background may take; but for `soonest` it runs in the batch lane."""

    completion_window: Literal["soonest", "2h", "8h"] | None = None


class ResponsesRequest(SamplingFields, frozen=True, kw_only=True):
    """The fields that are read or refused. `max_cost` and `speculation` are ours."""

    model: str
    input: Annotated[str | list[InputItem] | None, Meta(examples=["What is the capital of France?"])] = None
    instructions: str | None = None
    tools: list[ResponseTool] | None = None
    tool_choice: ResponseToolChoice | None = None
    parallel_tool_calls: bool | None = None
    max_output_tokens: Integer64 | None = None
    top_logprobs: TopLogprobs | None = None
    text: TextOptions | None = None
    reasoning: Reasoning | None = None
    store: bool | None = None
    previous_response_id: ResponseId | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    background: bool | None = None
    background_options: BackgroundOptions | None = None
    include: Annotated[list[Label], Meta(max_length=_MOST_INCLUDED)] | None = None
    metadata: Annotated[dict[str, Label], Meta(max_length=16)] | None = None
    service_tier: str | None = None
    truncation: Literal["auto", "disabled"] | None = None
    safety_identifier: Annotated[str, Meta(max_length=512)] | None = None
    user: Annotated[str, Meta(max_length=512)] | None = None
    max_cost: MaxCost | None = None
    speculation: Speculation | None = None
    client_metadata: ClientMetadata | UnsetType = UNSET

    conversation: Refused = UNSET
    prompt: Refused = UNSET
    context_management: Refused = UNSET
    moderation: Refused = UNSET
    max_tool_calls: Refused = UNSET
    structured_outputs: Refused = UNSET

    @property
    def items(self) -> list[InputItem]:
        """The input as items."""
        if isinstance(self.input, str):
            return [InputItem(role="user", content=self.input)]
        return self.input or []

    @property
    def logprobs(self) -> int | None:
        """How many likeliest tokens the client wants beside each token; None for no log probabilities at all."""
        wanted = self.top_logprobs is not None or LOGPROBS in (self.include or ())
        return (self.top_logprobs or 0) if wanted else None

    @property
    def encrypted(self) -> bool:
        """Whether the client wants reasoning sealed, to send it back."""
        return ENCRYPTED in (self.include or ())


class ResponsesCall(Struct, frozen=True):
    """What a request asks for: what to generate, and the names of its tools."""

    generation: GenerationRequest
    names: ToolNames


_decoder = msgspec.json.Decoder(ResponsesRequest)
_metadata_decoder = msgspec.json.Decoder(dict[str, Raw] | None)


def decode_request(body: bytes) -> ResponsesRequest:
    """The body as it stands. Raises InvalidRequest with the JSON path of what is wrong."""
    check_large_responses(body)
    try:
        request = decode(_decoder, body)
    except InvalidField as error:
        raise _by_name(error) from error
    reject_unsupported(request, _REFUSED)
    if request.stream_options is not None and not request.stream:
        raise InvalidField("$.stream_options", "it needs $.stream to be true")
    if request.background_options is not None and not request.background:
        raise InvalidField("$.background_options", "it needs $.background to be true")
    if request.background and request.store is False:
        raise InvalidField("$.background", "it needs $.store, since its answer is fetched later")
    return request


def _by_name(error: InvalidField) -> InvalidField:
    """The error for a kind of item, part or tool that is not known: it names it."""
    value = _VALUE.search(error.message)
    if error.path is None or value is None or not _KIND.search(error.path):
        return error
    return InvalidField(error.path, f"{value[1]!r} is not supported", code="unsupported_parameter")


def generation_of(
    request: ResponsesRequest, earlier: Sequence[InputItem] = (), unseal: Unseal = lambda _: None, *, body: bytes = b""
) -> ResponsesCall:
    """What the request asks for, after the items of earlier responses. Raises InvalidRequest naming the path."""
    objects = JsonObjects()
    tools, names, marked = read_response_tools(request.tools or (), objects, hosted_optional=_is_codex(request))
    reader = TurnReader(objects, unseal)
    if request.instructions:
        reader.text("system", request.instructions, "$.instructions")
    for index, item in enumerate(earlier):
        reader.read(item, f"{EARLIER}[{index}]")
    if isinstance(request.input, str):
        reader.text("user", request.input, "$.input")
    else:
        for index, item in enumerate(request.input or ()):
            reader.read(item, f"$.input[{index}]")
    lane = lane_of(request.service_tier)
    options = request.background_options
    if options is not None and options.completion_window not in (None, "soonest"):
        lane = "batch"
    generation = GenerationRequest(
        surface="openai",
        model=request.model,
        turns=reader.finish(),
        turns_path="$.input",
        tools=tools,
        tool_choice=read_response_choice(request.tool_choice, tools, parallel=request.parallel_tool_calls),
        reasoning=reasoning_of(None if request.reasoning is None else request.reasoning.effort),
        max_tokens=request.max_output_tokens,
        max_tokens_path="$.max_output_tokens",
        fill_context=True,
        lane=lane,
        max_cost_pico=parse_max_cost(request.max_cost),
        speculation=may_speculate(request.speculation),
        tag=(request.metadata or {}).get(TAG, ""),
        **parse_sampling(request, _grammar(request.text)),
        logprobs=request.logprobs,
        cache=parse_directives(request, [*marked, *reader.marked], request.metadata),
    )
    return ResponsesCall(prewarming(generation) if generation.cache.prewarm else generation, names)


def _is_codex(request: ResponsesRequest) -> bool:
    """Whether Codex sent the request, in any of its front ends. It asks for hosted tools of every server, and does its
    work without them."""
    metadata = json_bytes(request.client_metadata)
    if not metadata or len(metadata) > _LONGEST_METADATA:
        return False
    try:
        return any(key.startswith(_CODEX) for key in _metadata_decoder.decode(metadata) or ())
    except msgspec.ValidationError:
        return False


def _grammar(text: TextOptions | None) -> Grammar | None:
    match None if text is None else text.format:
        case ObjectFormat():
            return object_grammar("$.text.format")
        case SchemaFormat(schema=schema):
            return schema_grammar(schema, "$.text.format.schema")
    return None
