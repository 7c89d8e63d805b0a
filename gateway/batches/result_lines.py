"""What came of a line, as a line of the vendor's results.

An error that a request was answered with stands in its answer, as the vendor has it; `error` beside it is for what was
never answered.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal

import msgspec
from msgspec import Raw, Struct

from batch_store.records import Line, LineResult, Surface, Tokens
from gateway.batches.line_requests import LineAnswer

_OK = 200
_NULL = Raw(b"null")
Left = Literal["cancelled", "expired"]
_LEFT_MESSAGES: Mapping[Left, str] = {
    "cancelled": "The batch was cancelled before this line was run.",
    "expired": "The batch expired before this line was run.",
}


class _Details(Struct):
    cached_tokens: int = 0
    reasoning_tokens: int = 0


class _Usage(Struct):
    """Usage as chat, completions and Responses have it."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    prompt_tokens_details: _Details | None = None
    completion_tokens_details: _Details | None = None
    input_tokens_details: _Details | None = None
    output_tokens_details: _Details | None = None


class _Answer(Struct):
    usage: _Usage | None = None


_answer = msgspec.json.Decoder(_Answer)


def result_of(surface: Surface, batch_request: str, line: Line, custom_id: str, answer: LineAnswer) -> LineResult:
    """The result of a line that was answered. `batch_request`: the name of the line's request in its batch."""
    well = answer.status == _OK
    content = _OF_ANSWERS[surface](batch_request, custom_id, answer)
    return LineResult(
        number=line.number,
        end="completed" if well else "failed",
        kind="output" if well or surface == "anthropic" else "error",
        content=content,
        tokens=_tokens(answer.body) if well and surface == "openai" else Tokens(),
    )


def result_of_left(surface: Surface, batch_request: str, line: Line, custom_id: str, why: Left) -> LineResult:
    """The result of a line that was not run."""
    said: Any
    if surface == "openai":
        error = {"code": f"batch_{why}", "message": _LEFT_MESSAGES[why]}
        said = {"id": batch_request, "custom_id": custom_id, "response": None, "error": error}
    else:
        said = {"custom_id": custom_id, "result": {"type": "canceled" if why == "cancelled" else why}}
    kind: Literal["output", "error"] = "error" if surface == "openai" else "output"
    return LineResult(number=line.number, end=why, kind=kind, content=msgspec.json.encode(said))


def _openai(batch_request: str, custom_id: str, answer: LineAnswer) -> bytes:
    response = {"status_code": answer.status, "request_id": answer.request, "body": _body(answer)}
    return msgspec.json.encode({"id": batch_request, "custom_id": custom_id, "response": response, "error": None})


def _anthropic(_batch_request: str, custom_id: str, answer: LineAnswer) -> bytes:
    well = answer.status == _OK
    field, kind = ("message", "succeeded") if well else ("error", "errored")
    return msgspec.json.encode({"custom_id": custom_id, "result": {"type": kind, field: _body(answer)}})


_OF_ANSWERS: Mapping[Surface, Callable[[str, str, LineAnswer], bytes]] = {"openai": _openai, "anthropic": _anthropic}


def _body(answer: LineAnswer) -> Raw:
    return Raw(answer.body) if answer.body else _NULL


def _tokens(body: bytes) -> Tokens:
    usage = _answer.decode(body).usage or _Usage()
    read = usage.prompt_tokens_details or usage.input_tokens_details or _Details()
    made = usage.completion_tokens_details or usage.output_tokens_details or _Details()
    return Tokens(
        input=usage.prompt_tokens + usage.input_tokens,
        cached=read.cached_tokens,
        output=usage.completion_tokens + usage.output_tokens,
        reasoning=made.reasoning_tokens,
    )
