"""Whom nobody knows keeps nobody else out: requests on public routes have small, quick bodies, and no claim to their
connection while their body does not come."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gateway.endpoints import request_body
from gateway.services import GatewayOptions
from tests.gateway.http.test_http_protocol import send
from tests.gateway.stack import Stack, quick_timeouts, running_stack

MOST = 20
PUBLIC = [
    "session",
    "session/link",
    "session/second-factor",
    "invitations/accept",
    "password-resets/redeem",
]


@pytest.fixture
async def small_stack(stocked_sqlite_url: str, tmp_path: Path, model_folder: Path) -> AsyncIterator[Stack]:
    options = GatewayOptions(timeouts=quick_timeouts(), drain_timeout=2.0, connections=MOST)
    async with running_stack(stocked_sqlite_url, tmp_path, model_folder, options=options) as running:
        yield running


def head(path: str, length: int) -> bytes:
    fields = f"host: test\r\nx-turnpike-csrf: 1\r\ncontent-length: {length}"
    return f"POST /admin/v1/{path} HTTP/1.1\r\n{fields}\r\n\r\n".encode()


async def stalled(stack: Stack, path: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A connection with a request whose body does not come to its end."""
    opened = await asyncio.open_connection("127.0.0.1", int(stack.base.rsplit(":", 1)[1]))
    opened[1].write(head(path, 8000) + b'{"email": "')
    return opened


async def test_who_is_known_is_answered_beside_sign_ins_that_stall(small_stack: Stack) -> None:
    stack = small_stack
    opened = [await stalled(stack, PUBLIC[number % len(PUBLIC)]) for number in range(MOST)]
    await stack.until(lambda: len(stack.gateway.open_connections) == MOST)
    await asyncio.sleep(0.1)  # their heads are read
    answer = await stack.http.get("/v1/models", headers={"authorization": f"Bearer {stack.key}"})
    assert answer.status_code == 200
    refused = await asyncio.wait_for(opened[0][0].read(), 10)
    assert refused.startswith(b"HTTP/1.1 503 "), "the one that waited for longest"
    assert b"retry-after: 1\r\n" in refused
    reader, writer = opened[-1]
    rest = b'nobody@example.com", "password": "x"}'
    writer.write(rest.ljust(8000 - len(b'{"email": "')))
    assert (await asyncio.wait_for(reader.readline(), 10)).startswith(b"HTTP/1.1 "), "the others go on"
    for _, other in opened:
        other.close()


async def test_who_is_known_is_answered_beside_what_was_refused_early(small_stack: Stack) -> None:
    """Such a connection lingers, since more of its request may come: without a place of its own."""
    stack = small_stack
    opened = []
    for _ in range(MOST):
        reader, writer = await asyncio.open_connection("127.0.0.1", int(stack.base.rsplit(":", 1)[1]))
        writer.write(b"POST /v1/chat/completions HTTP/1.1\r\nhost: test\r\ncontent-length: 8000\r\n\r\n{")
        assert (await asyncio.wait_for(reader.readline(), 10)).startswith(b"HTTP/1.1 401 ")
        opened.append(writer)
    assert len(stack.gateway.lingering_connections) == MOST
    answer = await stack.http.get("/v1/models", headers={"authorization": f"Bearer {stack.key}"})
    assert answer.status_code == 200
    for writer in opened:
        writer.close()


async def test_a_request_of_somebody_known_keeps_its_connection(small_stack: Stack) -> None:
    stack = small_stack
    known = f"POST /v1/chat/completions HTTP/1.1\r\nhost: t\r\nauthorization: Bearer {stack.key}\r\n"
    body = json.dumps({"model": "tiny", "messages": [{"role": "user", "content": "hi"}]}).encode()
    opened = []
    for _ in range(MOST):
        reader, writer = await asyncio.open_connection("127.0.0.1", int(stack.base.rsplit(":", 1)[1]))
        writer.write(f"{known}content-length: {len(body)}\r\n\r\n".encode() + body[:5])
        opened.append((reader, writer))
    await stack.until(lambda: len(stack.gateway.bodies._held) == 1)
    await asyncio.sleep(0.1)
    reader, writer = await stalled(stack, PUBLIC[0])
    assert (await asyncio.wait_for(reader.readline(), 10)).startswith(b"HTTP/1.1 503 ")
    writer.close()
    stack.say("x")
    for reader, writer in opened:
        writer.write(body[5:])
        assert (await asyncio.wait_for(reader.readline(), 10)).startswith(b"HTTP/1.1 200 ")
        writer.close()


@pytest.mark.parametrize("path", PUBLIC)
async def test_a_strangers_body_is_small(path: str, stack: Stack) -> None:
    status, _, body = await send(stack, head(path, 100_000), b'{"email": "' + b"a" * 20_000)
    assert (status, body["error"]["code"]) == (413, "request_too_large"), body
    assert "16384" in body["error"]["message"]


@pytest.mark.parametrize("path", PUBLIC)
async def test_a_strangers_body_has_little_time(path: str, stack: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
    assert request_body._PUBLIC_S <= 5
    monkeypatch.setattr(request_body, "_PUBLIC_S", 0.1)
    status, _, body = await send(stack, head(path, 100), b"{")
    assert (status, body["error"]["code"]) == (408, "request_timeout")
