"""A real replica process and guests that say nonsense, prove nothing or know no manners: only their link ends."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest
import pytest_asyncio

from engine.server import gateway_link as link_module
from engine.server.gateway_link import GatewayLink
from protocol.frames import MAX_FRAME_BYTES, VERSION, encode, link_proof, read_from_replica
from protocol.replicas import MAX_SCOPES, Dial, Forget, Hello, Scope
from protocol.requests import Abort, Ack, Counts, Credit, Done
from tests.engine.conftest import SCOPES, VOCABULARY, generate
from tests.engine.fake_gateway import LINK_KEY, Client, ReplicaProcess

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.usefixtures("connections")]
ALL = tuple(SCOPES.values())
LONG = [(11 * i + i * i) % VOCABULARY for i in range(300)]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> AsyncIterator[ReplicaProcess]:
    """One replica for all tests that leave it was."""
    process = await ReplicaProcess.start(tmp_path_factory.mktemp("replica"), tiny_model)
    yield process
    assert await process.stop() == 0


def raw(body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + body


NASTY = {
    "no frame": b"\x00",
    "empty frame": raw(b""),
    "not msgpack": raw(b"\xc1\xc1"),
    "not an array": raw(msgspec.msgpack.encode({"type": "Ack"})),
    "unknown tag": raw(msgspec.msgpack.encode(["Explode", 1])),
    "no fields": raw(msgspec.msgpack.encode(["Generate"])),
    "wrong types": raw(msgspec.msgpack.encode(["Ack", 5, "x"])),
    "trailing bytes": raw(msgspec.msgpack.encode(["Abort", "x"]) + b"\x00"),
    "huge token": raw(msgspec.msgpack.encode(["Generate", "x", 1, [], [2**64 - 1, "a"], [1], 1])),
    "too long": struct.pack(">I", MAX_FRAME_BYTES + 1),
    "longest length": b"\xff\xff\xff\xff",
    "a message of the other side": encode(Done("x", 1, "stop", Counts(), 1)),
    "second Dial": encode(Dial(VERSION, "x", b"")),
    "text": b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    "deep": raw(b"\x91" * 2000),
}


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("name", NASTY)
@pytest.mark.parametrize("proved", [True, False])
async def test_a_nasty_frame_closes_that_connection_only(shared: ReplicaProcess, name: str, proved: bool):
    steady = await Client.dial(shared.path, name="steady")
    steady.send(*ALL, generate(f"steady {name} {proved}", LONG[:20], 5))
    if proved:
        guest = await Client.dial(shared.path, name="guest")
        reader, writer = guest.reader, guest.writer
    else:
        reader, writer = await asyncio.open_unix_connection(shared.path)
    writer.write(NASTY[name])
    if NASTY[name] == b"\x00":
        writer.write_eof()
    async with asyncio.timeout(30):
        while await read_from_replica(reader) is not None:
            pass
    writer.close()
    await steady.finished(f"steady {name} {proved}")
    assert steady.done[f"steady {name} {proved}"].reason == "length"
    await steady.close()


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("case", ["wrong key", "another name", "empty proof", "no proof", "old version"])
async def test_without_proof_nobody_comes_in(shared: ReplicaProcess, case: str):
    reader, writer = await asyncio.open_unix_connection(shared.path)
    hello = await read_from_replica(reader)
    assert isinstance(hello, Hello)
    right = link_proof(LINK_KEY, hello.challenge, "me")
    match case:
        case "wrong key":
            writer.write(encode(Dial(VERSION, "me", link_proof(b"x" * 32, hello.challenge, "me"))))
        case "another name":
            writer.write(encode(Dial(VERSION, "you", right)))
        case "empty proof":
            writer.write(encode(Dial(VERSION, "me", b"")))
        case "no proof":
            writer.write(encode(generate("x", [1])))
        case "old version":
            writer.write(encode(Dial(0, "me", right)))
    writer.write(encode(generate("x", [1])))
    assert await asyncio.wait_for(read_from_replica(reader), 30) is None
    writer.close()


@pytest.mark.asyncio(loop_scope="module")
async def test_challenges_differ(shared: ReplicaProcess):
    first, second = await Client.dial(shared.path), await Client.dial(shared.path)
    assert first.hello.challenge != second.hello.challenge
    assert len(first.hello.challenge) == 32
    await first.close()
    await second.close()


@pytest.mark.asyncio(loop_scope="module")
async def test_unknown_ids_and_scopes_are_answered(shared: ReplicaProcess):
    client = await Client.dial(shared.path)
    client.send(Abort("nobody"), Credit("nobody", 1, 1), Ack("nobody", 7))
    await client.finished("nobody")
    assert client.done["nobody"].reason == "rejected"
    client.send(generate("early", [1, 2]))
    await client.finished("early")
    assert "scope 'project' was not introduced" in (client.done["early"].error or "")
    client.send(*ALL, generate("late", [1, 2], 2), Forget("project"), generate("after", [1, 2], 2))
    await client.finished("late", "after")
    assert client.done["late"].reason == "length"
    assert client.done["after"].reason == "rejected"
    await client.close()


@pytest.mark.asyncio(loop_scope="module")
async def test_scopes_are_the_connection_s_own(shared: ReplicaProcess):
    first, second = await Client.dial(shared.path), await Client.dial(shared.path)
    first.send(*ALL, generate("mine", [1, 2], 2))
    second.send(generate("yours", [1, 2], 2))
    await first.finished("mine")
    await second.finished("yours")
    assert first.done["mine"].reason == "length"
    assert second.done["yours"].reason == "rejected"
    await first.close()
    await second.close()


@pytest.mark.asyncio(loop_scope="module")
async def test_the_scopes_that_were_introduced_last_are_known(shared: ReplicaProcess):
    client = await Client.dial(shared.path)
    others = [Scope(str(number), b"root" * 8, b"key") for number in range(MAX_SCOPES)]
    client.send(*ALL, generate("known", [1, 2], 2), *others, generate("old", [1, 2], 2))
    client.send(*ALL, generate("again", [1, 2], 2))
    await client.finished("known", "old", "again")
    assert client.done["known"].reason == client.done["again"].reason == "length"
    assert "was not introduced" in (client.done["old"].error or "")
    await client.close()


@pytest.mark.asyncio(loop_scope="module")
async def test_an_id_that_runs_elsewhere_is_refused_and_left_alone(shared: ReplicaProcess):
    first, second = await Client.dial(shared.path), await Client.dial(shared.path)
    for client in (first, second):
        client.send(*ALL)
    first.send(generate("same", LONG, 100))
    await first.until(lambda: bool(first.tokens.get("same")))
    second.send(generate("same", LONG, 100, attempt=2))
    await second.finished("same")
    assert second.done["same"].reason == "rejected"
    await first.finished("same")
    assert (first.done["same"].reason, len(first.tokens["same"])) == ("length", 100)
    await first.close()
    await second.close()


@pytest.mark.asyncio(loop_scope="module")
async def test_credit_and_abort_over_the_wire(shared: ReplicaProcess):
    client = await Client.dial(shared.path)
    client.send(*ALL, generate("slow", LONG, 30, credit=4))
    await client.until(lambda: len(client.tokens.get("slow", ())) == 4)
    beats = len(client.beats)
    await client.until(lambda: len(client.beats) > beats + 1)
    assert len(client.tokens["slow"]) == 4
    client.send(Credit("slow", 4, 10))
    await client.until(lambda: len(client.tokens["slow"]) == 10)
    client.send(Abort("slow"))
    await client.finished("slow")
    done = client.done["slow"]
    assert (done.reason, done.delivered, done.counts.output) == ("abort", 4, 10)
    await client.until(lambda: client.beats[-1].memory[0].referenced == 0)
    await client.close()


async def test_a_guest_that_says_nothing_is_not_waited_for(shared: ReplicaProcess, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(link_module, "GREETING_S", 0.05)
    ended = asyncio.Event()

    async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        link = GatewayLink(reader, writer)
        with pytest.raises(TimeoutError):
            await link.greet(hello, LINK_KEY)
        await link.close()
        ended.set()

    hello = (await Client.dial(shared.path)).hello
    server = await asyncio.start_server(greet, "127.0.0.1", 0)
    _, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
    await asyncio.wait_for(ended.wait(), 30)
    writer.close()
    server.close()
