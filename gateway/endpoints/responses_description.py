"""What the document says of the Responses API: bodies, answers, events and errors."""

from __future__ import annotations

from typing import Any, get_args

from gateway.dialects.openai.errors import Envelope
from gateway.dialects.openai.responses import events
from gateway.dialects.openai.responses.request import ResponsesRequest
from gateway.dialects.openai.responses.response_object import (
    InputDetails,
    OutputDetails,
    OutputMessage,
    OutputText,
    Response,
    ResponseUsage,
    TokenCount,
)
from gateway.dialects.usage_reports import Cost
from gateway.endpoints.generation_description import (
    ANSWER_HEADERS,
    CACHE_CONTROL_HEADER,
    ERRORS,
    IDEMPOTENCY_KEY,
    RECEIPT_HEADER,
)
from gateway.http.operations import Events, describes

_ID = "01934f6e0d2a7b3c8e51a9c4d7f60b12"
_QUESTION = "What is the capital of France?"
EXAMPLE = Response(
    id=f"resp_{_ID}",
    created_at=1_795_339_800,
    completed_at=1_795_339_801,
    status="completed",
    model="tiny",
    output=(OutputMessage(f"msg_{_ID}00", "completed", (OutputText("The capital of France is Paris."),)),),
    service_tier="default",
    store=True,
    usage=ResponseUsage(27, InputDetails(), 8, OutputDetails(), 35, Cost("USD", "0.0000236")),
)
EVENTS_EXAMPLE = (
    "event: response.output_text.delta\n"
    'data: {"type":"response.output_text.delta","sequence_number":4,"item_id":"msg_01934f6e","output_index":0,'
    '"delta":"Paris","content_index":0,"logprobs":[]}\n\n'
)
UNKNOWN_EARLIER = {"previous_response_not_found": 404}
EVENT_TYPES = (*get_args(events.EVENTS), Envelope)

RESPONSES: dict[str, Any] = describes(
    Events(EVENT_TYPES, EVENTS_EXAMPLE, EXAMPLE),
    body=ResponsesRequest(model="tiny", input=_QUESTION, max_output_tokens=64),
    headers=[CACHE_CONTROL_HEADER, IDEMPOTENCY_KEY, RECEIPT_HEADER],
    answer_headers=ANSWER_HEADERS,
    errors=ERRORS | UNKNOWN_EARLIER,
)
INPUT_TOKENS: dict[str, Any] = describes(
    TokenCount(27),
    body=ResponsesRequest(model="tiny", input=_QUESTION),
    errors={"unsupported_parameter": 400, "context_length_exceeded": 400, "model_not_found": 404} | UNKNOWN_EARLIER,
)
