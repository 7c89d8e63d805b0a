"""A probe of a replica: dial it without a name, read its Hello and its heartbeats, hang up."""

from __future__ import annotations

import asyncio
import contextlib

import msgspec

from protocol import frames
from protocol.addresses import parse_address
from protocol.replicas import Dial, Heartbeat, Hello
from protocol.service_names import expand_service_names
from turnpike.settings.data_folder import read_secrets
from turnpike.settings.settings import Settings

TIMEOUT_S = 4.0
_NAMELESS = ""


class Probe(msgspec.Struct, frozen=True):
    """What a replica says of itself. `heartbeat`: its last, None if it sent none in time.

    `advancing`: it is idle, or its step counter was seen to grow (E3).
    """

    hello: Hello
    heartbeat: Heartbeat | None
    advancing: bool


class Unreachable(Exception):
    """Nothing answers at the address, or it does not speak our protocol."""


async def probe(address: str, link_key: bytes, timeout_s: float = TIMEOUT_S) -> Probe:
    """Ask the replica at `unix:PATH` or `tcp:HOST:PORT`. Raises Unreachable, AddressError."""
    parsed = parse_address(address)
    try:
        async with asyncio.timeout(timeout_s):
            if parsed.path is not None:
                reader, writer = await asyncio.open_unix_connection(parsed.path)
            else:
                reader, writer = await asyncio.open_connection(parsed.host, parsed.port)
    except (OSError, TimeoutError) as error:
        raise Unreachable(f"no replica answers at {address}: {error or 'timed out'}") from error
    hello: Hello | None = None
    heartbeat: Heartbeat | None = None
    advancing = False
    try:
        async with asyncio.timeout(timeout_s):
            message = await frames.read_from_replica(reader)
            if not isinstance(message, Hello):
                raise Unreachable(f"what listens at {address} is not a replica")
            hello = message
            version = frames.agree_version(hello.version, hello.oldest)
            proof = frames.link_proof(link_key, hello.challenge, _NAMELESS)
            writer.write(frames.encode(Dial(version, _NAMELESS, proof)))
            while not advancing and message is not None:
                message = await frames.read_from_replica(reader)
                if isinstance(message, Heartbeat):
                    idle = not message.running and not any(message.waiting.values())
                    advancing = idle or (heartbeat is not None and message.steps != heartbeat.steps)
                    heartbeat = message
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
    return Probe(hello, heartbeat, advancing)


async def ask_replicas(settings: Settings) -> dict[str, Probe | None]:
    """Probe the configured replicas: the address of each → what it says, None if nothing answers. Raises
    AddressError."""
    key = read_secrets(settings).link_key
    addresses = await expand_service_names(settings.replica_addresses)
    answers = await asyncio.gather(*(probe(address, key) for address in addresses), return_exceptions=True)
    for answer in answers:
        if isinstance(answer, BaseException) and not isinstance(answer, Unreachable):
            raise answer
    pairs = zip(addresses, answers, strict=True)
    return {address: answer if isinstance(answer, Probe) else None for address, answer in pairs}


async def probe_replicas(settings: Settings) -> list[Probe]:
    """Probe the configured replicas; those that answer. Raises AddressError."""
    return [answer for answer in (await ask_replicas(settings)).values() if answer is not None]
