"""The errors that end a request. A dialect makes its vendor's error body of them.

Messages are for the client: they name the field (`path`, a JSON path into the request or a query parameter) and the
limit, and never hold prompts, secrets or internals.
"""

from __future__ import annotations

from typing import Literal

from msgspec import Struct


class GatewayError(Exception):
    """Base of all errors that a client is told about.

    `status` is the HTTP status, the same in every dialect. `code` is for programs and never changes. `path` names the
    field or parameter that is wrong, if one is.
    """

    status = 500
    code: str | None = None

    def __init__(self, message: str, *, path: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.path = path
        if code is not None:
            self.code = code


class InvalidRequest(GatewayError):
    """The request is wrong; the same request will fail again."""

    status = 400


class InvalidField(InvalidRequest):
    """A field or query parameter is wrong. The message is its path and the problem."""

    code = "invalid_value"

    def __init__(self, path: str, problem: str, *, code: str | None = None) -> None:
        super().__init__(f"{path}: {problem}.", path=path, code=code)


class ContextExceeded(InvalidRequest):
    """The prompt leaves no room for an answer in the model's context. Agents know this error by its words, and shorten
    the conversation."""

    code = "context_length_exceeded"

    def __init__(
        self, path: str, given: str, *, prompt_tokens: int, context_tokens: int, is_lower_bound: bool = False
    ) -> None:
        """`given`: what the client calls its prompt. `is_lower_bound`: nobody counted more than `prompt_tokens`.
        The code is in the message too, the only place where LangChain looks for it."""
        counted = f"at least {prompt_tokens} tokens" if is_lower_bound else f"{prompt_tokens} tokens"
        no_room = ", which leaves no room for an answer" if prompt_tokens == context_tokens else ""
        super().__init__(
            f"This model's maximum context length is {context_tokens} tokens. However, your {given} resulted in "
            f"{counted}{no_room}. Please reduce the length of the {given} ({self.code}).",
            path=path,
        )
        self.prompt_tokens = prompt_tokens
        self.most_tokens = min(context_tokens, prompt_tokens - 1)
        """A length that is not too long: an answer needs room for a token."""


class UnsupportedThread(InvalidField):
    """The request names a thread of messages, which this service does not keep. Clients that look for this code go on
    with the whole conversation. `unsupported`: what they are told of."""

    code = "thread_unsupported_request"
    unsupported = ("thread",)


class CostAboveMaximum(InvalidRequest):
    """The request could cost more than its own `max_cost`. Nothing was computed, held or billed."""

    code = "max_cost_exceeded"


class TakenOverTooOften(InvalidRequest):
    """So many workers died while they ran this response in the background that no other one tries."""

    code = "taken_over_too_often"


class NotAuthenticated(GatewayError):
    """There is no key, or not a valid one."""

    status = 401
    code = "invalid_api_key"


class NotAllowed(GatewayError):
    """The key is valid, but may not do this."""

    status = 403
    code = "not_allowed"


class AddressRefused(NotAllowed):
    """The key is valid, but may not be used from the client's address."""

    code = "address_not_allowed"


class SuspendedError(NotAllowed):
    """The tenant or project of the key is suspended. The code is `tenant_suspended` or `project_suspended`."""

    def __init__(self, what: Literal["tenant", "project"]) -> None:
        message = f"This {what} is suspended; ask whoever runs this service."
        if what == "tenant":
            super().__init__(message, code="tenant_suspended")
        else:
            super().__init__(message, code="project_suspended")


class ModelNotFound(GatewayError):
    """No served model has this name."""

    status = 404
    code = "model_not_found"


class NotFound(GatewayError):
    """The object does not exist, or belongs to another tenant."""

    status = 404
    code = "not_found"


class Conflict(GatewayError):
    """The object is in a state that does not allow this."""

    status = 409
    code = "conflict"


class KeyReused(GatewayError):
    """The idempotency key stands for another request. No official client tries again after this status."""

    status = 422
    code = "idempotency_key_reused"

    def __init__(self, header: str) -> None:
        message = f"{header}: this key was sent with another request within 24 hours; send a new key for a new request."
        super().__init__(message, path=header)


class AnswerNotKept(Conflict):
    """The request of an idempotency key has ended, and its answer was not kept. It is paid for and not run again."""

    code = "idempotent_answer_not_kept"

    def __init__(self, header: str, request: str) -> None:
        super().__init__(
            f"{header}: the request of this key, {request}, has ended and was billed as its usage says. Its answer is "
            "not kept: its project or the request says so, or it is too long. Send a new key to run it again.",
            path=header,
        )


class NotCached(GatewayError):
    """The request was to run only if its prompt is cached, and it is not: nothing was done for it. `cost` is a decimal
    string, what its prompt's `tokens` would cost now."""

    status = 412
    code = "not_cached"

    def __init__(self, message: str, *, cost: str, currency: str, tokens: int) -> None:
        super().__init__(message)
        self.cost = cost
        self.currency = currency
        self.tokens = tokens


class BodyTooLarge(GatewayError):
    """The body is over the limit."""

    status = 413
    code = "request_too_large"


class BodyTooSlow(GatewayError):
    """The body did not arrive in time."""

    status = 408
    code = "request_timeout"


class UnsupportedEncoding(GatewayError):
    """The body has a Content-Encoding that is not supported."""

    status = 415
    code = "unsupported_encoding"


class ClientLeft(GatewayError):
    """The client disconnected before its request had arrived, or before it ran; nobody reads the response."""

    status = 499
    code = "client_left"


class Shortage(Struct, frozen=True):
    """Which balance or budget is too low, and what would fit. Amounts are decimal strings in `currency`.

    `scope`: tenant, project, key or tag. `budget` is None if the balance is too low. `resets_at` (RFC 3339) is when the
    budget's window ends, None if never.
    """

    scope: str
    budget: str | None
    needed: str
    affordable: str
    currency: str
    affordable_max_tokens: int
    resets_at: str | None
    elsewhere: str
    """What the tenant has for other models or projects only."""


class Unaffordable(GatewayError):
    """The upper bound of the request's cost is more than the balance or a budget has left."""

    status = 402
    code = "insufficient_quota"

    def __init__(self, message: str, shortage: Shortage | None = None) -> None:
        super().__init__(message)
        self.shortage = shortage


class MissPrice(Struct, frozen=True):
    """What it would cost now to compute a prompt of so many tokens that is not cached; `cost` is a decimal string."""

    tokens: int
    cost: str
    currency: str


class RetryableError(GatewayError):
    """The same request may succeed after `retry_after` seconds."""

    def __init__(self, message: str, *, retry_after: float = 1.0, code: str | None = None) -> None:
        super().__init__(message, code=code)
        self.retry_after = retry_after


class Unavailable(RetryableError):
    """The server cannot do this now: no healthy replica, no database, or it is shutting down."""

    status = 503
    code = "service_unavailable"


class RateLimited(RetryableError):
    """The client's own limit or share is used up."""

    status = 429
    code = "rate_limit_exceeded"


class TimedOut(GatewayError):
    """The request's own time limit passed."""

    status = 504
    code = "request_timeout"


class Interrupted(GatewayError):
    """The replica or this gateway failed while the request ran."""

    status = 500
    code = "interrupted"
