"""The message bus of a world: news of one process reach the others late, or are lost, of which they are told."""

from __future__ import annotations

import asyncio
import random

from simulation.nodes import Node, present_node
from storage.bus import BusUnavailable, Callback, OnGap

_DELAY_S = 0.01


class BusServer:
    """What the processes share. While it is `down`, nothing is published, and everybody has a gap after that."""

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        self.down = False
        self.subscribers: list[tuple[Node | None, str, Callback, OnGap]] = []

    def restore(self) -> None:
        """Take messages again; who listens is told that some may have been missed."""
        self.down = False
        for node, _, _, on_gap in self.subscribers:
            if node is None or node.alive:
                asyncio.get_running_loop().call_soon(on_gap, context=None if node is None else node.context.copy())


class SimulatedBus:
    """The bus as a process sees it."""

    shared = True

    def __init__(self, server: BusServer) -> None:
        self._server = server

    @property
    def connected(self) -> bool:
        """Whether messages of other processes are received now."""
        return not self._server.down

    async def publish(self, topic: str, payload: bytes) -> None:
        """Send the payload to all current subscribers. Raises BusUnavailable."""
        server = self._server
        if server.down:
            raise BusUnavailable("down")
        for node, wanted, callback, _ in server.subscribers:
            if wanted == topic:
                delay = server.chance.expovariate(1 / _DELAY_S)
                context = None if node is None else node.context.copy()
                asyncio.get_running_loop().call_later(delay, callback, payload, context=context)

    async def subscribe(self, topic: str, callback: Callback, on_gap: OnGap) -> None:
        """Call `callback` with every payload from now on, and `on_gap` when some may have been missed."""
        self._server.subscribers.append((present_node(), topic, callback, on_gap))

    async def close(self) -> None:
        """Nothing is open."""
