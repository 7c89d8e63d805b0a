"""Answers generating requests that carry an `Idempotency-Key`, for all generating routes.

The answer is made into a recording, which the client reads, and with it all who send the same request again.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import ExitStack, asynccontextmanager
from functools import partial, wraps
from typing import Any, TypeAlias

from litestar import Request
from litestar.types import ASGIApp, Receive, Scope, Send

from gateway.endpoints.rate_limits import count_request, counting_refusals
from gateway.endpoints.request_body import read_body
from gateway.errors import AnswerNotKept, ClientLeft, RateLimited, SuspendedError
from gateway.http.authentication import project_payer
from gateway.http.sse import DISCONNECTS, ClientWatch
from gateway.idempotency.keyed_requests import MOST_READERS, KeyedRequests, KeyedRun
from gateway.idempotency.recording import Recording, RecordingOver
from gateway.idempotency.request_key import HEADER, keeps_nothing, read_key, request_digest
from gateway.request_context import public_name, request_context
from gateway.services import Gateway
from response_store.idempotency import ClaimKey, KeptAnswer, NewClaim

LIFETIME_S = 86_400
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
        self._counted = False
        """Whether the rate limits count this request already."""

    async def answer(self) -> ASGIApp:
        """The answer. Raises what keeps the request from being answered."""
        gateway, request, payer = self._gateway, self._request, self._payer
        started: list[KeyedRun] = []
        async with counting_refusals(gateway, request, payer):
            key = read_key(request.headers.getall(HEADER))
            with gateway.bodies.share(payer.tenant_id) as share:
                body = _Body(await read_body(request, gateway.services.options.client_timeout, share))
                digest = request_digest(request.method, request.scope["path"], request.headers, body.content)
                claim = NewClaim(
                    key=ClaimKey(payer.key_id, key),
                    tenant_id=payer.tenant_id,
                    project_id=payer.project_id,
                    request_id=self._context.id,
                    request_digest=digest,
                    lifetime_s=LIFETIME_S,
                )

                def start(claim: NewClaim) -> KeyedRun:
                    kept = not keeps_nothing(request, body.content)
                    run = KeyedRun(claim, self._keyed.recording(payer.tenant_id))
                    self._keyed.run(run, payer, partial(self._work, run, body), kept=kept)
                    started.append(run)
                    return run

                async with _while_connected(request):
                    found = await self._keyed.join(claim, payer, start, self._wait)
                    if started:
                        await body.gone.wait()  # then the handler counts it
        if not started and not self._counted:
            await count_request(gateway, request, payer)
        if isinstance(found, KeptAnswer):
            return self._replay(found)
        return await self._read(found, replayed=not started)

    async def _wait(self) -> None:
        """Before a request waits for one that runs elsewhere: count it; after that: is its payer still who it was?"""
        if not self._counted:
            self._counted = True
            await count_request(self._gateway, self._request, self._payer)
            return
        await self._gateway.requests.check_key(self._payer)
        payer = self._payer
        if (what := self._gateway.services.suspensions.find(payer.tenant_id, payer.project_id)) is not None:
            raise SuspendedError(what)

    def _replay(self, answer: KeptAnswer) -> ASGIApp:
        """The answer again. While it is sent its bytes count as those of a request's body. Raises RateLimited."""
        with ExitStack() as counted:
            share = counted.enter_context(self._gateway.bodies.share(self._payer.tenant_id))
            share.take(len(answer.body))
            recording = self._keyed.recording(self._payer.tenant_id)
            recording.play(answer)
            counted.callback(recording.forget)
            timeout = self._gateway.services.options.client_timeout
            return _Joined(recording, timeout, replayed=True, ended=counted.pop_all().close)

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

    async def _work(self, run: KeyedRun, body: _Body) -> bool:
        """Answer the request into the recording; whether its answer stands: it ended well, or some of it was billed."""
        try:
            return await self._answer_into(run, body)
        finally:
            body.take()

    async def _answer_into(self, run: KeyedRun, body: _Body) -> bool:
        recording, outer = run.recording, self._request.scope
        extensions: Mapping[str, Any] = outer.get("extensions") or {}
        own = {name: value for name, value in extensions.items() if name != DISCONNECTS}
        scope: Any = {**outer, "extensions": own}
        receive = _Receive(body, recording.gone)
        inner: Request[Any, Any, Any] = Request(scope, receive=receive, send=recording.send)
        app = await self._handler(inner)
        run.model = self._context.model
        task = self._gateway.requests.find(self._context.id)
        run.lane = "" if task is None else task.prepared.generation.lane
        await app(scope, receive, recording.send)
        if recording.status >= _REFUSED:
            return False
        outcome = None if task is None else task.state.outcome
        return outcome is None or outcome.status == "ok" or task is None or task.delivery.delivered > 0


class _Body:
    """A request's body, until its handler takes it; `gone` is set then."""

    def __init__(self, content: bytes) -> None:
        self.content = content
        self.gone = asyncio.Event()

    def take(self) -> bytes:
        """The content, which is not here any more."""
        content, self.content = self.content, b""
        self.gone.set()
        return content


class _Receive:
    """What the handler receives: the body, and in the end that nobody reads its answer any more."""

    def __init__(self, body: _Body, gone: asyncio.Event) -> None:
        self._body = body
        self._gone = gone

    async def __call__(self) -> Any:
        """The next message (ASGI)."""
        if not self._body.gone.is_set():
            return {"type": "http.request", "body": self._body.take(), "more_body": False}
        await self._gone.wait()
        return {"type": "http.disconnect"}


class _Joined:
    """An answer that is read from a recording. `ended` is called when it was sent, or its client has gone."""

    def __init__(
        self,
        recording: Recording,
        client_timeout: float,
        *,
        replayed: bool,
        ended: Callable[[], None] = lambda: None,
    ) -> None:
        self._recording = recording
        self._ended = ended
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
            return  # the connection breaks
        finally:
            self._ended()

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
