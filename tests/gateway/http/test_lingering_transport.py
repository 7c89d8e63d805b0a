"""Clients that go on sending after the response: their input is not read, and they cannot keep a connection."""

from __future__ import annotations

import asyncio
import gc
import json
import random
import re
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from gateway.http import connections as gateway_connections
from gateway.http import http_protocol, lingering_transport
from gateway.services import GatewayOptions
from tests.fast import examples
from tests.gateway.stack import Stack, quick_timeouts, running_stack

HOST = b"host: test\r\n"
ENDLESS = b"content-length: 1000000000000\r\n"
CHUNKED = b"transfer-encoding: chunked\r\n"
BLOCK = b"a" * 65536
MOST_SENT = 64 * 1024 * 1024
"""What lies in the buffers of two kernels, and what is thrown away after an answer, is far less."""
LONG_ENOUGH_S = 0.5
"""A gateway that threw away all that comes would take `MOST_SENT` in a tenth of it."""


@contextmanager
def connected(stack: Stack) -> Iterator[socket.socket]:
    with socket.create_connection(("127.0.0.1", port_of(stack)), 30) as line:
        yield line


def port_of(stack: Stack) -> int:
    return int(stack.base.rsplit(":", 1)[1])


def key_line(stack: Stack) -> bytes:
    return f"authorization: Bearer {stack.key}\r\n".encode()


async def in_thread(function: Any, *arguments: Any) -> Any:
    async with asyncio.timeout(60):
        return await asyncio.to_thread(function, *arguments)


def send_until_closed(stack: Stack, head: bytes, block: bytes) -> tuple[int, bytes]:
    """Send a head and then blocks without end; how much the other side took, and what it answered."""
    sent, answer = 0, b""
    with connected(stack) as line:
        try:
            line.sendall(head)
            while sent < MOST_SENT:
                sent += line.send(block)
        except OSError:
            pass
        try:
            while more := line.recv(65536):
                answer += more
        except OSError:
            pass
    return sent, answer


