"""Anthropic's error envelope.

Source: https://docs.anthropic.com/en/api/errors.
"""

from __future__ import annotations

from msgspec import UNSET, Struct, UnsetType
from msgspec.structs import replace

from gateway.errors import (
    ContextExceeded,
    GatewayError,
    MissPrice,
    NotCached,
    Shortage,
    Unaffordable,
    UnsupportedThread,
)

_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    402: "billing_error",
    403: "permission_error",
    404: "not_found_error",
    408: "timeout_error",
    409: "conflict_error",
    413: "request_too_large",
    429: "rate_limit_error",
    504: "timeout_error",
    529: "overloaded_error",
}
"""HTTP status -> `type`; any other is `invalid_request_error`, or `api_error` from 500 on."""
_FIRST_SERVER_ERROR = 500
_STATUSES = {503: 529}
"""Statuses that Anthropic has another number for."""


class Details(Struct, frozen=True):
    """What a program can tell an error by. `path`, the field that is wrong, is ours. `unsupported` comes with the code
    `thread_unsupported_request`."""

    error_code: str
    path: str | UnsetType = UNSET
    unsupported: tuple[str, ...] | UnsetType = UNSET


class ErrorBody(Struct, frozen=True):
    """The inside of the envelope. `cache_miss`, which comes only with status 412, and `insufficient_funds`, only with
    402, are ours."""

    type: str
    message: str
    details: Details | UnsetType = UNSET
    insufficient_funds: Shortage | UnsetType = UNSET
    cache_miss: MissPrice | UnsetType = UNSET


class Envelope(Struct, frozen=True, tag_field="type", tag="error"):
    """The body of every error response."""

    error: ErrorBody
    request_id: str


def status_of(status: int) -> int:
    """The HTTP status of an error whose status is this in other dialects."""
    return _STATUSES.get(status, status)


def envelope(failure: GatewayError, request_id: str) -> Envelope:
    """The envelope of a failure."""
    message = _too_long(failure) if isinstance(failure, ContextExceeded) else failure.message
    body = plain(status_of(failure.status), message, request_id)
    if failure.code is not None:
        unsupported = failure.unsupported if isinstance(failure, UnsupportedThread) else UNSET
        details = Details(failure.code, UNSET if failure.path is None else failure.path, unsupported)
        body = replace(body, error=replace(body.error, details=details))
    if isinstance(failure, Unaffordable) and failure.shortage is not None:
        return replace(body, error=replace(body.error, insufficient_funds=failure.shortage))
    if isinstance(failure, NotCached):
        price = MissPrice(failure.tokens, failure.cost, failure.currency)
        return replace(body, error=replace(body.error, cache_miss=price))
    return body


def _too_long(failure: ContextExceeded) -> str:
    """Anthropic's words to the letter: agents compare the whole message."""
    return f"prompt is too long: {failure.prompt_tokens} tokens > {failure.most_tokens} maximum"


def plain(status: int, message: str, request_id: str) -> Envelope:
    """The envelope of an HTTP error that is not a GatewayError, such as an unknown route."""
    default = "api_error" if status >= _FIRST_SERVER_ERROR else "invalid_request_error"
    return Envelope(ErrorBody(_TYPES.get(status, default), message), request_id)
