"""JSON responses; and every exception as an error response, in the dialect of its route."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

import msgspec
import structlog
from litestar import MediaType, Request, Response
from litestar.exceptions import HTTPException
from litestar.response.base import ASGIResponse
from litestar.types import Scope

from billing.pending_changes import ChangePending
from gateway.dialects.anthropic import errors as anthropic_errors
from gateway.dialects.openai import errors as openai_errors
from gateway.errors import (
    AnswerNotKept,
    BodyTooLarge,
    BodyTooSlow,
    GatewayError,
    Interrupted,
    InvalidRequest,
    KeyReused,
    NotAuthenticated,
    NotCached,
    RetryableError,
    Unaffordable,
    Unavailable,
)
from gateway.generation_request import Dialect
from gateway.http.pending import PENDING_STATUS, change_object
from gateway.http.shapes import encode_value
from gateway.request_context import request_context
from storage.database.database import DatabaseUnavailable, UnstorableText

log = structlog.get_logger("gateway.errors")

DIALECT = "dialect"
"""The key in a handler's `opt` that names the dialect of its answers. Without it Anthropic's header decides, as on
routes that both dialects have."""
ERROR_BODIES: Mapping[Dialect, Any] = {"openai": openai_errors, "anthropic": anthropic_errors}
"""The module with a dialect's error bodies."""
VERSION_HEADER = "anthropic-version"
_VERSION_NAME = VERSION_HEADER.encode()
_PATHS: Mapping[str, Dialect] = {
    "/v1/messages": "anthropic",
    "/v1/chat/": "openai",
    "/v1/completions": "openai",
    "/v1/responses": "openai",
}
"""The beginning of a path that no route has, below one vendor's routes -> the vendor's dialect."""
_TOO_LARGE, _SERVER_ERROR = 413, 500
_PLAIN_PATH = re.compile(r"\$?[A-Za-z0-9_.\[\]-]{1,120}")


def json_response(body: object, status: int = 200, headers: Mapping[str, str] | None = None) -> Response[bytes]:
    """A response of what msgspec encodes as JSON, or of JSON that is encoded already."""
    data = body if isinstance(body, bytes) else msgspec.json.encode(body, enc_hook=encode_value)
    return Response(data, status_code=status, media_type=MediaType.JSON, headers=headers)


def json_answer(body: object) -> ASGIResponse:
    """As `json_response`, where a route answers with an ASGI application."""
    return ASGIResponse(body=msgspec.json.encode(body, enc_hook=encode_value), media_type=MediaType.JSON)


def error_response(request: Request[Any, Any, Any], error: Exception) -> Response[bytes]:
    """The response for an exception; that of a change which takes two people says that it waits.

    Unexpected ones are logged, and the response says nothing about them."""
    if isinstance(error, ChangePending):
        return json_response(change_object(error.change), PENDING_STATUS)
    context = request_context(request.scope)
    request_id = context.name
    dialect = ERROR_BODIES[dialect_of(request.scope)]
    if isinstance(error, HTTPException) and error.status_code != _TOO_LARGE:
        code = HTTPStatus(error.status_code).phrase.lower().replace(" ", "_")
        context.error = (code, None)
        if error.status_code >= _SERVER_ERROR:
            log.warning("a request ended with a server error", request_id=request_id, cause=error.detail)
        else:
            context.refusal = (code, error.detail)
        status = dialect.status_of(error.status_code)
        return json_response(dialect.plain(status, _detail(request, error), request_id), status, error.headers)
    failure = _failure(request, error)
    context.error = (failure.code or "error", _loggable(failure.path))
    if failure.status < _SERVER_ERROR or isinstance(failure, RetryableError):
        context.refusal = (failure.code or "error", failure.message)
    status = dialect.status_of(failure.status)
    return json_response(dialect.envelope(failure, request_id), status, error_headers(failure))


def _loggable(path: str | None) -> str | None:
    """A field's path for the log; without one that may have words of the client's."""
    return path if path is not None and _PLAIN_PATH.fullmatch(path) else None


def error_headers(failure: GatewayError) -> dict[str, str]:
    """The headers that say whether and when to retry, where clients would decide otherwise by themselves."""
    match failure:
        case RetryableError():
            milliseconds = max(1, math.ceil(failure.retry_after * 1000))
            return {
                "retry-after": str(max(1, math.ceil(failure.retry_after))),
                "retry-after-ms": str(milliseconds),
                "x-should-retry": "true",
            }
        case Unaffordable() | KeyReused() | AnswerNotKept():
            return {"x-should-retry": "false"}
        case NotCached():
            return {"x-should-retry": "false", "cache-status": "turnpike; fwd=uri-miss"}
        case NotAuthenticated():
            return {"www-authenticate": "Bearer"}
        case BodyTooSlow():
            return {"connection": "close"}
    return {}


def dialect_of(scope: Scope) -> Dialect:
    """The dialect of the request's route or path, or else the one that its client names by a header."""
    handler: Any = scope.get("route_handler")
    dialect: Dialect | None
    if handler is None:
        dialect = next((vendor for path, vendor in _PATHS.items() if scope["path"].startswith(path)), None)
    else:
        dialect = handler.opt.get(DIALECT)
    if dialect is not None:
        return dialect
    return "anthropic" if any(name == _VERSION_NAME for name, _ in scope["headers"]) else "openai"


def _failure(request: Request[Any, Any, Any], error: Exception) -> GatewayError:
    if isinstance(error, GatewayError):
        return error
    if isinstance(error, HTTPException):
        return BodyTooLarge("The request body is larger than this server accepts.")
    if isinstance(error, DatabaseUnavailable):
        return Unavailable("The database is unavailable; try again shortly.")
    if isinstance(error, UnstorableText):
        return InvalidRequest("A name, id or parameter of the request has the character U+0000.", code="invalid_value")
    log.error(
        "a request failed inside the gateway",
        request_id=request_context(request.scope).name,
        path=request.scope["path"],
        exc_info=error,
    )
    return Interrupted("The server had an internal error while processing the request.", code="internal_error")


def _detail(request: Request[Any, Any, Any], error: HTTPException) -> str:
    match error.status_code:
        case 404:
            return f"There is no route {request.method} {request.scope['path']}."
        case 405:
            return f"{request.method} is not allowed for {request.scope['path']}."
    return error.detail
