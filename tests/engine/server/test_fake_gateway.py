"""The tests' own gateway: how long it waits for a message."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import AsyncIterator

import pytest

from protocol.frames import encode
from protocol.replicas import Heartbeat
from tests.engine.fake_gateway import hear_within

BEAT = Heartbeat(steps=1, running=0, waiting={}, memory=())


@pytest.fixture
async def line() -> AsyncIterator[tuple[asyncio.StreamReader, socket.socket]]:
    """Where a client listens, and where its replica speaks."""
    here, there = socket.socketpair()
    reader, writer = await asyncio.open_unix_connection(sock=here)
    yield reader, there
    writer.close()
    await writer.wait_closed()
    there.close()


async def test_silence_is_not_waited_out(line: tuple[asyncio.StreamReader, socket.socket]):
    reader, replica = line
    with pytest.raises(TimeoutError, match="the replica was silent"):
        await hear_within(reader, 0.2)
    replica.send(encode(BEAT))
    assert await hear_within(reader, 0.2) == BEAT


@pytest.mark.slow
async def test_a_pause_is_no_silence(line: tuple[asyncio.StreamReader, socket.socket]):
    """A machine that stands still holds up the replica as well: when we look, it has not said anything yet."""
    reader, replica = line
    hearing = asyncio.ensure_future(hear_within(reader, 1.0))
    await asyncio.sleep(0.05)
    time.sleep(1.1)  # noqa: ASYNC251  # the whole process is held up
    asyncio.get_running_loop().call_later(0.1, replica.send, encode(BEAT))
    assert await hearing == BEAT
