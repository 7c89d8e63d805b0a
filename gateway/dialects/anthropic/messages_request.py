"""POST /v1/messages and /v1/messages/count_tokens: Anthropic's JSON to a `GenerationRequest`.

Source: https://docs.anthropic.com/en/api/messages. Both API versions are read alike: sampling fields, which version
2026-10-21 refuses, are accepted in both, since the models here use them. Unknown fields are ignored. Fields that are
known, would change the answer and are not supported are refused by name.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeAlias

import msgspec
from msgspec import UNSET, Meta, Raw, Struct, UnsetType
from msgspec.structs import replace

from gateway.dialects.anthropic.content_blocks import CacheControl, TextBlock
from gateway.dialects.anthropic.context_management import ContextManagement, check_context_edits
from gateway.dialects.anthropic.conversation_turns import Message, ReadThinking, read_messages, read_system, unsigned
from gateway.dialects.anthropic.tools import AnyChoice, NamedChoice, ToolChoice, ToolParam, read_choice, read_tools
from gateway.dialects.json_objects import JsonObjects
from gateway.dialects.json_paths import decode, json_bytes, json_object
from gateway.dialects.large_bodies import check_large_messages
from gateway.dialects.max_cost import MaxCost, parse_max_cost
from gateway.dialects.speculation import Speculation, may_speculate
from gateway.errors import InvalidField, InvalidRequest, UnsupportedThread
from gateway.generation_request import (
    CacheDirectives,
    CacheMarker,
    GenerationRequest,
    Grammar,
    ReasoningWish,
    partition_of,
    tag_of,
)
from protocol.requests import Lane

VERSIONS = ("2023-06-01", "2026-10-21")
"""The values of the header `anthropic-version` that are understood."""
_NEWEST = VERSIONS[-1]
_LANES: Mapping[str, Lane] = {
    "auto": "standard",
    "standard_only": "standard",
    "standard": "standard",
    "priority": "interactive",
    "batch": "batch",
}
"""`service_tier` -> lane. The last three, which ask for a lane by the name that answers have for it, are ours."""
_LEAST_BUDGET = 1024
_MOST_STOPS = 64
_FIELD_BYTES = 64 * 1024

Fraction: TypeAlias = Annotated[float, Meta(ge=0, le=1)]
StopSequence: TypeAlias = Annotated[str, Meta(min_length=1, max_length=256)]
StopSequences: TypeAlias = Annotated[
    Raw,
    Meta(
        description=f"Texts that end the answer; at most {_MOST_STOPS}, none of white space only.",
        extra_json_schema={
            "type": ["array", "null"],
            "items": {"type": "string", "minLength": 1, "maxLength": 256},
            "maxItems": _MOST_STOPS,
        },
    ),
]
_Refused: TypeAlias = (
    Annotated[
        Raw,
        Meta(
            description="Not supported: refused, unless it is empty.",
            extra_json_schema={"enum": [None, [], {}]},
        ),
    ]
    | UnsetType
)
_Display = Literal["summarized", "omitted"]


class EnabledThinking(Struct, frozen=True, tag="enabled", tag_field="type"):
    budget_tokens: Annotated[int, Meta(ge=_LEAST_BUDGET)]
    display: _Display | None = None


class AdaptiveThinking(Struct, frozen=True, tag="adaptive", tag_field="type"):
    display: _Display | None = None


class ThinkingBetweenTools(Struct, frozen=True, tag="between_tools", tag_field="type"):
    pass


class NoThinking(Struct, frozen=True, tag="disabled", tag_field="type"):
    pass


class SchemaFormat(Struct, frozen=True, tag="json_schema", tag_field="type"):
    schema: Annotated[Raw, json_object("A JSON schema, which the answer fulfils.")]


class OutputConfig(Struct, frozen=True):
    """`effort`: how much the model reasons before it answers."""

    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = None
    format: SchemaFormat | None = None


class Metadata(Struct, frozen=True):
    """`user_id` is the label that budgets can be set for, and by which cached prompts can be purged."""

    user_id: Annotated[str, Meta(max_length=512)] | None = None


class Diagnostics(Struct, frozen=True):
    """The answer to compare with: why the cache could not serve this request as far as it served that one."""

    previous_message_id: Annotated[str, Meta(max_length=128)] | None = None


class PromptFields(Struct, frozen=True, kw_only=True):
    """What decides over the prompt, in both endpoints. `output_format` is the older beta's `output_config.format`.
    `cache_salt` is ours: it splits the project's cache further."""

    model: str
    messages: list[Message]
    system: str | list[TextBlock] | None = None
    tools: list[ToolParam] | None = None
    tool_choice: ToolChoice | None = None
    thinking: EnabledThinking | AdaptiveThinking | ThinkingBetweenTools | NoThinking | None = None
    output_config: OutputConfig | None = None
    output_format: SchemaFormat | None = None
    cache_control: CacheControl | None = None
    context_management: ContextManagement | None = None
    cache_salt: Annotated[str, Meta(min_length=1, max_length=256)] | None = None

    container: _Refused = UNSET
    mcp_servers: _Refused = UNSET
    thread: _Refused = UNSET
    kv_transfer_params: _Refused = UNSET
    chat_template_kwargs: _Refused = UNSET


