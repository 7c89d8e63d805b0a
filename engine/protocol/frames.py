"""Messages on a socket: a 4-byte big-endian length, then a msgpack array whose first element is the message's tag."""

from __future__ import annotations

import asyncio
from typing import TypeAlias

import msgspec

from engine.protocol.replicas import Beat, Dial, Elsewhere, Fence, Fenced, Forget, Hello, Purge, Scope
from engine.protocol.requests import Abort, Ack, Began, Credit, Done, Extend, Generate, PromptLogprobs, Tokens

MAX_FRAME_BYTES = 64 * 1024 * 1024

ToReplica: TypeAlias = Dial | Scope | Forget | Purge | Generate | Credit | Extend | Abort | Ack | Elsewhere | Fence
ToGateway: TypeAlias = Hello | Began | PromptLogprobs | Tokens | Done | Beat | Fenced

_encoder = msgspec.msgpack.Encoder()
_to_replica = msgspec.msgpack.Decoder(ToReplica)
_to_gateway = msgspec.msgpack.Decoder(ToGateway)


class ProtocolError(Exception):
    """The other side sent what this protocol does not allow: an oversized, malformed or unexpected frame."""


def encode(message: ToReplica | ToGateway) -> bytes:
    """The frame of a message: length prefix and body."""
    body = _encoder.encode(message)
    if len(body) > MAX_FRAME_BYTES:
        raise ProtocolError(f"a frame of {len(body)} bytes is over the limit of {MAX_FRAME_BYTES}")
    return len(body).to_bytes(4, "big") + body


async def _read_frame(reader: asyncio.StreamReader) -> bytes | None:
    try:
        size = int.from_bytes(await reader.readexactly(4), "big")
        if size > MAX_FRAME_BYTES:
            raise ProtocolError(f"a frame of {size} bytes is over the limit of {MAX_FRAME_BYTES}")
        return await reader.readexactly(size)
    except (asyncio.IncompleteReadError, ConnectionError):
        return None


async def read_from_gateway(reader: asyncio.StreamReader) -> ToReplica | None:
    """The next message of a gateway; None when it hung up. Raises ProtocolError."""
    body = await _read_frame(reader)
    try:
        return None if body is None else _to_replica.decode(body)
    except msgspec.MsgspecError as error:
        raise ProtocolError(f"malformed frame from the gateway: {error}") from error


async def read_from_replica(reader: asyncio.StreamReader) -> ToGateway | None:
    """The next message of a replica; None when it hung up. Raises ProtocolError."""
    body = await _read_frame(reader)
    try:
        return None if body is None else _to_gateway.decode(body)
    except msgspec.MsgspecError as error:
        raise ProtocolError(f"malformed frame from the replica: {error}") from error
