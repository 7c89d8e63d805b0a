"""Clients that hardly read their responses: fifty of them, beside 256 streams that are read at once."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from gateway.services import GatewayOptions
from tests.gateway.fake_replica import Script
from tests.gateway.stack import Stack, quick_timeouts, running_stack

SLOW, LIVE = 50, 256
TOKENS, LIVE_TOKENS = 300, 100
MOST_BUFFERED = 128 * 1024
"""Of one connection: what a stream may write before it is told to wait (64 KiB), and the piece that passed that."""
OPTIONS = GatewayOptions(
    timeouts=quick_timeouts(request=280.0, done=60.0, retry=60.0), drain_timeout=1.0, allowance_requests=0
)


def request(stack: Stack, **fields: Any) -> bytes:
    asked = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}], "stream": True, "max_tokens": TOKENS}
    body = json.dumps(asked | fields).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: t\r\nauthorization: Bearer {stack.key}\r\n"
    return f"{head}connection: close\r\ncontent-length: {len(body)}\r\n\r\n".encode() + body


@asynccontextmanager
async def slow_readers(stack: Stack, count: int) -> AsyncIterator[None]:
    """Clients with small buffers, of which each takes a byte a second."""
    loop = asyncio.get_running_loop()
    lines = []
    for server in stack.server.servers:  # the kernel's buffers would take all that such a stream says
        for listener in server.sockets:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)

    async def trickle(line: socket.socket) -> None:
        taken = b"-"
        while taken:
            taken = await loop.sock_recv(line, 1)
            await asyncio.sleep(1)

    for _ in range(count):
        line = socket.socket()
        line.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
        line.setblocking(False)
        await loop.sock_connect(line, ("127.0.0.1", int(stack.base.rsplit(":", 1)[1])))
        await loop.sock_sendall(line, request(stack, logprobs=True, top_logprobs=5))
        lines.append(line)
    tasks = [asyncio.create_task(trickle(line)) for line in lines]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for line in lines:
            line.close()


async def read_stream(stack: Stack) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", int(stack.base.rsplit(":", 1)[1]))
    writer.write(request(stack, max_tokens=LIVE_TOKENS))
    text = await reader.read()
    writer.close()
    return text


def buffered(stack: Stack) -> list[int]:
    """What each connection has written and the kernel has not taken."""
    return [protocol.transport._transport.get_write_buffer_size() for protocol in stack.server.server_state.connections]


@pytest.mark.slow
async def test_slow_readers_hold_up_nobody(stocked_sqlite_url: str, tmp_path: Path, model_folder: Path) -> None:
    async with running_stack(stocked_sqlite_url, tmp_path, model_folder, options=OPTIONS) as stack:
        stack.replica.script = Script(tokens=stack.tokens("so long " * 200, end=False)[:TOKENS], pause=0.02)
        async with slow_readers(stack, SLOW):
            await stack.until(lambda: len(stack.replica.runs) >= SLOW)
            live = [asyncio.create_task(read_stream(stack)) for _ in range(LIVE)]
            waiting, most = set(live), 0
            while waiting:
                _, waiting = await asyncio.wait(waiting, timeout=0.05)
                most = max([most, *buffered(stack)])
                assert (await stack.http.get("/healthz", timeout=None)).status_code == 200
            assert len(stack.replica.runs) - len(stack.replica.done) >= SLOW, "they were not waited for"
            for task in live:
                text = task.result()
                assert text.startswith(b"HTTP/1.1 200")
                assert b'"finish_reason":"length"' in text, text[-400:].decode()
                assert b"data: [DONE]" in text
            assert 0 < most <= MOST_BUFFERED
