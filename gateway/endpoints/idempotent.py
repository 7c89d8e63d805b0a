"""Answers generating requests that carry an `Idempotency-Key`, for all generating routes.

The answer is made into a recording, which the client reads, and with it all who send the same request again.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from functools import partial, wraps
from typing import Any, TypeAlias

from litestar import Request
from litestar.types import ASGIApp, Receive, Scope, Send

from gateway.endpoints.rate_limits import count_request, counting_refusals
from gateway.endpoints.request_body import read_body
from gateway.errors import AnswerNotKept, ClientLeft, RateLimited
from gateway.http.authentication import project_payer
from gateway.http.sse import DISCONNECTS, ClientWatch
from gateway.idempotency.keyed_requests import KeyedRequests, KeyedRun
from gateway.idempotency.recording import Recording, RecordingOver
from gateway.idempotency.request_key import HEADER, keeps_nothing, read_key, request_digest
from gateway.request_context import public_name, request_context
from gateway.services import Gateway
from response_store.idempotency import ClaimKey, KeptAnswer, NewClaim

LIFETIME_S = 86_400
MOST_READERS = 16
"""Of one running answer at once."""
REPLAYED = (b"idempotent-replayed", b"true")
_REFUSED = 300
Handler: TypeAlias = Callable[[Request[Any, Any, Any]], Awaitable[ASGIApp]]


def idempotent(gateway: Gateway) -> Callable[[Handler], Handler]:
    """Lets a generating handler answer requests with an idempotency key."""

    def decorate(handler: Handler) -> Handler:
        @wraps(handler)
        async def answer(request: Request[Any, Any, Any]) -> ASGIApp:
            keyed = gateway.keyed_requests
            if keyed is None or HEADER not in request.headers:
                return await handler(request)
            return await _KeyedAnswer(gateway, keyed, request, handler).answer()

        return answer

    return decorate


class _KeyedAnswer:
    """One HTTP request with a key."""

    def __init__(
        self, gateway: Gateway, keyed: KeyedRequests, request: Request[Any, Any, Any], handler: Handler
    ) -> None:
        self._gateway = gateway
        self._keyed = keyed
        self._request = request
        self._handler = handler
        self._payer = project_payer(request.scope)
        self._context = request_context(request.scope)

    async def answer(self) -> ASGIApp:
        """The answer. Raises what keeps the request from being answered."""
        gateway, request, payer = self._gateway, self._request, self._payer
        started: list[KeyedRun] = []
        async with counting_refusals(gateway, request, payer):
            key = read_key(request.headers.getall(HEADER))
            with gateway.bodies.share(payer.tenant_id) as share:
                body = await read_body(request, gateway.services.options.client_timeout, share)
            digest = request_digest(request.method, request.scope["path"], request.headers, body)
            claim = NewClaim(
                key=ClaimKey(payer.key_id, key),
                tenant_id=payer.tenant_id,
                project_id=payer.project_id,
                request_id=self._context.id,
                request_digest=digest,
                lifetime_s=LIFETIME_S,
            )

            def start(claim: NewClaim) -> KeyedRun:
                run = KeyedRun(claim, self._keyed.recording())
                self._keyed.run(run, payer, partial(self._work, run, body), kept=not keeps_nothing(request, body))
                started.append(run)
                return run

            found = await self._joined(claim, start)
        if not started:
            await count_request(gateway, request, payer)
        if isinstance(found, KeptAnswer):
            recording = self._keyed.recording()
            recording.play(found)
            recording.forget()
            return _Joined(recording, gateway.services.options.client_timeout, replayed=True)
        return await self._read(found, replayed=not started)

    async def _joined(self, claim: NewClaim, start: Callable[[NewClaim], KeyedRun]) -> KeyedRun | KeptAnswer:
        async with _while_connected(self._request):
            return await self._keyed.join(claim, self._payer, start)

    async def _read(self, run: KeyedRun, *, replayed: bool) -> ASGIApp:
        recording = run.recording
        if replayed and recording.readers >= MOST_READERS:
            raise RateLimited("Too many requests read the answer of this idempotency key at once.")
        with recording.present():
            async with _while_connected(self._request):
                await recording.begun.wait()
        if not recording.status:
            assert recording.failure is not None, "it failed before its status was known"
            raise recording.failure
        if replayed:
            self._payer.check(run.model)
        if not recording.whole:
            raise AnswerNotKept(HEADER, public_name(run.claim.request_id))
        return _Joined(recording, self._gateway.services.options.client_timeout, replayed=replayed)

    async def _work(self, run: KeyedRun, body: bytes) -> bool:
        """Answer the request into the recording; whether its answer stands: it ended well, or some of it was billed."""
        recording, outer = run.recording, self._request.scope
        extensions: Mapping[str, Any] = outer.get("extensions") or {}
        own = {name: value for name, value in extensions.items() if name != DISCONNECTS}
        scope: Any = {**outer, "extensions": own}
        receive = _Receive(body, recording.gone)
        inner: Request[Any, Any, Any] = Request(scope, receive=receive, send=recording.send)
        app = await self._handler(inner)
        run.model = self._context.model
        task = self._gateway.requests.find(self._context.id)
        await app(scope, receive, recording.send)
        if recording.status >= _REFUSED:
            return False
        outcome = None if task is None else task.state.outcome
        return outcome is None or outcome.status == "ok" or task is None or task.delivery.delivered > 0


class _Receive:
    """What the handler receives: the body, and in the end that nobody reads its answer any more."""

    def __init__(self, body: bytes, gone: asyncio.Event) -> None:
        self._body: bytes | None = body
        self._gone = gone

    async def __call__(self) -> Any:
        """The next message (ASGI)."""
        if (body := self._body) is not None:
            self._body = None
            return {"type": "http.request", "body": body, "more_body": False}
        await self._gone.wait()
        return {"type": "http.disconnect"}


class _Joined:
    """An answer that is read from a recording."""

    def __init__(self, recording: Recording, client_timeout: float, *, replayed: bool) -> None:
        self._recording = recording
        self._client_timeout = client_timeout
        self._replayed = replayed

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send all of it."""
        recording = self._recording
        headers = [*recording.headers, *([REPLAYED] if self._replayed else [])]
        try:
            reading = recording.reading()
            with reading as reader:
                watch = ClientWatch(scope, receive, reader.leave)
                try:
                    await self._send(
                        send, {"type": "http.response.start", "status": recording.status, "headers": headers}
                    )
                    while (chunk := await reader.next()) is not None:
                        await self._send(send, {"type": "http.response.body", "body": chunk, "more_body": True})
                    if recording.failure is not None and not reader.left:
                        raise recording.failure  # the connection breaks: the client must not take it for whole
                    if not reader.left:
                        await self._send(send, {"type": "http.response.body", "body": b"", "more_body": False})
                finally:
                    watch.stop()
        except (OSError, TimeoutError, RecordingOver):
            return

    async def _send(self, send: Send, message: Any) -> None:
        async with asyncio.timeout(self._client_timeout):
            await send(message)


@asynccontextmanager
async def _while_connected(request: Request[Any, Any, Any]) -> AsyncIterator[None]:
    """Stop waiting when the client has gone. Raises ClientLeft."""
    this, left = asyncio.current_task(), False
    assert this is not None, "a request runs in a task"

    def gone() -> None:
        nonlocal left
        left = True
        this.cancel()

    watch = ClientWatch(request.scope, request.receive, gone)
    try:
        yield
    except asyncio.CancelledError:
        if not left or this.uncancel():
            raise
        raise ClientLeft("The client disconnected before its request was answered.") from None
    finally:
        watch.stop()