class MessagesRequest(PromptFields, frozen=True, kw_only=True):
    """The fields that are read or refused. `seed`, `min_p`, `max_cost` and `speculation` are ours."""

    max_tokens: Annotated[int, Meta(ge=0, lt=2**31)]
    stream: bool | None = None
    stop_sequences: StopSequences | UnsetType = UNSET
    temperature: Fraction | None = None
    top_p: Fraction | None = None
    top_k: Annotated[int, Meta(ge=0, lt=2**31)] | None = None
    seed: Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)] | None = None
    min_p: Fraction | None = None
    metadata: Metadata | None = None
    service_tier: str | None = None
    diagnostics: Diagnostics | None = None
    max_cost: MaxCost | None = None
    speculation: Speculation | None = None


class MessagesCall(Struct, frozen=True):
    """A parsed request: what to generate, and how to respond. `diagnostics`: None if the client did not ask for any.
    `shows_thinking`: whether the client wants to see the text of thinking."""

    generation: GenerationRequest
    stream: bool
    diagnostics: Diagnostics | None = None
    shows_thinking: bool = True


_REFUSED = (
    *("container", "mcp_servers"),
    *("kv_transfer_params", "chat_template_kwargs"),  # vLLM's
)
_NO_EFFECT = (b"", b"null", b"[]", b"{}")
_decoder = msgspec.json.Decoder(MessagesRequest)
_count_decoder = msgspec.json.Decoder(PromptFields)
_stops_decoder = msgspec.json.Decoder(list[StopSequence] | None)


def parse(body: bytes, version: str = _NEWEST, *, read_thinking: ReadThinking = unsigned) -> MessagesCall:
    """Parse a body of /v1/messages. Raises InvalidRequest with the JSON path of what is wrong.

    `read_thinking`: reads blocks of thinking that come back.
    """
    check_large_messages(body)
    request = decode(_decoder, body)
    prompt = _prompt(request, version, read_thinking)
    stops = _stop_sequences(request.stop_sequences)
    grammar = _grammar(request)
    _check_together(request, stops, grammar, continued=prompt["continued"])
    user = (request.metadata.user_id if request.metadata else None) or ""
    generation = GenerationRequest(
        surface="anthropic",
        model=request.model,
        max_tokens=request.max_tokens,
        fill_context=True,
        temperature=request.temperature,
        top_p=request.top_p,
        top_k=request.top_k,
        min_p=request.min_p,
        seed=request.seed,
        stop=stops,
        lane=_lane(request.service_tier),
        grammar=grammar,
        max_cost_pico=parse_max_cost(request.max_cost),
        speculation=may_speculate(request.speculation),
        tag=user,
        cache=replace(
            _directives(request, prompt.pop("markers")),
            prewarm=request.max_tokens == 0,
            tags=(tag_of(user),) if user else (),
            compare_with=None if request.diagnostics is None else request.diagnostics.previous_message_id or "",
        ),
        **prompt,
    )
    thinking = request.thinking
    omitted = isinstance(thinking, EnabledThinking | AdaptiveThinking) and thinking.display == "omitted"
    return MessagesCall(generation, bool(request.stream), request.diagnostics, not omitted)


def parse_count(body: bytes, version: str = _NEWEST, *, read_thinking: ReadThinking = unsigned) -> GenerationRequest:
    """Parse a body of /v1/messages/count_tokens. Raises InvalidRequest with the JSON path of what is wrong."""
    check_large_messages(body)
    request = decode(_count_decoder, body)
    prompt = _prompt(request, version, read_thinking)
    return GenerationRequest(
        surface="anthropic", model=request.model, cache=_directives(request, prompt.pop("markers")), **prompt
    )


def _directives(request: PromptFields, markers: tuple[CacheMarker, ...]) -> CacheDirectives:
    """What the request says of where to cache its prompt."""
    control = request.cache_control
    return CacheDirectives(
        markers=markers,
        automatic=control is not None,
        automatic_lease=None if control is None else control.ttl,
        automatic_path="$.cache_control",
        partition=partition_of(None, request.cache_salt),
    )


