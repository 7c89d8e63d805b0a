"""What the document says of the generating endpoints: their headers and errors, and examples of bodies and answers."""

from __future__ import annotations

from typing import Any

from gateway.dialects.anthropic import errors as anthropic_errors
from gateway.dialects.anthropic import messages_request, messages_response
from gateway.dialects.anthropic.conversation_turns import Message as MessageParam
from gateway.dialects.anthropic.message_usage import CacheLifetimes, MessageUsage
from gateway.dialects.openai import chat_request, chat_response, completions_response
from gateway.dialects.openai import errors as openai_errors
from gateway.dialects.openai.completion_usage import CompletionDetails, CompletionUsage, PromptDetails
from gateway.dialects.openai.completions_request import CompletionRequest
from gateway.dialects.usage_reports import Cost
from gateway.endpoints.receipts import HEADER as RECEIPT
from gateway.http.cache_control import HEADER as CACHE_CONTROL
from gateway.http.operations import Events, HeaderParameter, describes
from gateway.http.responses import VERSION_HEADER
from gateway.idempotency.request_key import HEADER as IDEMPOTENCY_HEADER

_ID = "01934f6e0d2a7b3c8e51a9c4d7f60b12"
_CREATED = 1_795_339_800
_MODEL, _FINGERPRINT, _ANSWER = "tiny", "fp_9f86d081884c", "The capital of France is Paris."
_COST = Cost("USD", "0.0000236")

CACHE_CONTROL_HEADER = HeaderParameter(
    CACHE_CONTROL,
    "For the cache of prompts, never for answers: `no-store`, `no-cache`, `only-if-cached`, `max-age=SECONDS`.",
    example="max-age=600",
)
IDEMPOTENCY_KEY = HeaderParameter(
    IDEMPOTENCY_HEADER,
    "Names the request for 24 hours: sent again with the same key, body and headers it joins the running answer, or "
    "gets the kept one, and is billed once.",
    example="b1e29f46-6a43-4d56-9e1c-4f3f1f1c2b6a",
)
RECEIPT_HEADER = HeaderParameter(
    RECEIPT, "Whether the answer has a signed receipt: `true` or `false`.", example="true", values=("true", "false")
)
VERSION = HeaderParameter(
    VERSION_HEADER,
    "The version of Anthropic's API.",
    required=True,
    example=messages_request.VERSIONS[0],
    values=messages_request.VERSIONS,
)
KEY_ERRORS = {"idempotent_answer_not_kept": 409, "idempotency_key_reused": 422}
"""Of every route that takes an idempotency key."""
ERRORS = {
    "unsupported_parameter": 400,
    "unsupported_value": 400,
    "context_length_exceeded": 400,
    "input_quarantined": 400,
    "model_not_found": 404,
    "insufficient_quota": 402,
    **KEY_ERRORS,
    "not_cached": 412,
    "rate_limit_exceeded": 429,
    "interrupted": 500,
    "request_timeout": 504,
}
ANSWER_HEADERS = {
    "cache-status": "What the cache of prompts did (RFC 9211).",
    "idempotent-replayed": "`true` where the answer is that of an earlier request with the same idempotency key.",
    "x-turnpike-max-tokens": "How many output tokens the money allows, where that is fewer than was possible.",
}

_USAGE = CompletionUsage(27, 8, 35, PromptDetails(0), CompletionDetails(), _COST)
_CHAT = chat_response.ChatCompletion(
    id=f"chatcmpl-{_ID}",
    created=_CREATED,
    model=_MODEL,
    choices=(chat_response.Choice(chat_response.ResponseMessage(_ANSWER), "stop"),),
    usage=_USAGE,
    service_tier="default",
    system_fingerprint=_FINGERPRINT,
)
_TEXT = completions_response.TextCompletion(
    id=f"cmpl-{_ID}",
    created=_CREATED,
    model=_MODEL,
    choices=(completions_response.TextChoice(" a miller had a daughter.", "stop", 0),),
    service_tier="default",
    usage=_USAGE,
    system_fingerprint=_FINGERPRINT,
)
_MESSAGE_USAGE = MessageUsage(
    input_tokens=27,
    cache_creation_input_tokens=0,
    cache_read_input_tokens=0,
    cache_creation=CacheLifetimes(),
    output_tokens=8,
    service_tier="standard",
    cost=_COST,
)
_MESSAGE = messages_response.Message(
    id=f"msg_{_ID}",
    model=_MODEL,
    content=(messages_response.TextContent(_ANSWER),),
    stop_reason="end_turn",
    stop_sequence=None,
    usage=_MESSAGE_USAGE,
)
_CHUNKS = (
    'data: {"id":"chatcmpl-01934f6e","object":"chat.completion.chunk","choices":[{"index":0,'
    '"delta":{"content":"Paris"},"finish_reason":null}]}\n\ndata: [DONE]\n\n'
)
_TEXT_CHUNKS = (
    'data: {"id":"cmpl-01934f6e","object":"text_completion","choices":[{"index":0,"text":" a",'
    '"finish_reason":null}]}\n\n'
    "data: [DONE]\n\n"
)
_EVENTS = (
    "event: content_block_delta\n"
    'data: {"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"Paris"}}\n\n'
    'event: message_stop\ndata: {"type":"message_stop"}\n\n'
)
_QUESTION = "What is the capital of France?"

CHAT: dict[str, Any] = describes(
    Events((chat_response.ChatChunk, openai_errors.Envelope), _CHUNKS, _CHAT),
    body=chat_request.ChatRequest(
        model=_MODEL, messages=[chat_request.UserMessage(content=_QUESTION)], max_completion_tokens=64
    ),
    headers=[CACHE_CONTROL_HEADER, IDEMPOTENCY_KEY, RECEIPT_HEADER],
    answer_headers=ANSWER_HEADERS,
    errors=ERRORS,
)
COMPLETIONS: dict[str, Any] = describes(
    Events((completions_response.TextCompletion, openai_errors.Envelope), _TEXT_CHUNKS, _TEXT),
    body=CompletionRequest,
    headers=[CACHE_CONTROL_HEADER, IDEMPOTENCY_KEY, RECEIPT_HEADER],
    answer_headers=ANSWER_HEADERS,
    errors=ERRORS,
)
MESSAGES: dict[str, Any] = describes(
    Events(
        (
            messages_response.MessageStart,
            messages_response.Ping,
            messages_response.BlockStart,
            messages_response.BlockDelta,
            messages_response.BlockStop,
            messages_response.MessageDelta,
            messages_response.MessageStop,
            anthropic_errors.Envelope,
        ),
        _EVENTS,
        _MESSAGE,
    ),
    body=messages_request.MessagesRequest(model=_MODEL, max_tokens=64, messages=[MessageParam("user", _QUESTION)]),
    headers=[VERSION, CACHE_CONTROL_HEADER, IDEMPOTENCY_KEY, RECEIPT_HEADER],
    answer_headers=ANSWER_HEADERS,
    errors=ERRORS,
)
COUNT_TOKENS: dict[str, Any] = describes(
    messages_response.TokenCount(27),
    body=messages_request.PromptFields(model=_MODEL, messages=[MessageParam("user", _QUESTION)]),
    headers=[VERSION],
    errors={"unsupported_parameter": 400, "context_length_exceeded": 400, "model_not_found": 404},
)
