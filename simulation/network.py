"""Connections between the processes of a world: bytes in order, late, held up by partitions, lost with a process."""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Callable
from contextvars import copy_context
from typing import TYPE_CHECKING, Any

from simulation.nodes import Node, present_node

if TYPE_CHECKING:
    from simulation.loop import SimulatedLoop


_HELD_UP_S = 0.02
"""How often it is looked whether a partition is over."""


class Network:
    """Who listens where, and which pairs of machines do not hear each other. Names are those of nodes."""

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        self.parted: set[frozenset[str]] = set()
        self.slowness = 1.0
        self.listening: dict[str, Server] = {}

    def part(self, one: str, other: str) -> None:
        """Deliver nothing between these two from now on."""
        self.parted.add(frozenset((one, other)))

    def heal(self) -> None:
        """Deliver everything again, what was held up first."""
        self.parted.clear()

    def latency(self) -> float:
        """Seconds that a piece takes."""
        late = self.chance.expovariate(2_000.0) * self.slowness
        return late * 200 if self.chance.random() < 0.01 else late

    def listen(self, loop: SimulatedLoop, factory: Callable[[], Any], path: str) -> Server:
        """Take connections to this path, in the process that asks."""
        server = self.listening[path] = Server(self, loop, factory, path, present_node())
        return server

    async def connect(self, loop: SimulatedLoop, factory: Callable[[], Any], path: str) -> tuple[Any, Any]:
        """A connection to whoever listens there. Raises ConnectionRefusedError."""
        node = present_node()
        await asyncio.sleep(self.latency())
        server = self.listening.get(path)
        while server is not None and self.divides(node, server.node):
            await asyncio.sleep(0.05)
            server = self.listening.get(path)
        if server is None or (server.node is not None and not server.node.alive):
            raise ConnectionRefusedError(f"nobody listens on {path}")
        ours, theirs = factory(), server.factory()
        here = Transport(self, loop, ours, node, copy_context())
        context = copy_context() if server.node is None else server.node.context.copy()
        there = Transport(self, loop, theirs, server.node, context)
        here.peer, there.peer = there, here
        ours.connection_made(here)
        loop.call_soon(theirs.connection_made, there, context=context)
        return here, ours

    def divides(self, one: Node | None, other: Node | None) -> bool:
        """Whether a partition lies between these."""
        return one is not None and other is not None and frozenset((one.name, other.name)) in self.parted


class Server(asyncio.AbstractServer):
    """Who listens on a path."""

    def __init__(
        self, network: Network, loop: SimulatedLoop, factory: Callable[[], Any], path: str, node: Node | None
    ) -> None:
        self.factory, self.node = factory, node
        self._network, self._path = network, path
        if node is not None:
            node.on_death.append(self.close)

    def close(self) -> None:
        """Take no more."""
        if self._network.listening.get(self._path) is self:
            del self._network.listening[self._path]

    async def wait_closed(self) -> None:
        """Nothing is waited for."""


class Transport(asyncio.Transport):
    """One end of a connection."""

    peer: Transport

    def __init__(self, network: Network, loop: SimulatedLoop, protocol: Any, node: Node | None, context: Any) -> None:
        super().__init__()
        self.node = node
        self._network, self._loop, self._protocol, self._context = network, loop, protocol, context
        self._arrives = loop.time()
        self._under_way: deque[tuple[Callable[[Any], None], Any]] = deque()
        self._closing = self._lost = False
        if node is not None:
            node.on_death.append(self._process_gone)

    def write(self, data: Any) -> None:
        """Send it; it arrives after all that was sent before."""
        if self._closing or not self._may_act() or not data:
            return
        self._send(self.peer._receive, bytes(data))

    def close(self) -> None:
        """Send what is left, then the end."""
        if not self._closing and self._may_act():
            self._closing = True
            self._send(self.peer._lose, None)
            self._loop.call_soon(self._lose, None, context=self._context)

    def abort(self) -> None:
        """Drop the connection."""
        self.close()

    def is_closing(self) -> bool:
        """Whether it was closed."""
        return self._closing

    def get_write_buffer_size(self) -> int:
        """Nothing waits here."""
        return 0

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """Nothing is known of the other side."""
        return default

    def can_write_eof(self) -> bool:
        """A connection is closed as a whole."""
        return False

    def is_reading(self) -> bool:
        """Always."""
        return True

    def pause_reading(self) -> None:
        """What has arrived is given on all the same: buffers are unbounded here."""

    def resume_reading(self) -> None:
        """See `pause_reading`."""

    def _may_act(self) -> bool:
        return self.node is None or self.node.alive

    def _send(self, arrive: Callable[[Any], None], what: Any) -> None:
        self._arrives = max(self._arrives, self._loop.time() + self._network.latency())
        self._under_way.append((arrive, what))
        self._loop.call_at(self._arrives, self._deliver, context=self.peer._context)

    def _deliver(self) -> None:
        """Runs at the other side, when something comes there: the oldest that is under way."""
        if self._network.divides(self.node, self.peer.node):
            self._loop.call_later(_HELD_UP_S, self._deliver, context=self.peer._context)
            return
        arrive, what = self._under_way.popleft()
        arrive(what)

    def _receive(self, data: bytes) -> None:
        if not self._lost and not self._closing:
            self._protocol.data_received(data)

    def _lose(self, _: Any) -> None:
        if not self._lost:
            self._lost = self._closing = True
            self._protocol.connection_lost(None)

    def _process_gone(self) -> None:
        """The machine closes the sockets of a process that died; what it sent before arrives."""
        if not self._closing:
            self._closing = True
            self._send(self.peer._lose, None)
