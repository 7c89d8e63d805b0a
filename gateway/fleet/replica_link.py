"""The connection to one replica, dialed again whenever it is lost."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import OrderedDict
from typing import Protocol

import structlog
from msgspec import Struct

from protocol.addresses import Address
from protocol.frames import ProtocolError, ToGateway, ToReplica, agree_version, encode, link_proof, read_from_replica
from protocol.replicas import DISK_FULL, DRAINING, ENGINE_DOWN, MAX_SCOPES, Dial, Drain, Forget, Heartbeat, Hello, Scope
from storage.backoff import Backoff


class AwakeClock:
    """A clock that stops while this process is paused: a pause counts as two ticks at most.

    `tick`: seconds between two readings of the system's clock by `run`.
    """

    def __init__(self, tick: float) -> None:
        self._tick = tick
        self._awake = 0.0
        self._looked = time.monotonic()

    def now(self) -> float:
        """Seconds since it was made, without pauses."""
        return self._awake + min(time.monotonic() - self._looked, 2 * self._tick)

    async def run(self) -> None:
        """Read the system's clock each tick, for ever."""
        while True:
            self._awake, self._looked = self.now(), time.monotonic()
            await asyncio.sleep(self._tick)


class FleetOptions(Struct, frozen=True, kw_only=True):
    """Times in seconds.

    A replica is healthy while its last beat is younger than `beat_timeout` and, if it has work, its step counter moved
    within `step_timeout`. A link on which nothing comes for `silence` is closed. Dialing backs off from `backoff_first`
    to `backoff_most`. Names are looked up in DNS each `lookup`. A stream may be `credit_window` tokens ahead of its
    reader; the replica is told of the reader's progress each `credit_step` tokens. A replica that was never reached may
    take `start` to load its model before that is a warning.
    """

    beat_timeout: float = 5.0
    step_timeout: float = 30.0
    silence: float = 15.0
    dial_timeout: float = 5.0
    backoff_first: float = 0.05
    backoff_most: float = 0.25
    lookup: float = 0.5
    credit_window: int = 256
    credit_step: int = 32
    start: float = 60.0


log = structlog.get_logger("gateway.link")

_SOON_S = 0.02


def unnamed_journal(replica: str) -> str:
    """The name for the journal of a replica too old to give its journal an identity."""
    return f"replica {replica}"


def _requests(beat: Heartbeat) -> int:
    return beat.running + sum(beat.waiting.values())


class Refused(Exception):
    """The replica must not be used; the message says why."""


class Listener(Protocol):
    """What a link calls: the fleet."""

    def check(self, hello: Hello) -> None:
        """Raise Refused for a replica that must not be used."""
        ...

    def opened(self, link: ReplicaLink) -> None:
        """The link is ready."""
        ...

    def heard(self, link: ReplicaLink, message: ToGateway) -> None:
        """A beat came, or a message about a request."""
        ...

    def closed(self, link: ReplicaLink) -> None:
        """The link is lost."""
        ...


