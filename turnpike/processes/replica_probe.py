"""Asking a replica how it is: dial it without a name, hear its Hello and its beats, hang up."""

from __future__ import annotations

import asyncio
import contextlib

import msgspec

from protocol import frames
from protocol import frames as handshake
from protocol.addresses import parse_address
from protocol.replicas import Beat, Dial, Hello
from turnpike.settings.data_folder import read_secrets
from turnpike.settings.settings import Settings

PATIENCE = 4.0
_NAMELESS = ""


class Probe(msgspec.Struct, frozen=True):
    """What a replica said of itself; `beat` is the last, None if it sent none in time.

    `advancing`: it is idle, or its steps were seen to go on (E3).
    """

    hello: Hello
    beat: Beat | None
    advancing: bool


class Unreachable(Exception):
    """Nobody answers at the address, or it does not speak our protocol."""


async def probe(address: str, link_key: bytes, patience: float = PATIENCE) -> Probe:
    """Ask the replica at `unix:PATH` or `tcp:HOST:PORT`. Raises Unreachable, AddressError."""
    where = parse_address(address)
    try:
        async with asyncio.timeout(patience):
            if where.path is not None:
                reader, writer = await asyncio.open_unix_connection(where.path)
            else:
                reader, writer = await asyncio.open_connection(where.host, where.port)
    except (OSError, TimeoutError) as error:
        raise Unreachable(f"no replica answers at {address}: {error or 'timed out'}") from error
    hello: Hello | None = None
    beat: Beat | None = None
    advancing = False
    try:
        async with asyncio.timeout(patience):
            message = await frames.read_from_replica(reader)
            if not isinstance(message, Hello):
                raise Unreachable(f"what listens at {address} is not a replica")
            hello = message
            version = handshake.agree_version(hello.version, hello.oldest)
            proof = handshake.link_proof(link_key, hello.challenge, _NAMELESS)
            writer.write(frames.encode(Dial(version, _NAMELESS, proof)))
            while not advancing and message is not None:
                message = await frames.read_from_replica(reader)
                if isinstance(message, Beat):
                    idle = not message.running and not any(message.waiting.values())
                    advancing = idle or (beat is not None and message.steps != beat.steps)
                    beat = message
    except TimeoutError:
        pass
    except frames.ProtocolError as error:
        raise Unreachable(f"the replica at {address}: {error}") from error
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()
    if hello is None:
        raise Unreachable(f"the replica at {address} says nothing")
    return Probe(hello, beat, advancing)


async def probe_replicas(settings: Settings) -> list[Probe]:
    """Those of the configured replicas that answer."""
    key = read_secrets(settings).link_key
    asked = (probe(address, key) for address in settings.replica_addresses)
    found = await asyncio.gather(*asked, return_exceptions=True)
    for answer in found:
        if isinstance(answer, BaseException) and not isinstance(answer, Unreachable):
            raise answer
    return [answer for answer in found if isinstance(answer, Probe)]
