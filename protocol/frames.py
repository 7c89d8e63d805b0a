"""Frames on a socket: a 4-byte big-endian length, then a msgpack array whose first element is the message's tag."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
from typing import TypeAlias

import msgspec

from protocol.adapters import AdapterPart, DropAdapter, WantAdapter
from protocol.replicas import Dial, Drain, Fence, Fenced, Forget, Heartbeat, Hello, Load, Purge, RemoteService, Scope
from protocol.requests import Abort, Ack, Began, Credit, Done, Generate, PromptLogprobs, Tokens

VERSION = 12
OLDEST_VERSION = 1


def link_proof(link_key: bytes, challenge: bytes, gateway: str) -> bytes:
    """The gateway's answer to a replica's challenge: HMAC-SHA256 (RFC 2104) under the link key, which both know."""
    return hmac.new(link_key, b"turnpike/link/v1\0" + challenge + gateway.encode(), hashlib.sha256).digest()


def agree_version(version: int, oldest: int) -> int:
    """The protocol version to speak with a peer that knows `oldest`..`version`. Raises ProtocolError if there is
    none."""
    common = min(VERSION, version)
    if common < max(OLDEST_VERSION, oldest):
        raise ProtocolError(f"no common protocol version: ours {OLDEST_VERSION}..{VERSION}, theirs {oldest}..{version}")
    return common


MAX_FRAME_BYTES = 64 * 1024 * 1024

ToReplica: TypeAlias = (
    Dial | Scope | Forget | Purge | Generate | Credit | Abort | Ack | RemoteService | Fence | Drain
    | AdapterPart | DropAdapter
)  # fmt: skip
ToGateway: TypeAlias = Hello | Began | PromptLogprobs | Tokens | Done | Heartbeat | Fenced | WantAdapter | Load

_encoder = msgspec.msgpack.Encoder()
_to_replica = msgspec.msgpack.Decoder(ToReplica)
_to_gateway = msgspec.msgpack.Decoder(ToGateway)


class ProtocolError(Exception):
    """The other side broke the protocol: its frame is too large, malformed or unexpected."""


def encode(message: ToReplica | ToGateway) -> bytes:
    """The frame of a message: length prefix and body. Raises ProtocolError if it is too large."""
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
    """The next message from a gateway; None when it closed the connection. Raises ProtocolError."""
    body = await _read_frame(reader)
    try:
        return None if body is None else _to_replica.decode(body)
    except msgspec.MsgspecError as error:
        raise ProtocolError(f"malformed frame from the gateway: {error}") from error


async def read_from_replica(reader: asyncio.StreamReader) -> ToGateway | None:
    """The next message from a replica; None when it closed the connection. Raises ProtocolError."""
    body = await _read_frame(reader)
    try:
        return None if body is None else _to_gateway.decode(body)
    except msgspec.MsgspecError as error:
        raise ProtocolError(f"malformed frame from the replica: {error}") from error
