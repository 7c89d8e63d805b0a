"""Every exception as the error envelope of the surface that was asked."""

from __future__ import annotations

from typing import Any

import msgspec
import structlog
from litestar import MediaType, Request, Response
from litestar.exceptions import HTTPException

from gateway.dialects.anthropic import errors as anthropic_errors
from gateway.dialects.openai import errors
from gateway.errors import BodyTooLarge, GatewayError, Interrupted, Unavailable
from gateway.request_context import of
from storage.database.database import DatabaseUnavailable

log = structlog.get_logger("gateway.errors")

SURFACE = "surface"
"""The key in a handler's `opt` that says whose envelope its errors have: "anthropic", or OpenAI's if absent."""
_TOO_LARGE, _OURS = 413, 500


def answer(request: Request[Any, Any, Any], error: Exception) -> Response[bytes]:
    """The answer for whatever was raised. Unexpected errors are logged, and say nothing of the inside."""
    request_id = of(request.scope).name
    if isinstance(error, HTTPException) and error.status_code != _TOO_LARGE:
        if error.status_code >= _OURS:
            log.warning("a request was not answered well", request_id=request_id, cause=error.detail)
        body = _spoken(request).plain(error.status_code, _said(request, error), request_id)
        return _response(msgspec.json.encode(body), error.status_code, dict(error.headers or {}))
    failure = _failure(request, error)
    body = _spoken(request).envelope(failure, request_id)
    return _response(msgspec.json.encode(body), errors.status_of(failure), errors.headers(failure))


def _spoken(request: Request[Any, Any, Any]) -> Any:
    handler = request.scope.get("route_handler")
    return anthropic_errors if handler is not None and handler.opt.get(SURFACE) == "anthropic" else errors


def _failure(request: Request[Any, Any, Any], error: Exception) -> GatewayError:
    if isinstance(error, GatewayError):
        return error
    if isinstance(error, HTTPException):
        return BodyTooLarge("The request's body is over the limit of this server.")
    if isinstance(error, DatabaseUnavailable):
        return Unavailable("The database is away; try again shortly.")
    log.error(
        "a request failed inside the gateway",
        request_id=of(request.scope).name,
        path=request.scope["path"],
        exc_info=error,
    )
    return Interrupted("The server had an error while it processed the request.", code="internal_error")


def _said(request: Request[Any, Any, Any], error: HTTPException) -> str:
    match error.status_code:
        case 404:
            return f"There is nothing at {request.method} {request.scope['path']}."
        case 405:
            return f"{request.method} is not allowed at {request.scope['path']}."
    return error.detail


def _response(body: bytes, status: int, headers: dict[str, str]) -> Response[bytes]:
    return Response(body, status_code=status, media_type=MediaType.JSON, headers=headers)
