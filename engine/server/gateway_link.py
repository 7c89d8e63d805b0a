"""A gateway's connection, seen from the replica: greeting, scopes, messages to send."""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import secrets
from collections import OrderedDict
from collections.abc import Iterable, Mapping

import msgspec
import structlog

from protocol.frames import ProtocolError, ToGateway, ToReplica, agree_version, encode, link_proof, read_from_gateway
from protocol.replicas import BOUNDED_SCOPES_VERSION, MAX_SCOPES, Dial, Hello, Scope
from protocol.requests import Generate

logger = structlog.get_logger("engine.server.gateway_link")

GREETING_S = 5.0
"""Seconds that a gateway has to answer the challenge."""
MAX_UNSENT_BYTES = 64 * 1024 * 1024
"""With this much unsent, a gateway does not read: its connection is dropped."""


class GatewayLink:
    """A connection. It has to prove itself (`greet`) before anything else is read from it or sent on it."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.gateway = "?"
        self.epoch = ""
        """The run of the gateway. For a gateway that is too old to send one, it is made of its name."""
        self._says_epoch = False
        self.open = True
        self.version = 0
        """The protocol version that it speaks; 0 before it has said that."""
        self.told = 0
        """Up to which serial number it knows what other gateways sent (`RoutingLoad`)."""
        self._scopes: OrderedDict[str, Scope] = OrderedDict()
        """name -> scope; the one introduced last is last."""
        self._bounded = False
        self._reader = reader
        self._writer = writer

    async def greet(self, hello: Hello, link_key: bytes) -> None:
        """Send Hello with a fresh challenge and await the proof. Raises ProtocolError, TimeoutError."""
        challenge = secrets.token_bytes(32)
        self.send([msgspec.structs.replace(hello, challenge=challenge)])
        async with asyncio.timeout(GREETING_S):
            dial = await self.receive()
        if not isinstance(dial, Dial):
            raise ProtocolError("the gateway did not begin with Dial")
        self.version = agree_version(dial.version, dial.version)
        self._bounded = self.version >= BOUNDED_SCOPES_VERSION
        if not hmac.compare_digest(dial.proof, link_proof(link_key, challenge, dial.gateway)):
            raise ProtocolError(f"gateway {dial.gateway!r} does not know the link key")
        self.gateway = dial.gateway
        self.epoch = dial.epoch or f"gateway {dial.gateway}"
        self._says_epoch = bool(dial.epoch)

    def is_of_run(self, other: GatewayLink) -> bool:
        """Whether both links are known to be of one run of a gateway; the gateway's name alone does not say so."""
        return other is self or (self._says_epoch and other.epoch == self.epoch)

    async def receive(self) -> ToReplica | None:
        """The next message; None when the gateway closed the connection. Raises ProtocolError."""
        return await read_from_gateway(self._reader)

    def send(self, messages: Iterable[ToGateway]) -> None:
        """Queue messages, in one piece. Does nothing if the connection is closed."""
        if not self.open:
            return
        self._writer.write(b"".join(map(encode, messages)))
        if self._writer.transport.get_write_buffer_size() > MAX_UNSENT_BYTES:
            logger.error("gateway does not read", gateway=self.gateway)
            self.abort()

    def introduce(self, scope: Scope) -> None:
        """Requests may name this scope from now on."""
        self._scopes.pop(scope.scope, None)
        self._scopes[scope.scope] = scope
        if self._bounded and len(self._scopes) > MAX_SCOPES:
            self._scopes.popitem(last=False)

    def forget(self, scope: str) -> None:
        """Requests may no longer name this scope."""
        self._scopes.pop(scope, None)

    def scopes(self, generate: Generate) -> Mapping[str, Scope]:
        """The scopes that a request names and this link knows, by name."""
        names = {segment.scope for segment in generate.segments}
        return {name: self._scopes[name] for name in names if name in self._scopes}

    def abort(self) -> None:
        """Drop the connection at once, with what is unsent."""
        self._writer.transport.abort()

    async def close(self) -> None:
        """Send what is left and close the connection."""
        self.open = False
        self._writer.close()
        with contextlib.suppress(OSError, TimeoutError):
            async with asyncio.timeout(1.0):
                await self._writer.wait_closed()
