"""A response as OpenAI's JSON: its items, its usage, and the object around them.

Source: https://platform.openai.com/docs/api-reference/responses/object and the types of the official client.
`limited_by`, `cost`, `cache_expires_at`, `cache_explanation` and `receipts` are ours.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

from msgspec import UNSET, Struct, UnsetType

from gateway.dialects.cache_explanation import CacheExplanation
from gateway.dialects.openai.cache_fields import CacheOptions
from gateway.dialects.openai.common_response import Receipts, usage_at
from gateway.dialects.openai.completion_usage import ReadDetails, WriteDetails
from gateway.dialects.openai.diagnostics import PromptCacheDiagnostics
from gateway.dialects.openai.logprobs import ContentLogprob
from gateway.dialects.openai.responses.input_items import ResponseTool, ResponseToolChoice
from gateway.dialects.openai.responses.request import PlainFormat, Reasoning, ResponsesRequest, TextOptions
from gateway.dialects.usage_reports import Cost
from gateway.errors import GatewayError, RetryableError
from gateway.generation.delivery import Finished

ItemStatus = Literal["in_progress", "completed", "incomplete"]
Status = Literal["queued", "in_progress", "completed", "incomplete", "failed", "cancelled"]
ENDED: frozenset[Status] = frozenset(("completed", "incomplete", "failed", "cancelled"))
"""The states that a response stays in."""
_SERVER_ERROR = 500


class OutputText(Struct, frozen=True, tag="output_text", tag_field="type"):
    text: str
    annotations: tuple[()] = ()
    logprobs: tuple[ContentLogprob, ...] = ()


class ReasoningText(Struct, frozen=True, tag="reasoning_text", tag_field="type"):
    text: str


class OutputMessage(Struct, frozen=True, tag="message", tag_field="type"):
    id: str
    status: ItemStatus
    content: tuple[OutputText, ...] = ()
    role: str = "assistant"


Logprobs: TypeAlias = tuple[ContentLogprob, ...] | UnsetType
"""Of an item's tokens, for a client who asked for those of the answer: ours, where OpenAI has them of texts alone."""


class ReasoningItem(Struct, frozen=True, tag="reasoning", tag_field="type"):
    """Reasoning, as the model wrote it. `encrypted_content` is the same sealed, for a client who asked for it."""

    id: str
    status: ItemStatus
    content: tuple[ReasoningText, ...] = ()
    summary: tuple[()] = ()
    encrypted_content: str | None = None
    logprobs: Logprobs = UNSET


class FunctionCall(Struct, frozen=True, tag="function_call", tag_field="type"):
    id: str
    status: ItemStatus
    call_id: str
    name: str
    arguments: str = ""
    namespace: str | UnsetType = UNSET
    logprobs: Logprobs = UNSET


class CustomCall(Struct, frozen=True, tag="custom_tool_call", tag_field="type"):
    id: str
    status: ItemStatus
    call_id: str
    name: str
    input: str = ""
    namespace: str | UnsetType = UNSET
    logprobs: Logprobs = UNSET


OutputItem: TypeAlias = OutputMessage | ReasoningItem | FunctionCall | CustomCall


class InputDetails(Struct, frozen=True):
    """Parts of the input. What was written or read under leases has details only if there is any."""

    cached_tokens: int = 0
    cache_write_tokens: int = 0
    cache_write_tokens_details: WriteDetails | UnsetType = UNSET
    cached_tokens_details: ReadDetails | UnsetType = UNSET


class OutputDetails(Struct, frozen=True):
    reasoning_tokens: int = 0


class ResponseUsage(Struct, frozen=True):
    """The details are parts of the totals."""

    input_tokens: int
    input_tokens_details: InputDetails
    output_tokens: int
    output_tokens_details: OutputDetails
    total_tokens: int
    cost: Cost
    cache_expires_at: str | UnsetType = UNSET


class ResponseError(Struct, frozen=True):
    """Why a response failed."""

    code: str
    message: str


