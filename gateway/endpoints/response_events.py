"""The events of a response in the background, as a stream that anybody of its project may resume on any worker."""

from __future__ import annotations

import asyncio
from uuid import UUID

from litestar.types import Receive, Scope, Send

from gateway.dialects.openai.common_response import KEEP_ALIVE
from gateway.errors import NotFound
from gateway.http.sse import HEADERS, ClientWatch
from gateway.kept_responses.event_feeds import Follower
from gateway.services import Gateway
from response_store.records import RUNNING
from storage.database.database import DatabaseUnavailable


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
        self._follower: Follower | None = None

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
        if self._follower is not None:
            self._follower.leave()

    async def _send_all(self, send: Send) -> None:
        background, feeds = self._gateway.background_responses, self._gateway.event_feeds
        assert background is not None, "the response was kept"
        assert feeds is not None, "the response was kept"
        stored = await self._gateway.response_keeper.listed(self._tenant, self._project, self._name)
        while not (self._gone or self._gateway.requests.draining):
            events, self._after = await background.events(stored, self._tenant, self._after)
            if not events:
                break
            await self._send(send, b"".join(events))
        if stored.status in RUNNING:
            with feeds.follow(stored, self._tenant, self._after) as self._follower:
                await self._send_more(self._follower, send)
        await self._send(send, b"", more=False)

    async def _send_more(self, follower: Follower, send: Send) -> None:
        while not self._gone and (events := await follower.next(self._gateway.services.options.keep_alive)) is not None:
            await self._send(send, b"".join(events) or KEEP_ALIVE)

    async def _send(self, send: Send, body: bytes, *, more: bool = True) -> None:
        async with asyncio.timeout(self._gateway.services.options.client_timeout):
            await send({"type": "http.response.body", "body": body, "more_body": more})
