"""The events of a response in the background, as a stream that anybody of its project may resume on any worker."""

from __future__ import annotations

import asyncio
import time
from uuid import UUID

from litestar.types import Receive, Scope, Send

from gateway.dialects.openai.common_response import KEEP_ALIVE
from gateway.errors import NotFound
from gateway.http.sse import HEADERS, ClientWatch
from gateway.services import Gateway
from response_store.records import RUNNING
from response_store.running import Orphan
from storage.database.database import DatabaseUnavailable

_POLL_S, _LONGEST_POLL_S = 0.05, 0.5
_STANDING_S = 2.0
"""How often a stream without events looks whether somebody still runs the response."""


class ResponseEvents:
    """Sends the events after the one with the number `after`, until the response ends.

    A stream that ends before its response does, since this worker stops or the database is away, is resumed by its
    client.
    """

    def __init__(self, gateway: Gateway, tenant_id: UUID, project_id: UUID, name: str, after: int = -1) -> None:
        self._gateway = gateway
        self._tenant = tenant_id
        self._project = project_id
        self._name = name
        self._after = after
        self._gone = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send them."""
        watch = ClientWatch(scope, receive, self._leave)
        try:
            await send({"type": "http.response.start", "status": 200, "headers": list(HEADERS)})
            await self._send_all(send)
        except (OSError, TimeoutError):
            return  # nobody reads
        except (DatabaseUnavailable, NotFound):
            await self._send(send, b"", more=False)
        finally:
            watch.stop()

    def _leave(self) -> None:
        self._gone = True

    async def _send_all(self, send: Send) -> None:
        background, options = self._gateway.background_responses, self._gateway.services.options
        assert background is not None, "the response was kept"
        stored = await self._gateway.response_keeper.listed(self._tenant, self._project, self._name)
        pause, looked, sent = _POLL_S, time.monotonic(), time.monotonic()
        while not (self._gone or self._gateway.requests.draining):
            events, self._after = await background.events(stored, self._tenant, self._after)
            now = time.monotonic()
            if events:
                await self._send(send, b"".join(events))
                pause, sent = _POLL_S, now
                continue
            if stored.status not in RUNNING:
                break
            if now - looked >= _STANDING_S or pause >= _LONGEST_POLL_S:
                looked = now
                await background.adopt(Orphan(stored.id, self._tenant, self._project))
                stored = await self._gateway.response_keeper.listed(self._tenant, self._project, self._name)
                if stored.status not in RUNNING:
                    continue  # its last events were written with its end
            if now - sent >= options.keep_alive:
                await self._send(send, KEEP_ALIVE)
                sent = now
            await asyncio.sleep(pause)
            pause = min(2 * pause, _LONGEST_POLL_S)
        await self._send(send, b"", more=False)

    async def _send(self, send: Send, body: bytes, *, more: bool = True) -> None:
        async with asyncio.timeout(self._gateway.services.options.client_timeout):
            await send({"type": "http.response.body", "body": body, "more_body": more})