class IncompleteDetails(Struct, frozen=True):
    """Why the output is not whole. `limited_by`: "budget" if the money ended before the output did."""

    reason: Literal["max_output_tokens"]
    limited_by: Literal["budget"] | UnsetType = UNSET


class Response(Struct, frozen=True, kw_only=True):
    """A response, with what its request said."""

    id: str
    object: str = "response"
    created_at: int
    completed_at: int | None = None
    status: Status
    background: bool = False
    error: ResponseError | None = None
    incomplete_details: IncompleteDetails | None = None
    instructions: str | None = None
    max_output_tokens: int | None = None
    max_tool_calls: int | None = None
    metadata: dict[str, str] = {}
    model: str
    output: tuple[OutputItem, ...] = ()
    parallel_tool_calls: bool = True
    previous_response_id: str | None = None
    prompt_cache_key: str | None = None
    prompt_cache_options: CacheOptions | UnsetType = UNSET
    prompt_cache_retention: str | None = None
    prompt_cache_diagnostics: PromptCacheDiagnostics | UnsetType = UNSET
    cache_explanation: CacheExplanation | UnsetType = UNSET
    receipts: Receipts = UNSET
    reasoning: Reasoning = Reasoning()
    safety_identifier: str | None = None
    service_tier: str
    store: bool
    temperature: float | None = None
    text: TextOptions = TextOptions(PlainFormat())
    tool_choice: ResponseToolChoice = "auto"
    tools: tuple[ResponseTool, ...] = ()
    top_logprobs: int = 0
    top_p: float | None = None
    truncation: str = "disabled"
    usage: ResponseUsage | None = None
    user: str | None = None


class TokenCount(Struct, frozen=True):
    """The tokens of a prompt."""

    input_tokens: int
    object: str = "response.input_tokens"


def begun(request: ResponsesRequest, *, id: str, created: int, model: str, tier: str, stored: bool) -> Response:
    """The response to a request, before there is any output."""
    text = request.text or TextOptions()
    return Response(
        id=id,
        created_at=created,
        status="in_progress",
        background=bool(request.background),
        instructions=request.instructions,
        max_output_tokens=request.max_output_tokens,
        metadata=request.metadata or {},
        model=model,
        parallel_tool_calls=request.parallel_tool_calls is not False,
        previous_response_id=request.previous_response_id,
        prompt_cache_key=request.prompt_cache_key,
        prompt_cache_options=UNSET if request.prompt_cache_options is None else request.prompt_cache_options,
        prompt_cache_retention=request.prompt_cache_retention,
        reasoning=request.reasoning or Reasoning(),
        safety_identifier=request.safety_identifier,
        service_tier=tier,
        store=stored,
        temperature=request.temperature,
        text=TextOptions(text.format or PlainFormat(), text.verbosity),
        tool_choice=request.tool_choice or "auto",
        tools=tuple(request.tools or ()),
        top_logprobs=request.top_logprobs or 0,
        top_p=request.top_p,
        truncation=request.truncation or "disabled",
        user=request.user,
    )


def response_usage(end: Finished) -> ResponseUsage:
    """The usage object of a response that ended like this: that of a chat completion by other names."""
    usage = usage_at(end)
    prompt = usage.prompt_tokens_details
    return ResponseUsage(
        input_tokens=usage.prompt_tokens,
        input_tokens_details=InputDetails(
            prompt.cached_tokens,
            prompt.cache_write_tokens,
            prompt.cache_write_tokens_details,
            prompt.cached_tokens_details,
        ),
        output_tokens=usage.completion_tokens,
        output_tokens_details=OutputDetails(usage.completion_tokens_details.reasoning_tokens),
        total_tokens=usage.total_tokens,
        cost=usage.cost,
        cache_expires_at=usage.cache_expires_at,
    )


def response_error(failure: GatewayError) -> ResponseError:
    """The error in a response that failed. Clients read from the message when to try again."""
    code = failure.code if failure.code and failure.status < _SERVER_ERROR else "server_error"
    message = failure.message
    if isinstance(failure, RetryableError):
        message += f" Please try again in {failure.retry_after:g}s."
    return ResponseError(code, message)
