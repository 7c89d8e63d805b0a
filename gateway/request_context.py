"""What the gateway knows about an HTTP request beside its content: its id, who sent it, for which model."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import cast
from uuid import UUID

from litestar.types import Scope
from msgspec.structs import replace
from uuid_utils.compat import uuid7

from gateway.generation_request import GenerationRequest
from protocol.requests import Lane
from storage.database.public_ids import public_id
from tenancy.rights.principals import Principal
from waterfall.marks import Marks

_KEY = "turnpike"


def public_name(request_id: UUID) -> str:
    """A request's id as clients and logs see it."""
    return public_id("request", request_id)


class RequestContext:
    """One HTTP request. Authentication sets `principal`; a generating endpoint sets `model`, and `limit_headers` where
    limits apply: they go with whatever is answered. `address` is the client's, as `gateway.http.client_address` knows
    it. `marks`: what has ended when, of what is done for it. `refusal`: code and message, where an error answers it
    instead of its being run. `error`: code and field of the error that answers it, whatever it is. `lane`: the one that
    it is run in, whatever its body says; `first_attempt`: as in `GenerationRequest`."""

    __slots__ = (
        *("address", "error", "first_attempt", "id", "lane", "limit_headers", "marks", "model", "principal", "refusal"),
        "started",
    )

    def __init__(self) -> None:
        self.id: UUID = uuid7()
        self.address = ""
        self.lane: Lane | None = None
        self.first_attempt = 1
        self.limit_headers: Sequence[tuple[bytes, bytes]] = ()
        self.marks = Marks()
        self.model = ""
        self.principal: Principal | None = None
        self.refusal: tuple[str, str] | None = None
        self.error: tuple[str, str | None] | None = None
        self.started = time.monotonic()

    @property
    def name(self) -> str:
        """The id as clients see it."""
        return public_name(self.id)

    def as_it_is_run(self, generation: GenerationRequest) -> GenerationRequest:
        """What is to be generated, in the lane that the request is run in and from its first attempt on."""
        if self.lane is None:
            return generation
        return replace(generation, lane=self.lane, first_attempt=self.first_attempt)

    @property
    def authenticated_principal(self) -> Principal:
        """The principal, on a route that requires one."""
        assert self.principal is not None, "the route is not authenticated"
        return self.principal


def request_context(scope: Scope) -> RequestContext:
    """The request's context, which is kept in the ASGI scope's state and made on the first call."""
    state = cast("dict[str, RequestContext]", scope.setdefault("state", {}))
    context = state.get(_KEY)
    if context is None:
        context = state[_KEY] = RequestContext()
    return context