EARLY = {
    "401": (401, b"POST /v1/chat/completions HTTP/1.1\r\n", b"authorization: Bearer nobody\r\n" + ENDLESS, BLOCK),
    "404": (404, b"POST /nowhere HTTP/1.1\r\n", ENDLESS, BLOCK),
    "405": (405, b"PUT /v1/chat/completions HTTP/1.1\r\n", ENDLESS, BLOCK),
    "413": (413, b"POST /v1/chat/completions HTTP/1.1\r\n", b"KEY" + ENDLESS, BLOCK),
    "413 in chunks": (413, b"POST /v1/chat/completions HTTP/1.1\r\n", b"KEY" + CHUNKED, b"10000\r\n" + BLOCK + b"\r\n"),
    "415": (415, b"POST /v1/chat/completions HTTP/1.1\r\n", b"KEYcontent-encoding: gzip\r\n" + ENDLESS, BLOCK),
    "400 of a head": (400, b"POST /v1/chat/completions HTTP/1.1\r\n", b"content-length: x\r\n", BLOCK),
    "431": (431, b"GET /healthz HTTP/1.1\r\n", b"x: ", BLOCK),
    "one-byte chunks, no key": (401, b"POST /v1/chat/completions HTTP/1.1\r\n", CHUNKED, b"1\r\na\r\n" * 10_000),
    "one-byte chunks": (400, b"POST /v1/chat/completions HTTP/1.1\r\n", b"KEY" + CHUNKED, b"1\r\na\r\n" * 10_000),
    "chunk extensions": (400, b"POST /v1/chat/completions HTTP/1.1\r\n", b"KEY" + CHUNKED, b"1;" + b"e" * 65536),
    "trailers": (400, b"POST /v1/chat/completions HTTP/1.1\r\n", b"KEY" + CHUNKED, b"0\r\n" + b"t: a\r\n" * 10_000),
    "health with a body": (200, b"GET /healthz HTTP/1.1\r\n", ENDLESS, BLOCK),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", EARLY)
async def test_what_comes_after_an_early_answer_is_not_read(
    stack: Stack, case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lingering_transport, "LINGER_S", LONG_ENOUGH_S)
    status, first, fields, block = EARLY[case]
    head = first + HOST + fields.replace(b"KEY", key_line(stack))
    sent, answer = await in_thread(
        send_until_closed, stack, head if case in ("431", "trailers") else head + b"\r\n", block
    )
    if case == "trailers":  # each block is a last chunk of its own, and the end never comes
        assert sent < MOST_SENT
        return
    assert sent < MOST_SENT, "the gateway went on reading"
    assert answer.startswith(f"HTTP/1.1 {status} ".encode()), answer[:200]
    assert b"\r\nconnection: close\r\n" in answer


@pytest.mark.slow
async def test_an_answer_is_read_by_a_client_that_sends_first(stack: Stack) -> None:
    """The body is larger than we read, and smaller than the kernel takes: nobody may get a reset before the answer."""

    def talk() -> bytes:
        with connected(stack) as line:
            line.sendall(b"POST /v1/chat/completions HTTP/1.1\r\n" + HOST + b"content-length: 900000\r\n\r\n")
            line.sendall(b"a" * 900_000)
            answer = b""
            while more := line.recv(65536):
                answer += more
            return answer

    for _ in range(3):
        assert (await in_thread(talk)).startswith(b"HTTP/1.1 401 ")


async def exchange(stack: Stack, sent: bytes, *, seconds: float = 30) -> bytes:
    """Send bytes; what comes back until the other end closes, or nothing more comes for so long."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port_of(stack))
    answer = b""
    try:
        writer.write(sent)
        async with asyncio.timeout(seconds):
            while more := await reader.read(65536):
                answer += more
    except (TimeoutError, OSError):
        pass
    finally:
        writer.close()
    return answer


def statuses(answer: bytes) -> list[int]:
    return [int(status) for status in re.findall(rb"HTTP/1\.1 (\d{3}) ", answer)]


GET = b"GET /healthz HTTP/1.1\r\n"
CLOSE = b"connection: close\r\n"
HEADS: dict[str, tuple[bytes, list[int]]] = {
    "no host": (GET + b"\r\n", [400]),
    "two hosts": (GET + HOST + HOST + b"\r\n", [400]),
    "no host in 1.0": (b"GET /healthz HTTP/1.0\r\n\r\n", [200]),
    "HTTP/1.2": (b"GET /healthz HTTP/1.2\r\n" + HOST + b"\r\n", [400]),
    "a long head in one read": (GET + HOST + b"x: " + b"a" * 119_000 + b"\r\n\r\n", [431]),
    "many long headers": (GET + HOST + (b"x: " + b"a" * 1000 + b"\r\n") * 119 + b"\r\n", [431]),
    "many headers": (GET + HOST + b"x: y\r\n" * 2000 + b"\r\n", [431]),
    "length and chunks": (GET + HOST + b"content-length: 3\r\n" + CHUNKED + b"\r\n0\r\n\r\n", [400]),
    "two lengths": (GET + HOST + b"content-length: 3\r\ncontent-length: 4\r\n\r\nabcd", [400]),
    "two codings": (GET + HOST + CHUNKED + CHUNKED + b"\r\n0\r\n\r\n", [400]),
    "gzip and chunks": (GET + HOST + b"transfer-encoding: gzip, chunked\r\n\r\n0\r\n\r\n", [501]),
    "chunks in 1.0": (b"POST /nowhere HTTP/1.0\r\n" + CHUNKED + b"\r\n0\r\n\r\n", [400]),
    "absolute target": (b"GET http://test/healthz HTTP/1.1\r\n" + HOST + CLOSE + b"\r\n", [200]),
    "authority": (b"CONNECT test:443 HTTP/1.1\r\n" + HOST + b"\r\n", [400]),
    "asterisk": (b"OPTIONS * HTTP/1.1\r\n" + HOST + CLOSE + b"\r\n", [404]),
    "raw bytes in the path": (b"GET /\xff\xfe HTTP/1.1\r\n" + HOST + b"\r\n", [400]),
    "no UTF-8 in the path": (b"GET /%ff%fe HTTP/1.1\r\n" + HOST + CLOSE + b"\r\n", [404]),
    "no UTF-8 in a header": (GET + HOST + b"x: \xff\xfe\r\n" + CLOSE + b"\r\n", [200]),
    "no UTF-8 in a key": (b"GET /v1/models HTTP/1.1\r\n" + HOST + b"x-api-key: \xff\xfe\r\n" + CLOSE + b"\r\n", [401]),
    "upgrade": (GET + HOST + b"connection: upgrade\r\nupgrade: websocket\r\n\r\n\x81\x05hello", [200]),
    "HTTP/2": (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", [400]),
    "expect, refused": (
        b"POST /v1/chat/completions HTTP/1.1\r\n" + HOST + b"expect: 100-continue\r\ncontent-length: 9\r\n\r\n",
        [401],
    ),
    "pipelined": ((GET + HOST + b"\r\n") * 300 + GET + HOST + CLOSE + b"\r\n", [200] * 301),
    "pipelined after bodies": (
        (b"POST /nowhere HTTP/1.1\r\n" + HOST + b"content-length: 3\r\n\r\nabc") * 3 + GET + HOST + CLOSE + b"\r\n",
        [404, 404, 404, 200],
    ),
    "pipelined after a body in chunks": (
        b"POST /nowhere HTTP/1.1\r\n" + HOST + CHUNKED + b"\r\n3\r\nabc\r\n0\r\n\r\n" + GET + HOST + b"\r\n",
        [404],
    ),
    "line feeds alone": (b"GET /healthz HTTP/1.1\nhost: test\n\n" * 2, [400]),
    "pipelined after a close": (GET + HOST + CLOSE + b"\r\n" + GET + HOST + b"\r\n", [200]),
    "head": (b"HEAD /healthz HTTP/1.1\r\n" + HOST + CLOSE + b"\r\n", [200]),
    "head, not ready": (b"HEAD /readyz HTTP/1.1\r\n" + HOST + CLOSE + b"\r\n", [200]),
}


@pytest.mark.slow
async def test_heads(stack: Stack) -> None:
    for case, (sent, wanted) in HEADS.items():
        answer = await exchange(stack, sent)
        assert statuses(answer) == wanted, (case, answer[:300])
        if sent.startswith(b"HEAD"):
            assert answer.endswith(b"\r\n\r\n"), "an answer to HEAD has no body"


@pytest.mark.slow
async def test_answers_come_in_the_order_of_requests(stack: Stack) -> None:
    """The first takes long, the second none at all, and both came in one piece."""
    stack.say("slow", prefill=0.3)
    body = json.dumps({"model": "tiny", "messages": [{"role": "user", "content": "hi"}]}).encode()
    first = b"POST /v1/chat/completions HTTP/1.1\r\n" + HOST + key_line(stack)
    length = b"content-length: %d\r\n\r\n%s" % (len(body), body)
    answer = await exchange(stack, (first + length) * 2 + GET + HOST + CLOSE + b"\r\n")
    assert statuses(answer) == [200, 200, 200]
    assert answer.rindex(b"slow") < answer.index(b'{"status":"ok"}')
    chunks = CHUNKED + b"\r\n%x\r\n%s\r\n0\r\n\r\n" % (len(body), body)
    answer = await exchange(stack, first + chunks + GET + HOST + b"\r\n")
    assert statuses(answer) == [200], "the second is left to another connection"
    assert b"\r\nconnection: close\r\n" in answer
    assert b"slow" in answer


@pytest.mark.slow
async def test_fields_after_the_body_are_nobodys(stack: Stack) -> None:
    """Else a key could be sent where those in front of us do not look."""
    stack.say("ok")
    head = b"POST /v1/chat/completions HTTP/1.1\r\n" + HOST + CHUNKED + CLOSE
    body = json.dumps({"model": "tiny", "messages": [{"role": "user", "content": "hi"}]}).encode()
    chunk = b"%x\r\n%s\r\n0\r\n" % (len(body), body)
    assert statuses(await exchange(stack, head + b"\r\n" + chunk + key_line(stack) + b"\r\n")) == [401]
    whole = head + key_line(stack) + b"\r\n" + chunk + b"content-encoding: gzip\r\n\r\n"
    assert statuses(await exchange(stack, whole)) == [200]


async def test_compressed_bodies_are_refused_by_name(stack: Stack) -> None:
    answer = await stack.post({"model": "tiny"}, headers={"content-encoding": "gzip"})
    assert answer.status_code == 415
    assert answer.json()["error"]["code"] == "unsupported_encoding"
    assert "gzip" in answer.json()["error"]["message"]
    assert (await stack.post({"model": "tiny"}, headers={"content-encoding": "identity"})).status_code == 400


@pytest.mark.slow
@pytest.mark.parametrize("chunk", [100, 65_536])
async def test_a_long_body_in_chunks_is_read_whole(stack: Stack, chunk: int) -> None:
    stack.say("ok")
    body = json.dumps({"model": "tiny", "messages": [{"role": "user", "content": "hi"}], "user": "x" * 1_000_000})

    async def pieces() -> AsyncIterator[bytes]:
        for at in range(0, len(body), chunk):
            yield body[at : at + chunk].encode()

    for _ in range(2):
        answer = await stack.http.post(
            "/v1/chat/completions", content=pieces(), headers={"authorization": f"Bearer {stack.key}"}
        )
        assert answer.status_code == 200, answer.text
        assert "connection" not in answer.headers, "the next request may use it"


@pytest.mark.slow
async def test_a_client_that_waits_to_be_asked(stack: Stack) -> None:
    stack.say("ok")
    body = json.dumps({"model": "tiny", "messages": [{"role": "user", "content": "hi"}]}).encode()
    reader, writer = await asyncio.open_connection("127.0.0.1", port_of(stack))
    length = b"content-length: %d\r\n" % len(body)
    head = b"POST /v1/chat/completions HTTP/1.1\r\n" + HOST + key_line(stack) + length
    writer.write(head + b"expect: 100-continue\r\n\r\n")
    async with asyncio.timeout(30):
        assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        writer.write(body)
        assert (await reader.readline()).startswith(b"HTTP/1.1 200")
    writer.close()


async def test_a_head_that_goes_on_in_line_breaks(stack: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_protocol, "HEAD_S", 0.2)
    answer = await exchange(stack, GET + HOST + b"\r\n" + b"\r\n")
    assert statuses(answer) == [200, 408]


@pytest.mark.slow
async def test_who_does_not_read_is_cut_off(stack: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_protocol, "WRITE_S", 0.2)
    monkeypatch.setattr(lingering_transport, "LINGER_S", 0.1)

    def ask_for_ever() -> int:
        sent = 0
        with connected(stack) as line:
            line.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            try:
                while sent < MOST_SENT:
                    sent += line.send((b"GET /metrics HTTP/1.1\r\n" + HOST + b"\r\n") * 1000)
            except OSError:
                pass
        return sent

    assert await in_thread(ask_for_ever) < MOST_SENT
    await stack.until(lambda: len(stack.server.connections) == 0)


async def test_connections_are_counted(stocked_sqlite_url: str, tmp_path: Path, model_folder: Path) -> None:
    """The one that is idle for longest gives its place to a new one; of one address there are only so many."""
    options = GatewayOptions(timeouts=quick_timeouts(), drain_timeout=2.0, connections=20)
    async with running_stack(stocked_sqlite_url, tmp_path, model_folder, options=options) as stack:
        idle = [await asyncio.open_connection("127.0.0.1", port_of(stack)) for _ in range(50)]
        assert (await stack.http.get("/healthz")).status_code == 200
        await stack.until(lambda: len(stack.server.connections) <= 20)
        async with asyncio.timeout(30):
            assert await idle[0][0].read() == b"", "the first that was idle had to go"
        idle[-1][1].write(GET + HOST + b"\r\n")
        assert (await idle[-1][0].readline()).startswith(b"HTTP/1.1 200")
        for _, writer in idle:
            writer.close()
    options = GatewayOptions(timeouts=quick_timeouts(), drain_timeout=2.0, connections_per_address=3)
    async with running_stack(stocked_sqlite_url, tmp_path, model_folder, options=options) as stack:
        first = [await asyncio.open_connection("127.0.0.1", port_of(stack)) for _ in range(3)]
        await stack.until(lambda: len(stack.server.connections) == 3)
        assert statuses(await exchange(stack, b"")) == [503]
        first[0][1].close()
        await stack.until(lambda: len(stack.server.connections) == 2)
        assert statuses(await exchange(stack, GET + HOST + CLOSE + b"\r\n")) == [200]
        for _, writer in first:
            writer.close()


@pytest.mark.slow
async def test_connections_that_linger_are_counted(
    stocked_sqlite_url: str, tmp_path: Path, model_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those that were refused or answered early, too: there are only so many, and the metrics say how many."""
    monkeypatch.setattr(gateway_connections, "MOST_LINGERING", 5, raising=False)
    monkeypatch.setattr(lingering_transport, "LINGER_S", 60.0)
    options = GatewayOptions(timeouts=quick_timeouts(), drain_timeout=2.0, connections_per_address=12)
    async with running_stack(stocked_sqlite_url, tmp_path, model_folder, options=options) as stack:

        async def figures() -> dict[str, float]:
            text = (await stack.http.get("/metrics")).text
            found = re.findall(r"^turnpike_connections_(lingering|cut_off)(?:_total\S*)? (\S+)$", text, re.MULTILINE)
            return {name: float(value) for name, value in found}

        assert await figures() == {"lingering": 0}
        lines = []
        for _ in range(20):
            reader, writer = await asyncio.open_connection("127.0.0.1", port_of(stack))
            lines.append(writer)
            writer.write(b"POST /nowhere HTTP/1.1\r\n" + HOST + ENDLESS + b"\r\n")
            async with asyncio.timeout(30):
                assert (await reader.readline()).startswith((b"HTTP/1.1 404", b"HTTP/1.1 503"))
        assert await figures() == {"lingering": 5, "cut_off": 15}
        for writer in lines:
            writer.transport.abort()
        await stack.until(lambda: len(stack.server.connections.lingering) == 0)


class Trickle:
    """A transport whose client takes one byte of what was written between two looks at it."""

    def __init__(self) -> None:
        self.unsent = 10**9
        self.aborted = asyncio.Event()

    def get_write_buffer_size(self) -> int:
        self.unsent -= 1
        return self.unsent

    def is_closing(self) -> bool:
        return self.aborted.is_set()

    def abort(self) -> None:
        self.aborted.set()

    def close(self) -> None:
        """It ends when all is sent."""


async def test_nobody_lingers_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lingering_transport, "LINGER_S", 0.01)
    monkeypatch.setattr(lingering_transport, "LINGER_LONGEST_S", 0.2, raising=False)
    lingering, cut_off = lingering_transport.LingeringConnections(10), list[str]()
    lingering.on_cut_off = cut_off.append
    transport: Any = Trickle()
    loop = asyncio.get_running_loop()
    line = lingering_transport.LingeringTransport(transport, loop, lambda: True, lingering)
    line.close()
    assert len(lingering) == 1
    async with asyncio.timeout(30):
        await transport.aborted.wait()
    assert len(lingering) == 0
    assert cut_off == ["slow"]


