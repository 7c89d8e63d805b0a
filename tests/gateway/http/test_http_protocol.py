"""Input that is not a valid HTTP request is refused at once, in the error envelope."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from gateway.http import http_protocol
from gateway.services import GatewayOptions
from tests.fast import only_fast
from tests.gateway.stack import Stack, quick_timeouts, running_stack

HEAD = b"POST /v1/chat/completions HTTP/1.1\r\nhost: test\r\n"


async def send(stack: Stack, *pieces: bytes) -> tuple[int, dict[str, str], Any]:
    """Send bytes and read until the other end closes: status, headers, body."""
    reader, writer = await asyncio.open_connection("127.0.0.1", int(stack.base.rsplit(":", 1)[1]))
    try:
        for piece in pieces:
            writer.write(piece)
            await asyncio.sleep(0)
        async with asyncio.timeout(30):
            answer = await reader.read()
    finally:
        writer.close()
    head, _, body = answer.partition(b"\r\n\r\n")
    first, *lines = head.decode().split("\r\n")
    return int(first.split()[1]), dict(line.split(": ", 1) for line in lines), json.loads(body)


def authorized(stack: Stack) -> bytes:
    return HEAD + f"authorization: Bearer {stack.key}\r\n".encode()


@pytest.mark.parametrize("length", only_fast(b"-1", of=[b"-1", b"x", b"2\r\ncontent-length: 5"]))
async def test_broken_http(stack: Stack, length: bytes) -> None:
    status, headers, body = await send(stack, authorized(stack) + b"content-length: " + length + b"\r\n\r\n{}")
    assert status == 400
    assert headers["x-request-id"].startswith("req_")
    assert set(body["error"]) == {"message", "type", "param", "code"}


@pytest.mark.slow
async def test_headers_without_end(stack: Stack) -> None:
    nearly = (HEAD + b"x-long: ").ljust(http_protocol.HEAD_BYTES, b"a")
    status, headers, body = await send(stack, nearly, b"a")
    assert status == 431
    assert headers["x-request-id"].startswith("req_")
    assert str(http_protocol.HEAD_BYTES) in body["error"]["message"]


@pytest.mark.parametrize("sent", only_fast(HEAD, of=[b"", b"POST /v1", HEAD]))
async def test_a_head_that_never_comes(stack: Stack, monkeypatch: pytest.MonkeyPatch, sent: bytes) -> None:
    monkeypatch.setattr(http_protocol, "HEAD_S", 0.1)
    status, _, body = await send(stack, sent)
    assert status == 408
    assert body["error"]["type"] == "invalid_request_error"


async def test_a_body_that_never_comes(stocked_sqlite_url: str, tmp_path: Path, model_folder: Path) -> None:
    options = GatewayOptions(timeouts=quick_timeouts(), drain_timeout=2.0, client_timeout=0.2)
    async with running_stack(stocked_sqlite_url, tmp_path, model_folder, options=options) as stack:
        status, headers, body = await send(stack, authorized(stack) + b'content-length: 100\r\n\r\n{"model":')
        assert status == 408
        assert headers["x-request-id"].startswith("req_")
        assert body["error"]["code"] == "request_timeout"
        assert await stack.holds() == []


@pytest.mark.slow
async def test_connections_are_kept_and_requests_may_follow_each_other(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_protocol, "HEAD_S", 0.2)
    stack.say("ok", prefill=0.5)
    for _ in range(2):
        answer = await stack.post({"model": "tiny", "messages": [{"role": "user", "content": "x" * 100_000}]})
        assert answer.status_code == 400, "longer than a head may be, and no head"
        assert (await stack.post({"model": "tiny", "messages": [{"role": "user", "content": "x"}]})).status_code == 200
    await stack.settled(2)
    assert stack.server.config.timeout_keep_alive > 60, "proxies keep connections for a minute; ours must not end first"


@pytest.mark.parametrize(
    "path", ["/v1/../metrics", "/v1/%2e%2e/metrics", "/./v1/models", "/v1/models/..", "/v1%2F.%2Fmodels"]
)
async def test_dot_segments_are_refused(stack: Stack, path: str) -> None:
    request = f"GET {path} HTTP/1.1\r\nhost: test\r\nx-api-key: {stack.key}\r\n\r\n"
    status, headers, body = await send(stack, request.encode())
    assert status == 400
    assert headers["x-request-id"].startswith("req_")
    assert "'..'" in body["error"]["message"]


@pytest.mark.parametrize(
    "path",
    ["//admin/v1/tenants", "/%61dmin/v1/tenants", "/admin//v1/tenants", "/admin%2Fv1/tenants", "/admin/%761/tenants",
     "/%2F/admin/v1/tenants", "//metrics", "/metric%73"],
)  # fmt: skip
async def test_a_route_of_operators_has_one_spelling(stack: Stack, path: str) -> None:
    """A proxy's rule for `/admin` cannot be walked round."""
    request = f"GET {path} HTTP/1.1\r\nhost: test\r\nx-api-key: {stack.key}\r\n\r\n"
    status, _, body = await send(stack, request.encode())
    assert (status, body["error"]["message"][:22]) == (404, "There is no such path.")


@pytest.mark.parametrize("path", ["//v1/models", "/v1//models", "/v1/models/t%69ny", "/%761/models"])
async def test_clients_may_spell_paths_of_the_api_in_other_ways(stack: Stack, path: str) -> None:
    request = f"GET {path} HTTP/1.1\r\nhost: test\r\nauthorization: Bearer {stack.key}\r\nconnection: close\r\n\r\n"
    assert (await send(stack, request.encode()))[0] == 200


async def test_dots_within_a_segment_are_not_refused(stack: Stack) -> None:
    answer = await stack.http.get("/v1/models/..tiny.v1...", headers={"x-api-key": stack.key})
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "model_not_found")
