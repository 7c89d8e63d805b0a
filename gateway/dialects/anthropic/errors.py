"""Failures as Anthropic's error envelope. Statuses and headers are the same on every surface."""

from __future__ import annotations

from msgspec import Struct

from gateway.dialects.openai import errors
from gateway.errors import GatewayError

_KINDS = {
    400: "invalid_request_error",
    401: "authentication_error",
    402: "billing_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    504: "timeout_error",
}
_FIRST_SERVER_ERROR = 500


class ErrorBody(Struct, frozen=True):
    """The inside of the envelope."""

    type: str
    message: str


class Envelope(Struct, frozen=True, tag_field="type", tag="error"):
    """What every error answer holds."""

    error: ErrorBody
    request_id: str


def envelope(failure: GatewayError, request_id: str) -> Envelope:
    """The envelope of a failure."""
    return plain(errors.status_of(failure), failure.message, request_id)


def plain(status: int, message: str, request_id: str) -> Envelope:
    """The envelope of an answer that is no failure of a request."""
    other = "api_error" if status >= _FIRST_SERVER_ERROR else "invalid_request_error"
    return Envelope(ErrorBody(_KINDS.get(status, other), message), request_id)