class ReplicaLink:
    """The client side of protocol towards one address. `clock` tells how long a replica has been silent."""

    def __init__(
        self,
        address: Address,
        gateway: str,
        link_key: bytes,
        listener: Listener,
        *,
        options: FleetOptions,
        clock: AwakeClock,
        epoch: str = "",
    ) -> None:
        self.address = address
        self.hello: Hello | None = None
        self.beat: Heartbeat | None = None
        self.problem = "not dialed yet"
        self.running = 0
        self.others = 0
        """Requests of other gateways that the replica had at its last beat."""
        self.may_run = True
        """Whether requests may be sent: the database knows that this gateway's requests may be in this journal."""
        self.leaving = False
        """Whether DNS names the address no longer: no more requests are sent, and the link stays while it is open."""
        self._gateway = gateway
        self._epoch = epoch
        self._link_key = link_key
        self._listener = listener
        self._options = options
        self._clock = clock
        self._writer: asyncio.StreamWriter | None = None
        self._made_at = clock.now()
        self._logged = ("", "")
        self._scopes: OrderedDict[str, Scope] = OrderedDict()
        """The scopes that the replica knows, in the order of their introduction."""
        self._heard_at = 0.0
        self._beat_at = 0.0
        self._moved_at = 0.0

    @property
    def replica(self) -> str:
        """The replica's name; its address until it has said its name."""
        return self.hello.replica if self.hello else self.address.text

    @property
    def journal(self) -> str:
        """The identity of the replica's journal."""
        return (self.hello.journal if self.hello else "") or unnamed_journal(self.replica)

    @property
    def up(self) -> bool:
        """Whether the link is open and the replica accepted."""
        return self._writer is not None

    @property
    def load(self) -> int:
        """Requests that the replica has, as far as is known here."""
        return max(self.running, _requests(self.beat) if self.beat else 0)

    @property
    def silent_for(self) -> float:
        """Seconds since anything was heard from the replica, or since it was dialed."""
        return self._clock.now() - self._heard_at

    @property
    def disk_full(self) -> bool:
        """Whether the replica says that its journal's disk is full: it takes no requests, and running ones may wait."""
        return self.up and self.beat is not None and self.beat.metrics.get(DISK_FULL, 0.0) > 0.0

    @property
    def draining(self) -> bool:
        """Whether the replica says that an operator drains it: it takes no requests, and runs on what it has."""
        return self.up and self.beat is not None and self.beat.metrics.get(DRAINING, 0.0) > 0.0

    @property
    def engine_down(self) -> bool:
        """Whether the replica says that the foreign engine behind it does not answer: it takes no requests."""
        return self.up and self.beat is not None and self.beat.metrics.get(ENGINE_DOWN, 0.0) > 0.0

    async def drain(self, *, drain: bool) -> None:
        """Let the replica take no more requests, or take them again, and wait until it says that it does. Raises
        TimeoutError if it does not, as one that is down or too old (`DRAIN_VERSION`)."""
        async with asyncio.timeout(self._options.beat_timeout):
            self.send(Drain(drain))
            while not self.up or self.draining != drain:  # noqa: ASYNC110  # nothing else tells of beats
                await asyncio.sleep(_SOON_S)

    def healthy(self) -> bool:
        """Whether requests may be sent: the link is open and not leaving, beats come, nobody drains it, the journal has
        room, a foreign engine answers, and steps advance while there is work (E3)."""
        now = self._clock.now()
        if (
            not self.up
            or not self.may_run
            or self.leaving
            or self.disk_full
            or self.draining
            or self.engine_down
            or now - self._beat_at > self._options.beat_timeout
        ):
            return False
        return now - self._moved_at <= self._options.step_timeout

    async def run(self) -> None:
        """Dial for ever, with back-off while nobody answers, or only a replica that is refused."""
        backoff = Backoff(self._options.backoff_first, self._options.backoff_most)
        while True:
            if await self._connection():
                backoff.reset()
            await backoff.wait()

    def hang_up(self) -> None:
        """Close the connection; the replica is dialed again."""
        if self._writer is not None:
            self._writer.transport.abort()

    def send(self, message: ToReplica) -> None:
        """Queue a message; nothing happens on a lost link."""
        if self._writer is not None:
            self._writer.write(encode(message))

    async def send_in_turn(self, message: ToReplica) -> None:
        """Send a part of something long, once the replica has taken most of what was sent before. Raises OSError."""
        writer = self._writer
        if writer is None:
            raise ConnectionError("the link is lost")
        writer.write(encode(message))
        await writer.drain()

    def introduce(self, scope: Scope) -> None:
        """Send a scope, once per connection as long as the replica remembers it and nothing of it has changed."""
        if self._scopes.get(scope.scope) is not scope:
            self._scopes.pop(scope.scope, None)
            self._scopes[scope.scope] = scope
            if len(self._scopes) > MAX_SCOPES:
                self._scopes.popitem(last=False)
            self.send(scope)

    def forget(self, scope: str) -> None:
        """Let the replica forget a scope: its blocks, its records and its key."""
        self._scopes.pop(scope, None)
        self.send(Forget(scope))

    async def _connection(self) -> bool:
        """Dial, and serve the connection until it ends. True if it was ever ready."""
        try:
            async with asyncio.timeout(self._options.dial_timeout):
                reader, writer = await self._dial()
        except (OSError, TimeoutError) as error:
            self._note(f"cannot connect: {error or type(error).__name__}")
            return False
        try:
            async with asyncio.timeout(self._options.dial_timeout):
                await self._greet(reader, writer)
        except (OSError, TimeoutError, ProtocolError, Refused) as error:
            self._note(str(error) or "no greeting in time", severe=isinstance(error, Refused))
            await self._hang_up(writer)
            return False
        except asyncio.CancelledError:
            writer.transport.abort()
            raise
        self.problem, self._logged = "", ("", "")
        log.info("replica connected", replica=self.replica, address=self.address.text)
        watch = asyncio.create_task(self._watch(writer))
        try:
            self._listener.opened(self)
            while (message := await read_from_replica(reader)) is not None:
                self._take(message)
            self._note("the replica hung up")
        except (ProtocolError, OSError) as error:
            self._note(f"protocol broken: {error}", severe=True)
        finally:
            watch.cancel()
            self._writer = None
            self._scopes.clear()
            self.running = 0
            self._listener.closed(self)
            await self._hang_up(writer)
        return True

    async def _dial(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if self.address.path is not None:
            return await asyncio.open_unix_connection(self.address.path)
        return await asyncio.open_connection(self.address.host, self.address.port)

    async def _greet(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        hello = await read_from_replica(reader)
        if not isinstance(hello, Hello):
            raise ProtocolError("the replica did not say Hello")
        version = agree_version(hello.version, hello.oldest)
        self._listener.check(hello)
        proof = link_proof(self._link_key, hello.challenge, self._gateway)
        writer.write(encode(Dial(version, self._gateway, proof, self._epoch)))
        await writer.drain()
        self.hello = hello
        self.beat, self.others = None, 0
        self._heard_at = self._beat_at = self._moved_at = self._clock.now()
        self._writer = writer

    def _take(self, message: ToGateway) -> None:
        self._heard_at = self._clock.now()
        if isinstance(message, Hello):
            raise ProtocolError("a second Hello")
        if isinstance(message, Heartbeat):
            idle = not message.running and not any(message.waiting.values())
            if idle or self.beat is None or message.steps != self.beat.steps:
                self._moved_at = self._heard_at
            self._beat_at = self._heard_at
            self.beat = message
            self.others = max(0, _requests(message) - self.running)
        self._listener.heard(self, message)

    async def _watch(self, writer: asyncio.StreamWriter) -> None:
        """Close a link on which nothing came for too long: the replica may be gone without closing it."""
        while True:
            await asyncio.sleep(self._options.silence / 4)
            if self.silent_for > self._options.silence:
                log.error("replica silent, closing the link", replica=self.replica)
                writer.transport.abort()
                return

    def _note(self, problem: str, *, severe: bool = False) -> None:
        """Log a problem when it or its level is new."""
        self.problem = problem
        starting = self.hello is None and self._clock.now() - self._made_at < self._options.start
        level = "error" if severe else "info" if starting else "warning"
        if (level, problem) != self._logged:
            self._logged = (level, problem)
            event = "waiting for the replica to start" if level == "info" else "replica not connected"
            getattr(log, level)(event, address=self.address.text, problem=problem)

    @staticmethod
    async def _hang_up(writer: asyncio.StreamWriter) -> None:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()
