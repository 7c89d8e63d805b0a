"""Adapters that requests wait for: each is asked for once, of the gateway whose request needs it, and comes in parts.

A request waits as long as parts come, and is then given to the engine, which refuses it if the adapter is not there:
for a while if it did not come, for good if it was checked and cannot be served.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial

import structlog

from engine.adapters.adapter_store import AdapterStore
from engine.server.gateway_link import GatewayLink
from model_files.adapter_config import AdapterRefused
from protocol.adapters import MOST_ADAPTER_BYTES, AdapterPart, WantAdapter
from protocol.frames import ProtocolError

logger = structlog.get_logger("engine.server.adapter_arrivals")

SILENCE_S = 30.0
"""So long a request waits for the next part."""
MOST_ARRIVING = 4
"""Adapters that arrive at the same time; more wait until one is there."""


@dataclass(eq=False)
class _Arrival:
    link: GatewayLink
    content: bytearray = field(default_factory=bytearray)
    total: int = -1
    heard_at: float = field(default_factory=time.monotonic)
    over: asyncio.Event = field(default_factory=asyncio.Event)


class AdapterArrivals:
    """Called in the event loop's thread. `store` None: this replica computes no adapters."""

    def __init__(self, store: AdapterStore | None, clock: Callable[[], float] = time.monotonic) -> None:
        self._store = store
        self._clock = clock
        self._arrivals: dict[str, _Arrival] = {}
        self._room = asyncio.Semaphore(MOST_ARRIVING)
        self._checks: set[asyncio.Task[None]] = set()

    def way_here(self, name: str, link: GatewayLink) -> Callable[[], Awaitable[None]] | None:
        """What waits until the adapter is here, or will not come; None if there is nothing to wait for."""
        if not name or self._store is None or self._store.knows(name):
            return None
        return partial(self._bring, name, link)

    async def _bring(self, name: str, link: GatewayLink) -> None:
        assert self._store is not None
        while not self._store.knows(name) and link.open:
            if (arrival := self._arrivals.get(name)) is None:
                async with self._room:
                    if name in self._arrivals or self._store.knows(name):
                        continue
                    arrival = self._arrivals[name] = _Arrival(link, heard_at=self._clock())
                    link.send([WantAdapter(name)])
                    await self._arrived(name, arrival)
            else:
                await self._arrived(name, arrival)
            if arrival.link is link:  # another gateway's failure is not this one's
                return

    async def _arrived(self, name: str, arrival: _Arrival) -> None:
        """Wait for its end. Whoever waits may leave: it goes on arriving for others, until nothing comes any more."""
        while not arrival.over.is_set():
            left = arrival.heard_at + SILENCE_S - self._clock()
            if left <= 0:
                logger.warning("an adapter does not come", name=name, gateway=arrival.link.gateway)
                self._end(name, arrival)
                return
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(left):
                    await arrival.over.wait()

    def take(self, part: AdapterPart, link: GatewayLink) -> None:
        """Take a part; what nobody waits for is passed over. Raises ProtocolError for one out of order or bounds."""
        arrival = self._arrivals.get(part.name)
        if arrival is None or arrival.link is not link or arrival.over.is_set():
            return
        if part.error:
            logger.warning("an adapter is not to be had", name=part.name, cause=part.error)
            self._end(part.name, arrival)
            return
        if arrival.total < 0:
            arrival.total = part.total
        end = len(arrival.content) + len(part.content)
        if part.total != arrival.total or not 0 < part.total <= MOST_ADAPTER_BYTES:
            raise ProtocolError(f"an adapter of {part.total} bytes")
        if part.offset != len(arrival.content) or end > arrival.total or not part.content:
            raise ProtocolError(f"bytes {part.offset}..{end} of an adapter of {arrival.total}")
        arrival.content += part.content
        arrival.heard_at = self._clock()
        if end == arrival.total:
            check = asyncio.create_task(self._check(part.name, arrival))
            self._checks.add(check)
            check.add_done_callback(self._checks.discard)

    async def _check(self, name: str, arrival: _Arrival) -> None:
        assert self._store is not None
        arrival.heard_at = self._clock() + SILENCE_S  # checking may take its time too
        try:
            await asyncio.to_thread(self._store.take, name, bytes(arrival.content))
        except AdapterRefused as error:
            logger.warning("an adapter was refused", name=name, cause=str(error))
            self._store.refuse(name, str(error))
        except MemoryError as error:
            logger.error("no memory for an adapter", name=name, cause=str(error))
        finally:
            self._end(name, arrival)

    def drop(self, name: str) -> None:
        """The adapter was deleted."""
        if self._store is not None:
            self._store.drop(name)

    def link_lost(self, link: GatewayLink) -> None:
        """What this gateway was sending comes no more."""
        for name, arrival in list(self._arrivals.items()):
            if arrival.link is link:
                self._end(name, arrival)

    def _end(self, name: str, arrival: _Arrival) -> None:
        if self._arrivals.get(name) is arrival:
            del self._arrivals[name]
        arrival.content = bytearray()
        arrival.over.set()