@pytest.mark.slow
async def test_ended_connections_leave_no_garbage(stack: Stack) -> None:
    """A process that serves looks for garbage seldom: what a connection was made of must go with it."""
    for sent in (b"", GET + HOST + CLOSE + b"\r\n", b"x", b"POST /nowhere HTTP/1.1\r\n" + HOST + ENDLESS + b"\r\n"):
        await exchange(stack, sent, seconds=0.5)
    await stack.until(lambda: not stack.server.server_state.connections)
    gc.collect()
    gc.disable()
    try:
        before = sum(type(one) is http_protocol.HttpProtocol for one in gc.get_objects())
        for sent in (b"", GET + HOST + CLOSE + b"\r\n", b"x", GET + HOST + ENDLESS + b"\r\n"):
            await exchange(stack, sent, seconds=0.5)
        await stack.until(lambda: not stack.server.server_state.connections)
        await asyncio.sleep(0.1)
        assert sum(type(one) is http_protocol.HttpProtocol for one in gc.get_objects()) <= before
    finally:
        gc.enable()


WORDS = [
    b"GET ", b"POST ", b"HEAD ", b"/healthz", b"/v1/models", b"/v1/chat/completions", b"?",
    b" HTTP/1.1\r\n", b" HTTP/1.0\r\n",
    HOST, CHUNKED, b"content-length: 5\r\n", b"content-length: 0\r\n", b"connection: close\r\n", b"\r\n", b"\r\n\r\n",
    b"\n", b"\r", b"5\r\nabcde\r\n", b"0\r\n\r\n", b"1;x=y\r\na\r\n", b"abcde", b"{}", b"\0", b"\xff\xfe", b"%00",
    b"expect: 100-continue\r\n", b"upgrade: h2c\r\nconnection: upgrade\r\n", b"content-encoding: gzip\r\n", b": \r\n",
    b"transfer-encoding: identity\r\n", b"FFFFFFFFFFFFFFFF\r\n", b"-1\r\n", b"KEY",
]  # fmt: skip


