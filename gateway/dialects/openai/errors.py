"""Failures as OpenAI's error envelope: what each of the gateway's own words is over there."""

from __future__ import annotations

import math
from http import HTTPStatus

import msgspec
from msgspec import UNSET, Struct, UnsetType

from gateway.errors import (
    BodyTooLarge,
    BodyTooSlow,
    ClientLeft,
    Conflict,
    GatewayError,
    Interrupted,
    InvalidRequest,
    ModelNotFound,
    NotAllowed,
    NotAuthenticated,
    NotFound,
    RateLimited,
    Shortage,
    TimedOut,
    Unaffordable,
    Unavailable,
    UnsupportedEncoding,
)


class ErrorBody(Struct, frozen=True):
    """The inside of the envelope."""

    message: str
    type: str
    param: str | None
    code: str | None
    insufficient_funds: Shortage | UnsetType = UNSET
    """Ours: with status 402 alone."""


class Envelope(Struct, frozen=True):
    """What every error answer holds."""

    error: ErrorBody


_KINDS: tuple[tuple[type[GatewayError], int, str], ...] = (
    (InvalidRequest, 400, "invalid_request_error"),
    (NotAuthenticated, 401, "authentication_error"),
    (Unaffordable, 402, "insufficient_quota"),
    (NotAllowed, 403, "permission_error"),
    (ModelNotFound, 404, "invalid_request_error"),
    (NotFound, 404, "invalid_request_error"),
    (Conflict, 409, "conflict_error"),
    (BodyTooSlow, 408, "invalid_request_error"),
    (BodyTooLarge, 413, "invalid_request_error"),
    (UnsupportedEncoding, 415, "invalid_request_error"),
    (ClientLeft, 499, "invalid_request_error"),
    (RateLimited, 429, "rate_limit_error"),
    (Unavailable, 503, "service_unavailable_error"),
    (TimedOut, 504, "timeout_error"),
    (Interrupted, 500, "server_error"),
)
_FIRST_SERVER_ERROR = 500


def status_of(failure: GatewayError) -> int:
    """The HTTP status of a failure."""
    return _kind(failure)[0]


def envelope(failure: GatewayError, request_id: str) -> Envelope:
    """The envelope; messages about our own failures carry the request id, for whoever reports them."""
    status, kind = _kind(failure)
    message = failure.message
    if status >= _FIRST_SERVER_ERROR:
        message = f"{message} (request id: {request_id})"
    shortage = failure.shortage if isinstance(failure, Unaffordable) else None
    return Envelope(ErrorBody(message, kind, failure.path, failure.code, UNSET if shortage is None else shortage))


def headers(failure: GatewayError) -> dict[str, str]:
    """What tells clients whether and when to try again: they would retry some of these answers, and some never."""
    if isinstance(failure, Unavailable | RateLimited):
        return {"retry-after": str(max(1, math.ceil(failure.retry_after)))}
    if isinstance(failure, Unaffordable):
        return {"x-should-retry": "false"}
    if isinstance(failure, NotAuthenticated):
        return {"www-authenticate": "Bearer"}
    if isinstance(failure, BodyTooSlow):
        return {"connection": "close"}
    return {}


def plain(status: int, message: str, request_id: str) -> Envelope:
    """The envelope of an answer that is no failure of a request, such as an unknown route."""
    if status >= _FIRST_SERVER_ERROR:
        return Envelope(ErrorBody(f"{message} (request id: {request_id})", "server_error", None, None))
    phrase = HTTPStatus(status).phrase.lower().replace(" ", "_")
    return Envelope(ErrorBody(message, "invalid_request_error", None, phrase))


def encode(body: Envelope) -> bytes:
    """The envelope as JSON."""
    return msgspec.json.encode(body)


def _kind(failure: GatewayError) -> tuple[int, str]:
    return next(((status, kind) for cls, status, kind in _KINDS if isinstance(failure, cls)), (500, "server_error"))
