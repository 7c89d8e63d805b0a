"""Runs a line of a batch as what it is: a request to the route that it names, of the key that ordered the batch.

The route's own handler reads, limits, holds, runs and answers it; there is only no client. Its id and its lane are the
batch's, and it ends early when the batch is given up.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Mapping
from typing import Any
from uuid import UUID

from litestar import Request
from litestar.handlers import HTTPRouteHandler
from litestar.types import Message
from msgspec import Struct

from batch_store.records import BatchProblem
from gateway.admission.prepared_request import Payer
from gateway.batches.batch_notes import LEAKED, NOT_KEPT
from gateway.dialects.anthropic.messages_request import VERSIONS
from gateway.errors import ClientLeft, GatewayError, Interrupted, NotAllowed, NotAuthenticated, Unavailable
from gateway.generation.attempts import MOST_ATTEMPTS
from gateway.http.authentication import check_allowed
from gateway.http.policies import policy_of
from gateway.http.responses import VERSION_HEADER, error_response
from gateway.request_context import public_name, request_context
from storage.database.database import DatabaseUnavailable
from tenancy.authenticator import AuthenticationFailed, Authenticator, KeyEnd

_OK = 200
_RUNS = 2**28


class LineAnswer(Struct, frozen=True):
    """How a line was answered. `failure`: why it was not run, or failed. `stop`: why no further line may be run either;
    `key_end`: how the key ended that asks, though it goes on."""

    status: int
    body: bytes
    request: str
    failure: GatewayError | None = None
    stop: BatchProblem | None = None
    key_end: KeyEnd | None = None


class LineRequests:
    """Runs lines. `handlers` are those of the routes, by path: the application sets them. `keeps_content`: whether a
    project lets anything of its content be kept."""

    def __init__(self, authenticator: Authenticator, keeps_content: Callable[[Payer], Awaitable[bool]]) -> None:
        self.handlers: Mapping[str, HTTPRouteHandler] = {}
        self._authenticator = authenticator
        self._keeps_content = keeps_content

    async def answer(
        self, key: str, path: str, body: bytes, request_id: UUID, gone: asyncio.Event, *, billed: bool = False
    ) -> LineAnswer:
        """The answer to a request with this body. `key`: the public id of who asks; when `gone` is set nobody waits for
        the answer any more. `billed`: it is run again to have its answer, and what this takes is recorded as an attempt
        that is billed to nobody. Raises nothing but CancelledError."""
        handler = self.handlers[path]
        messages: list[Message] = []

        async def send(message: Message) -> None:
            messages.append(message)

        scope = _scope(path, len(body), handler)
        context = request_context(scope)
        context.id, context.lane = request_id, "batch"
        if billed:  # another number than any run before it
            context.first_attempt = 1 + MOST_ATTEMPTS * (1 + secrets.randbelow(_RUNS))
        request: Request[Any, Any, Any] = Request(scope, receive=_Receive(body, gone), send=send)
        key_end: KeyEnd | None = None
        try:
            context.principal, key_end = await self._authenticator.holder(key)
            check_allowed(context.principal, policy_of(handler), path)
            if not await self._keeps_content(Payer.of(context.principal)):
                return _failed(request, NotAllowed(NOT_KEPT.message, code=NOT_KEPT.code), stop=NOT_KEPT)
            app = await handler.fn(request)
            await app(scope, request.receive, send)
        except AuthenticationFailed:
            return _failed(request, NotAuthenticated(LEAKED.message), stop=LEAKED)
        except DatabaseUnavailable:
            return _failed(request, Unavailable("The database is unavailable."))
        except Exception as error:
            return _failed(request, error, key_end=key_end)
        status = next(message["status"] for message in messages if message["type"] == "http.response.start")
        content = b"".join(message.get("body", b"") for message in messages if message["type"] == "http.response.body")
        left = None if status == _OK else ClientLeft("Nobody waits for this line.")
        return LineAnswer(status, content, public_name(request_id), left, key_end=key_end)


class _Receive:
    """What the handler receives: the body, and in the end that nobody waits."""

    def __init__(self, body: bytes, gone: asyncio.Event) -> None:
        self._body: bytes | None = body
        self._gone = gone

    async def __call__(self) -> Any:
        if self._body is not None:
            body, self._body = self._body, None
            return {"type": "http.request", "body": body, "more_body": False}
        await self._gone.wait()
        return {"type": "http.disconnect"}


def _failed(
    request: Request[Any, Any, Any],
    error: Exception,
    *,
    stop: BatchProblem | None = None,
    key_end: KeyEnd | None = None,
) -> LineAnswer:
    response = error_response(request, error)
    failure = error if isinstance(error, GatewayError) else Interrupted("The gateway failed while it ran the request.")
    name = request_context(request.scope).name
    return LineAnswer(response.status_code or failure.status, response.content, name, failure, stop, key_end)


def _scope(path: str, size: int, handler: HTTPRouteHandler) -> Any:
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", str(size).encode()),
        (VERSION_HEADER.encode(), VERSIONS[0].encode()),
    ]
    return {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "scheme": "http",
        "method": "POST",
        "path": path,
        "path_template": path,
        "path_params": {},
        "raw_path": path.encode(),
        "root_path": "",
        "query_string": b"",
        "headers": headers,
        "client": None,
        "server": None,
        "extensions": {},
        "state": {},
        "route_handler": handler,
    }
