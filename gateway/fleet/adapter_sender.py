"""Sends replicas the adapters that they ask for, in parts, as quickly as they take them.

Only adapters are sent that a request of this worker has named: whose rights were checked then. A replica that asks for
another gets an error, and refuses its request for a while.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable
from typing import TypeAlias

import structlog

from gateway.fleet.replica_link import ReplicaLink
from protocol.adapters import PART_BYTES, AdapterPart

log = structlog.get_logger("gateway.adapter_sender")

AdapterContent: TypeAlias = Callable[[], AsyncIterator[bytes]]
"""Gives an adapter's content piece by piece."""
MOST_KNOWN = 10_000
_MOST_SENT = 4
"""Adapters that are sent at the same time by one worker."""


class AdapterSender:
    """The adapters that requests of this worker have named, by their names to replicas, and their way to replicas."""

    def __init__(self) -> None:
        self._known: OrderedDict[str, tuple[int, AdapterContent]] = OrderedDict()
        self._room = asyncio.Semaphore(_MOST_SENT)
        self._tasks: set[asyncio.Task[None]] = set()

    def offer(self, name: str, size: int, content: AdapterContent) -> None:
        """A request names this adapter, whose content of `size` bytes may be asked for from now on."""
        self._known[name] = size, content
        self._known.move_to_end(name)
        if len(self._known) > MOST_KNOWN:
            self._known.popitem(last=False)

    def withdraw(self, name: str) -> None:
        """The adapter was deleted."""
        self._known.pop(name, None)

    def wanted(self, link: ReplicaLink, name: str) -> None:
        """A replica asks for an adapter."""
        task = asyncio.create_task(self._send(link, name))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def stop(self) -> None:
        """Send no more."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _send(self, link: ReplicaLink, name: str) -> None:
        known = self._known.get(name)
        if known is None:
            link.send(AdapterPart(name, 0, 0, error="no request of this gateway has named it"))
            return
        size, content = known
        async with self._room:
            try:
                sent = 0
                async for piece in content():
                    for at in range(0, len(piece), PART_BYTES):
                        part = piece[at : at + PART_BYTES]
                        await link.send_in_turn(AdapterPart(name, sent, size, part))
                        sent += len(part)
            except Exception as error:
                log.warning("an adapter could not be sent", name=name, replica=link.replica, cause=repr(error))
                link.send(AdapterPart(name, 0, 0, error="it cannot be read"))
