"""OpenAI's error envelope.

Source: https://platform.openai.com/docs/guides/error-codes. `insufficient_funds` and `cache_miss` are ours.
"""

from __future__ import annotations

from http import HTTPStatus

import msgspec
from msgspec import UNSET, Struct, UnsetType

from gateway.errors import GatewayError, MissPrice, NotCached, Shortage, Unaffordable

_TYPES = {
    401: "authentication_error",
    402: "insufficient_quota",
    403: "permission_error",
    409: "conflict_error",
    429: "rate_limit_error",
    503: "service_unavailable_error",
    504: "timeout_error",
}
"""HTTP status -> `type`; any other is `invalid_request_error`, or `server_error` from 500 on."""
_FIRST_SERVER_ERROR = 500


class ErrorBody(Struct, frozen=True):
    """The inside of the envelope. `param`: the field or parameter that is wrong. `insufficient_funds` comes only with
    status 402, `cache_miss` only with 412."""

    message: str
    type: str
    param: str | None
    code: str | None
    insufficient_funds: Shortage | UnsetType = UNSET
    cache_miss: MissPrice | UnsetType = UNSET


class Envelope(Struct, frozen=True):
    """The body of every error response."""

    error: ErrorBody


def status_of(status: int) -> int:
    """The HTTP status of an error, which OpenAI has no other numbers for."""
    return status


def envelope(failure: GatewayError, request_id: str) -> Envelope:
    """The envelope of a failure."""
    shortage = failure.shortage if isinstance(failure, Unaffordable) else None
    miss = MissPrice(failure.tokens, failure.cost, failure.currency) if isinstance(failure, NotCached) else UNSET
    kind = _TYPES.get(failure.status) or _default_type(failure.status)
    message = _message(failure.status, failure.message, request_id)
    return Envelope(
        ErrorBody(
            message,
            kind,
            _param(failure.path),
            failure.code,
            UNSET if shortage is None else shortage,
            miss,
        )
    )


def plain(status: int, message: str, request_id: str) -> Envelope:
    """The envelope of an HTTP error that is not a GatewayError, such as an unknown route."""
    code = None if status >= _FIRST_SERVER_ERROR else HTTPStatus(status).phrase.lower().replace(" ", "_")
    return Envelope(ErrorBody(_message(status, message, request_id), _default_type(status), None, code))


def encode(body: Envelope) -> bytes:
    """The envelope as JSON."""
    return msgspec.json.encode(body)


def _param(path: str | None) -> str | None:
    """A field as OpenAI names it: without the body that it is in."""
    return None if path == "$" or path is None else path.removeprefix("$.")


def _default_type(status: int) -> str:
    return "server_error" if status >= _FIRST_SERVER_ERROR else "invalid_request_error"


def _message(status: int, message: str, request_id: str) -> str:
    """A server error's message ends with the request id, for the report to whoever runs the server."""
    return f"{message} (request id: {request_id})" if status >= _FIRST_SERVER_ERROR else message
