"""Why a request is not answered, in the gateway's own words; a dialect makes its error envelope of them.

Messages are written for the client: they name the field (`path`, a JSON path into the request) and the numbers, and
never hold prompts, secrets or the inside of the house.
"""

from __future__ import annotations

from msgspec import Struct


class GatewayError(Exception):
    """Base of everything that ends a request other than well."""

    code: str | None = None

    def __init__(self, message: str, *, path: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.path = path
        if code is not None:
            self.code = code


class InvalidRequest(GatewayError):
    """The request itself is wrong; sending it again changes nothing."""


class NotAuthenticated(GatewayError):
    """No key, or none that we know."""

    code = "invalid_api_key"


class NotAllowed(GatewayError):
    """The key is good, but not for this."""

    code = "not_allowed"


class ModelNotFound(GatewayError):
    """No served model has this name."""

    code = "model_not_found"


class NotFound(GatewayError):
    """There is no such thing, or it is another tenant's."""

    code = "not_found"


class Conflict(GatewayError):
    """The thing is there, but not in a state for this."""

    code = "conflict"


class BodyTooLarge(GatewayError):
    """The body is over the limit."""

    code = "request_too_large"


class BodyTooSlow(GatewayError):
    """The body did not come in time."""

    code = "request_timeout"


class UnsupportedEncoding(GatewayError):
    """The body is compressed, or coded in another way that we do not undo."""

    code = "unsupported_encoding"


class ClientLeft(GatewayError):
    """The connection ended before the request had come whole: nobody reads the answer."""

    code = "client_left"


class Shortage(Struct, frozen=True):
    """Whose money is short, and what would fit. Amounts are decimal strings in `currency`.

    `scope`: tenant, project, key or tag. `budget` is None where it is the balance that is short; else its window ends
    at `resets_at` (RFC 3339), unless it never does.
    """

    scope: str
    budget: str | None
    needed: str
    affordable: str
    currency: str
    affordable_max_tokens: int
    resets_at: str | None
    elsewhere: str
    """What the tenant has beside that, for other models or projects only."""


class Unaffordable(GatewayError):
    """The request's upper bound does not fit into what the balance, or a budget, has left."""

    code = "insufficient_quota"

    def __init__(self, message: str, shortage: Shortage | None = None) -> None:
        super().__init__(message)
        self.shortage = shortage


class Unavailable(GatewayError):
    """We cannot, for now: no healthy replica, no database, draining. Worth trying again after `retry_after` seconds."""

    code = "service_unavailable"

    def __init__(self, message: str, *, retry_after: float = 1.0, code: str | None = None) -> None:
        super().__init__(message, code=code)
        self.retry_after = retry_after


class RateLimited(GatewayError):
    """The client's own limit or share is used up. Worth trying again after `retry_after` seconds."""

    code = "rate_limit_exceeded"

    def __init__(self, message: str, *, retry_after: float = 1.0, code: str | None = None) -> None:
        super().__init__(message, code=code)
        self.retry_after = retry_after


class TimedOut(GatewayError):
    """The request's own time limit passed."""

    code = "request_timeout"


class Interrupted(GatewayError):
    """The replica, or this gateway, failed while the request ran."""

    code = "interrupted"
