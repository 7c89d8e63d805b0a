"""Follows the events of responses in the background: one look into the database for all streams of a response.

A stream first reads by itself what is kept. Then it follows its response's feed, which looks for more as long as
anybody follows it, and hands on what it finds. Of that it remembers only what it found last: a stream that is slower
reads the rest by itself again. So waiting streams cost as many queries as one, however many there are.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Iterator
from uuid import UUID

import structlog

from gateway.errors import NotFound
from gateway.generation.running_tasks import RunningTasks
from gateway.kept_responses.background import BackgroundResponses
from gateway.kept_responses.keeper import PREFIX, ResponseKeeper
from response_store.records import RUNNING, ListedResponse
from response_store.running import Orphan
from storage.database.database import DatabaseUnavailable

log = structlog.get_logger("gateway.event_feeds")

_POLL_S, _LONGEST_POLL_S = 0.05, 0.5
_STANDING_S = 2.0
"""How often a feed without events looks whether somebody still runs the response."""


class EventFeeds:
    """The feeds of one worker; they end when it drains."""

    def __init__(self, background: BackgroundResponses, keeper: ResponseKeeper, requests: RunningTasks) -> None:
        self._background = background
        self._keeper = keeper
        self._requests = requests
        self._feeds: dict[UUID, _Feed] = {}

    @contextlib.contextmanager
    def follow(self, stored: ListedResponse, tenant_id: UUID, after: int) -> Iterator[Follower]:
        """Follow the events of a response after the one with this number. The caller has been shown the response, so it
        is its own."""
        feed = self._feeds.get(stored.id)
        if feed is None or feed.over:
            feed = self._feeds[stored.id] = _Feed(self._background, self._keeper, self._requests, stored, tenant_id)
        follower = Follower(feed, after)
        feed.join(follower, after)
        try:
            yield follower
        finally:
            if feed.leave(follower) and self._feeds.get(stored.id) is feed:
                del self._feeds[stored.id]


class _Feed:
    """Looks for a response's events while somebody follows it. `before`, `events`, `last`: what was found last, after
    which number, and up to which. `over`: nothing more will be found."""

    def __init__(
        self,
        background: BackgroundResponses,
        keeper: ResponseKeeper,
        requests: RunningTasks,
        stored: ListedResponse,
        tenant_id: UUID,
    ) -> None:
        self._background = background
        self._keeper = keeper
        self._requests = requests
        self._stored = stored
        self._tenant_id = tenant_id
        self.before, self.last = -1, -1
        self.events: list[bytes] = []
        self.over = False
        self._followers: dict[Follower, None] = {}
        self._at: int | None = None
        """After which number it looks."""
        self._joined = asyncio.Event()
        self._task = asyncio.create_task(self._run())

    def join(self, follower: Follower, after: int) -> None:
        """Look for what follows `after` too, which may be no number that there is, and at once."""
        self._followers[follower] = None
        self._at = after if self._at is None else min(self._at, after)
        self._joined.set()

    def leave(self, follower: Follower) -> bool:
        """Somebody follows no more; True if nobody does. Then it ends by itself: it may be taking the response over."""
        del self._followers[follower]
        self._joined.set()
        return not self._followers

    async def read(self, after: int) -> tuple[list[bytes], int]:
        """What is kept after this number. Raises DatabaseUnavailable."""
        return await self._background.events(self._stored, self._tenant_id, after)

    async def _run(self) -> None:
        try:
            await self._look()
        except (DatabaseUnavailable, NotFound):
            pass  # clients resume their streams
        except Exception:
            log.exception("events of a response are looked for no more", response=str(self._stored.id))
        finally:
            self.over = True
            self._wake()

    async def _look(self) -> None:
        stored, pause = self._stored, _POLL_S
        looked = asked = time.monotonic()
        while self._followers and not self._requests.draining:
            at = self._at
            assert at is not None, "somebody follows"
            events, last = await self.read(at)
            if at != self._at:
                continue  # somebody joined who knows less
            if events:
                self.before, self.events, self.last = at, events, last
                self._at, pause = last, _POLL_S
                self._wake()
                continue
            if stored.status not in RUNNING:
                return
            now = time.monotonic()
            if now - asked >= _STANDING_S:
                asked = now
                await self._background.adopt(Orphan(stored.id, self._tenant_id, stored.project_id))
            if now - looked >= _STANDING_S or pause >= _LONGEST_POLL_S:
                looked = now
                name = f"{PREFIX}{stored.id.hex}"
                stored = await self._keeper.listed(self._tenant_id, stored.project_id, name)
                if stored.status not in RUNNING:
                    continue  # its last events were written with its end
            self._joined.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._joined.wait()
            pause = min(2 * pause, _LONGEST_POLL_S)

    def _wake(self) -> None:
        for follower in self._followers:
            follower.wake()


class Follower:
    """One stream's place in a feed."""

    def __init__(self, feed: _Feed, after: int) -> None:
        self._feed = feed
        self._after = after
        self._woken = asyncio.Event()
        self._left = False

    def wake(self) -> None:
        """There is something new."""
        self._woken.set()

    def leave(self) -> None:
        """Wait no longer: nobody reads."""
        self._left = True
        self.wake()

    async def next(self, seconds: float) -> list[bytes] | None:
        """More events; none if none came for so long. None: there will be none. Raises DatabaseUnavailable."""
        feed = self._feed
        while not self._left:
            self._woken.clear()
            if feed.events and feed.before == self._after:
                self._after = feed.last
                return feed.events
            if self._after < feed.last:
                events, self._after = await feed.read(self._after)
                if events:
                    return events
            if feed.over:
                return None
            try:
                async with asyncio.timeout(seconds):
                    await self._woken.wait()
            except TimeoutError:
                return []
        return None
