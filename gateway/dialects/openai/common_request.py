"""The request fields that OpenAI's two completion endpoints share, for sampling, streaming, tiers and grammars.

Beside OpenAI's fields these are vLLM's, which its users send in `extra_body`
(https://docs.vllm.ai/en/latest/serving/openai_compatible_server.html), and SGLang's of the same names.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, TypeAlias

from msgspec import UNSET, Meta, Struct, UnsetType
from msgspec.structs import replace

from gateway.dialects.max_cost import MaxCost, parse_max_cost
from gateway.dialects.openai.cache_fields import CacheFields
from gateway.dialects.openai.structured_outputs import (
    ChoiceTexts,
    GrammarText,
    ResponseFormat,
    Schema,
    StructuredOutputs,
    parse_grammar,
)
from gateway.dialects.openai.unsupported_fields import Refused, reject_fields
from gateway.dialects.speculation import Speculation, may_speculate
from gateway.errors import InvalidField
from gateway.generation_request import Effort, GenerationRequest, Grammar, ReasoningWish
from protocol.requests import MOST_CHOICES, Lane

SERVICE_TIER_OF: Mapping[str, str] = {"interactive": "priority", "standard": "default", "batch": "flex"}
"""Lane -> `service_tier` in responses and reports."""
_LANES: Mapping[str, Lane] = {
    "auto": "standard",
    "default": "standard",
    "standard_only": "standard",
    "scale": "standard",
    "priority": "interactive",
    "fast": "interactive",
    "ultrafast": "interactive",
    "flex": "batch",
}


def lane_of(tier: str | None) -> Lane:
    """The lane of a `service_tier`; the standard lane without one. Raises InvalidRequest."""
    if tier is None:
        return "standard"
    lane = _LANES.get(tier)
    if lane is None:
        raise InvalidField("$.service_tier", f"there is no tier {tier[:40]!r}; use one of {', '.join(_LANES)}")
    return lane


Integer64: TypeAlias = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
Fraction: TypeAlias = Annotated[float, Meta(ge=0, le=1)]
Penalty: TypeAlias = Annotated[float, Meta(ge=-2, le=2)]
Bias: TypeAlias = Annotated[float, Meta(ge=-100, le=100)]
TokenId: TypeAlias = Annotated[int, Meta(ge=0, lt=2**31)]
StopString: TypeAlias = Annotated[str, Meta(min_length=1, max_length=256)]

Label: TypeAlias = Annotated[str, Meta(max_length=512)]
TAG = "tag"
"""The key in `metadata` whose value tag budgets apply to."""

ChoiceCount: TypeAlias = Annotated[int, Meta(ge=1, le=MOST_CHOICES)]
TopLogprobs: TypeAlias = Annotated[int, Meta(ge=0, le=20)]

_MOST_STOP_TOKENS = 64


class StreamOptions(Struct, frozen=True):
    include_usage: bool | None = None
    continuous_usage_stats: Refused = UNSET


class SamplingFields(CacheFields, frozen=True, kw_only=True):
    """The fields for sampling. Those of the lower part are vLLM's and SGLang's, in name and meaning."""

    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Fraction | None = None
    seed: Integer64 | None = None
    stop: StopString | Annotated[list[StopString], Meta(max_length=4)] | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    logit_bias: Annotated[dict[str, Bias], Meta(max_length=1024)] | None = None

    top_k: Annotated[int, Meta(ge=-1, lt=2**31)] | None = None
    min_p: Fraction | None = None
    repetition_penalty: Annotated[float, Meta(gt=0, le=10)] | None = None
    min_tokens: Annotated[int, Meta(ge=0, lt=2**31)] | None = None
    stop_token_ids: Annotated[list[TokenId], Meta(max_length=_MOST_STOP_TOKENS)] | None = None
    ignore_eos: bool | None = None


class CompletionFields(SamplingFields, frozen=True, kw_only=True):
    """The fields of both endpoints. The grammars of the lower part are vLLM's; `max_cost` and `speculation`
    are ours."""

    model: str
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: Integer64 | None = None
    n: ChoiceCount | None = None
    service_tier: str | None = None
    metadata: Annotated[dict[str, Label], Meta(max_length=16)] | None = None
    max_cost: MaxCost | None = None
    speculation: Speculation | None = None

    response_format: ResponseFormat | None = None
    guided_json: Schema | UnsetType = UNSET
    guided_regex: GrammarText | None = None
    guided_choice: ChoiceTexts | None = None
    guided_grammar: GrammarText | None = None
    structured_outputs: StructuredOutputs | None = None


def parse_streaming(request: CompletionFields) -> tuple[bool, bool]:
    """Whether to stream the response, and whether to end the stream with usage. Raises InvalidRequest."""
    if request.stream_options is None:
        return bool(request.stream), False
    if not request.stream:
        raise InvalidField("$.stream_options", "it needs $.stream to be true")
    reject_fields(request.stream_options, ("continuous_usage_stats",), "$.stream_options")
    return True, bool(request.stream_options.include_usage)


def parse_common(request: CompletionFields) -> dict[str, Any]:
    """The fields of `GenerationRequest` that both endpoints parse alike. Raises InvalidRequest naming the field."""
    return {
        "lane": lane_of(request.service_tier),
        "max_cost_pico": parse_max_cost(request.max_cost),
        "speculation": may_speculate(request.speculation),
        "tag": (request.metadata or {}).get(TAG, ""),
        **parse_sampling(request, parse_grammar(request)),
    }


def parse_sampling(request: SamplingFields, grammar: Grammar | None) -> dict[str, Any]:
    """The fields of `GenerationRequest` that say how to sample, under this grammar. Raises InvalidRequest naming the
    field."""
    stop = request.stop
    if grammar is not None and (request.stop_token_ids or stop):
        path = "$.stop" if stop else "$.stop_token_ids"
        raise InvalidField(path, f"it cannot be combined with {grammar.path}, which decides where the output ends")
    return {
        "temperature": request.temperature,
        "top_p": request.top_p,
        "seed": request.seed,
        "stop": () if stop is None else (stop,) if isinstance(stop, str) else tuple(stop),
        "presence_penalty": request.presence_penalty or 0.0,
        "frequency_penalty": request.frequency_penalty or 0.0,
        "logit_bias": _logit_bias(request.logit_bias or {}),
        "top_k": None if request.top_k is None else max(0, request.top_k),
        "min_p": request.min_p,
        "repetition_penalty": request.repetition_penalty,
        "min_tokens": request.min_tokens or 0,
        "stop_tokens": tuple(request.stop_token_ids or ()),
        "ignore_end": bool(request.ignore_eos),
        "grammar": grammar,
    }


def reasoning_of(effort: Effort | None) -> ReasoningWish:
    """What an effort says of reasoning. Models without any pass over it, as clients send it to whatever model."""
    return ReasoningWish() if effort is None else ReasoningWish(effort != "none", effort)


def prewarming(generation: GenerationRequest) -> GenerationRequest:
    """The request that computes the prompt of this one, so that it is cached, and generates nothing.

    What concerns the output is dropped, so that a client may send the same request twice. Raises InvalidRequest.
    """
    if generation.choices > 1:
        raise InvalidField("$.n", "it must be 1 where $.prompt_cache_options.prewarm is true")
    return replace(generation, max_tokens=0, min_tokens=0, grammar=None, echo=False, logprobs=None)


def _logit_bias(fields: dict[str, float]) -> dict[int, float]:
    biases = {}
    for text, bias in fields.items():
        if not (text.isascii() and text.isdecimal() and len(text) < 11):
            raise InvalidField("$.logit_bias", f"{text[:20]!r} is not a token id (a whole number)")
        biases[int(text)] = bias
    return biases