def garble(random_: random.Random, key: bytes) -> bytes:
    """A request that is nearly one."""
    words = [random_.choice(WORDS) for _ in range(random_.randrange(1, 12))]
    if random_.random() < 0.7:
        first = random_.choice([b"GET /healthz", b"POST /v1/chat/completions", b"GET /v1/models", b"POST /%ff"])
        words = [first, b" HTTP/1.1\r\n", HOST, *words, b"\r\n\r\n"]
    text = b"".join(words).replace(b"KEY", key)
    for _ in range(random_.randrange(3) if random_.random() < 0.3 else 0):
        at = random_.randrange(len(text))
        text = text[:at] + bytes([random_.randrange(256)]) + text[at + 1 :]
    return text


@pytest.mark.slow
async def test_no_bytes_make_it_fail(
    stack: Stack, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    """No 5xx of ours, no traceback, nothing left open, and everybody else is answered."""
    monkeypatch.setattr(http_protocol, "HEAD_S", 0.2)
    monkeypatch.setattr(lingering_transport, "LINGER_S", 0.1)
    random_ = random.Random(14)
    for _ in range(examples(1000) // 50):
        sent = [garble(random_, key_line(stack)) for _ in range(50)]
        for text, answer in zip(
            sent, await asyncio.gather(*(exchange(stack, text, seconds=1) for text in sent)), strict=True
        ):
            assert all(status < 500 or status in (501, 505) for status in statuses(answer)), (text, answer[:300])
        assert (await stack.http.get("/healthz")).status_code == 200
    await stack.until(lambda: len(stack.server.connections) <= 1)
    assert "Traceback" not in capsys.readouterr().out + caplog.text