def _prompt(request: PromptFields, version: str, read_thinking: ReadThinking) -> dict[str, Any]:
    """The fields of `GenerationRequest` that decide over the prompt, and the markers in it in Anthropic's order."""
    for name in _REFUSED:
        if json_bytes(getattr(request, name)) not in _NO_EFFECT:
            raise InvalidField(f"$.{name}", "it is not supported", code="unsupported_parameter")
    if json_bytes(request.thread) not in _NO_EFFECT:
        raise UnsupportedThread("$.thread", "threads are not supported; send the whole conversation without it")
    if request.context_management is not None:
        check_context_edits(request.context_management, request.messages)
    objects = JsonObjects()
    tools, markers = read_tools(request.tools or (), objects)
    choice = read_choice(request.tool_choice, tools)
    no_citations = version == _NEWEST
    system, system_markers = read_system(request.system, no_citations=no_citations)
    conversation = read_messages(request.messages, objects, no_citations=no_citations, read_thinking=read_thinking)
    return {
        "turns": (*(() if system is None else (system,)), *conversation.turns),
        "turns_path": "$.messages",
        "tools": tools,
        "tool_choice": choice,
        "reasoning": _reasoning(request),
        "continued": conversation.continued,
        "markers": (*markers, *system_markers, *conversation.markers),
    }


def _reasoning(request: PromptFields) -> ReasoningWish:
    """What the request says of thinking. A budget is a demand, which a model refuses that reasons and cannot end it; a
    model without reasoning passes over all of it."""
    effort = None if request.output_config is None else request.output_config.effort
    match request.thinking:
        case EnabledThinking(budget_tokens=budget):
            return ReasoningWish(True, effort, budget, "$.thinking.type")
        case AdaptiveThinking() | ThinkingBetweenTools():
            return ReasoningWish(True, effort)
        case NoThinking():
            return ReasoningWish(False)
    return ReasoningWish(None, effort)


def _lane(tier: str | None) -> Lane:
    if tier is None:
        return "standard"
    lane = _LANES.get(tier)
    if lane is None:
        raise InvalidField("$.service_tier", f"there is no tier {tier[:40]!r}; use one of {', '.join(_LANES)}")
    return lane


def _stop_sequences(raw: Raw | UnsetType) -> tuple[str, ...]:
    if raw is UNSET:
        return ()
    if len(raw) > _FIELD_BYTES:
        raise InvalidField("$.stop_sequences", f"it is longer than {_FIELD_BYTES} bytes")
    stops = decode(_stops_decoder, bytes(raw), at="$.stop_sequences") or []
    if len(stops) > _MOST_STOPS:
        raise InvalidField("$.stop_sequences", f"there are more than {_MOST_STOPS}")
    for index, stop in enumerate(stops):
        if not stop.strip():
            raise InvalidField(f"$.stop_sequences[{index}]", "it is white space only")
    return tuple(stops)


def _grammar(request: PromptFields) -> Grammar | None:
    wanted, path = request.output_format, "$.output_format.schema"
    if request.output_config is not None and request.output_config.format is not None:
        if wanted is not None:
            raise InvalidField("$.output_format", "it cannot be combined with $.output_config.format; give one of them")
        wanted, path = request.output_config.format, "$.output_config.format.schema"
    if wanted is None:
        return None
    schema = JsonObjects().read(wanted.schema, path)
    return Grammar(json.dumps({"json_schema": schema}, ensure_ascii=False), path)


def _check_together(
    request: MessagesRequest, stops: tuple[str, ...], grammar: Grammar | None, *, continued: bool
) -> None:
    """Raise InvalidRequest for fields that cannot be combined."""
    if grammar is not None and stops:
        raise InvalidField("$.stop_sequences", f"it cannot be combined with {grammar.path}, which decides over the end")
    if grammar is not None and continued:
        raise InvalidField("$.messages", f"an answer under {grammar.path} cannot go on from a turn of the assistant's")
    thinking = request.thinking
    if request.max_tokens and isinstance(thinking, EnabledThinking) and thinking.budget_tokens >= request.max_tokens:
        raise InvalidField("$.thinking.budget_tokens", f"it must be less than $.max_tokens, {request.max_tokens}")
    if request.max_tokens:
        return
    for name, given in (
        ("stream", bool(request.stream)),
        ("output_config.format" if request.output_format is None else "output_format", grammar is not None),
        ("thinking", isinstance(thinking, EnabledThinking | AdaptiveThinking)),
        ("tool_choice", isinstance(request.tool_choice, AnyChoice | NamedChoice)),
    ):
        if given:
            raise InvalidRequest(
                f"$.{name}: it cannot be combined with $.max_tokens 0, which computes the prompt and answers nothing.",
                path=f"$.{name}",
                code="invalid_value",
            )
