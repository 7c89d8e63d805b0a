"""A real replica process, over its socket: greeting, streams, crashes and replays, several gateways, stopping."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import struct
import time
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest
import pytest_asyncio

from engine.errors import EngineError, StartError
from engine.server import gateway_link as link_module
from engine.server.gateway_link import GatewayLink
from engine.server.replica import serve
from engine.startup.options import ReplicaOptions
from prompt_cache.model_digest import model_digest, text_digest
from protocol.frames import MAX_FRAME_BYTES, VERSION, encode, link_proof, read_from_replica
from protocol.replicas import MAX_SCOPES, Dial, Forget, Heartbeat, Hello, Scope
from protocol.requests import Abort, Ack, Counts, Credit, Done, Generate, Tokens
from tests.engine.conftest import SCOPES, VOCABULARY, generate, make_bench, write_model
from tests.engine.fake_gateway import LINK_KEY, Client, ReplicaProcess
from tests.engine.tiny_tokenizer import text_of, write_tokenizer
from tests.servers import free_port

pytestmark = [pytest.mark.e2e, pytest.mark.slow]
ALL = tuple(SCOPES.values())
LONG = [(11 * i + i * i) % VOCABULARY for i in range(300)]


@pytest_asyncio.fixture
async def replica(tmp_path: Path, tiny_model: Path) -> AsyncIterator[ReplicaProcess]:
    process = await ReplicaProcess.start(tmp_path, tiny_model)
    yield process
    if process.status is None:
        await process.kill()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> AsyncIterator[ReplicaProcess]:
    """One replica for all tests that leave it was."""
    process = await ReplicaProcess.start(tmp_path_factory.mktemp("replica"), tiny_model)
    yield process
    assert await process.stop() == 0


@pytest_asyncio.fixture(autouse=True)
async def connections() -> AsyncIterator[None]:
    """Hang up what a test dialed. What was dialed before, in other modules, belonged to other event loops."""
    Client.dialed.clear()
    yield
    for client in Client.dialed:
        await client.close()


# ------------------------------------------------------------ a life


async def test_streams_are_what_the_engine_computes(replica: ReplicaProcess, tiny_model: Path):
    client = await Client.dial(replica.path)
    hello = client.hello
    assert (hello.version, hello.replica) == (VERSION, "replica")
    assert hello.epoch > 20_000_000, "a first epoch is the time"
    assert hello.model.name == "tiny"
    assert hello.model.digest == model_digest(tiny_model, "float32")
    assert hello.model.text_digest == text_digest(tiny_model)
    assert (hello.model.vocabulary, hello.capacity.context_tokens) == (VOCABULARY, 2048)
    assert hello.layout.block_tokens == 64
    assert hello.capacity.blocks == ((8 << 20) // hello.layout.groups[0].block_bytes,)
    client.send(*ALL)
    expected = {}
    for index in range(12):
        sampling = {"temperature": 1.0, "seed": index} if index % 2 else {}
        request = generate(str(index), LONG[: 20 * index + 1], 30, **sampling)
        expected[request.id] = make_bench(tiny_model).one(request).tokens
        client.send(request)
    await client.finished(*expected)
    assert client.tokens == expected
    for index in range(12):
        end = client.done[str(index)]
        assert end.reason == "length"
        assert end.counts.prompt == 20 * index + 1
        assert end.counts.output == 30
        assert client.began[str(index)].counts.prompt == 20 * index + 1
    sequences = [end.sequence for end in client.done.values()]
    assert len(set(sequences)) == 12
    counted = "turnpike_engine_output_tokens_total"
    await client.until(lambda: bool(client.beats) and client.beats[-1].metrics[counted] >= 360)
    beat = client.beats[-1]
    load = beat.memory[0]
    assert beat.steps > 0
    assert beat.running == 0
    assert load.free + load.referenced + load.cached == load.total
    assert beat.metrics["turnpike_engine_steps_total"] == beat.steps
    await client.close()
    assert await replica.stop() == 0
    assert not replica.leaves_socket()


async def test_kill_9_loses_nothing_that_was_shown(tmp_path: Path, tiny_model: Path, replica: ReplicaProcess):
    client = await Client.dial(replica.path)
    client.send(*ALL)
    client.acknowledges = False
    client.send(generate("short", LONG[:50], 3, claim=b"short's"))
    await client.finished("short")
    for index in range(3):
        client.send(generate(str(index), LONG, 1500, credit=1500, claim=bytes([index])))
    client.send(generate("waits", LONG, 3, credit=0), generate("paused", LONG, 1500, credit=30))
    await client.until(lambda: all(len(client.tokens.get(str(index), ())) > 40 for index in range(3)))
    await client.until(lambda: len(client.tokens.get("paused", ())) == 30)
    client.send(Credit("0", 25, 1500))
    await client.until(lambda: len(client.beats) > 0)
    seen = len(client.tokens["0"])
    await client.until(lambda: len(client.tokens["0"]) > seen + 20)
    await replica.kill()
    while (message := await read_from_replica(client.reader)) is not None:
        if isinstance(message, Tokens):
            client.tokens[message.id] += message.tokens
    second = await ReplicaProcess.start(tmp_path, tiny_model)
    try:
        heir = await Client.dial(second.path, name="another")
        assert heir.hello.epoch == client.hello.epoch + 1
        heir.acknowledges = False
        await heir.finished("short", "0", "1", "2", "paused")
        assert "waits" not in heir.done
        short = heir.done["short"]
        assert short == msgspec.structs.replace(client.done["short"], replayed=True)
        assert short.claim == b"short's"
        for index in range(3):
            end = heir.done[str(index)]
            end.counts.check()
            assert (end.reason, end.replayed, end.claim) == ("crash", True, bytes([index]))
            assert end.counts.prompt == 300
            # What was counted last may not have been shown: it is counted first.
            assert end.counts.output >= len(client.tokens[str(index)])
            assert end.sequence > short.sequence
        assert heir.done["0"].delivered == 25
        assert heir.done["paused"].counts.output == 30
        # Unacknowledged, it is replayed to the next one too, and to nobody once acknowledged.
        await heir.close()
        third = await Client.dial(second.path, name="third")
        await third.finished("short", "0", "1", "2", "paused")
        assert third.done == heir.done
        third.send(Ack("short", short.sequence + 1), Ack("0", short.sequence))  # neither is its own
        unacknowledged = "turnpike_engine_journal_unacknowledged"
        await third.until(lambda: bool(third.beats) and third.beats[-1].metrics[unacknowledged] == 0)
        await third.close()
        fourth = await Client.dial(second.path, name="fourth")
        await fourth.until(lambda: len(fourth.beats) > 1)
        assert not fourth.done
        assert fourth.beats[-1].metrics["turnpike_engine_journal_unacknowledged"] == 0
        fourth.send(*ALL)
        fourth.send(generate("0", LONG, 3, attempt=2))
        await fourth.finished("0")
        assert fourth.done["0"].attempt == 2
    finally:
        await second.kill()


async def test_a_lost_gateway_s_requests_end_and_wait_for_the_next(replica: ReplicaProcess):
    lost, other = await Client.dial(replica.path), await Client.dial(replica.path, name="other")
    for client in (lost, other):
        client.send(*ALL)
    lost.send(generate("left", LONG, 1500), generate("back", LONG, 1500))
    other.send(generate("stays", LONG, 60))
    await lost.until(lambda: len(lost.tokens.get("left", ())) > 5 and len(lost.tokens.get("back", ())) > 5)
    lost.writer.transport.abort()
    await other.finished("stays")
    assert other.done["stays"].reason == "length"
    assert "left" not in other.done
    back = await Client.dial(replica.path)
    back.send(Abort("back"))
    await back.finished("left", "back")
    for id in ("left", "back"):
        end = back.done[id]
        assert end.reason == "abort"
        assert end.counts.prompt == 300
        assert end.counts.output >= len(lost.tokens[id])
        assert end.sequence > 0
    for client in (back, other):
        await client.close()


@pytest.mark.parametrize("same_link", [False, True])
async def test_a_later_attempt_ends_the_earlier_one(replica: ReplicaProcess, same_link: bool):
    """The gateway lost the link and tries again; the replica may not have noticed that the link is lost."""
    before = await Client.dial(replica.path, epoch="this run")
    before.send(*ALL, generate("one", LONG, 1500))
    await before.until(lambda: len(before.tokens.get("one", ())) > 3)
    link = before if same_link else await Client.dial(replica.path, epoch="this run")
    link.send(*ALL, Abort("one", attempt=1), generate("one", LONG, 8, attempt=2))
    ends = []
    while len(ends) < 2:
        message = await link.hear()
        assert message is not None
        if isinstance(message, Done) and message.sequence:
            ends.append(message)
            # late, for the attempt that has ended
            link.send(Abort("one", attempt=1), Credit("one", 4, 1 << 20, 1))
    assert [(done.attempt, done.reason) for done in ends] == [(1, "abort"), (2, "length")]
    assert ends[0].counts.output > 3
    assert ends[1].counts.output == 8
    await before.close()
    await link.close()


async def test_an_attempt_is_run_once_and_for_one_gateway(replica: ReplicaProcess):
    ours, theirs = [await Client.dial(replica.path, name=name, epoch=name) for name in ("ours", "theirs")]
    ours.send(*ALL, generate("one", LONG, 1500, attempt=2))
    await ours.until(lambda: bool(ours.tokens.get("one")))
    for client, attempt in ((theirs, 3), (ours, 1)):
        client.send(*ALL, generate("one", LONG, 8, attempt=attempt))
        await client.until(lambda client=client, attempt=attempt: _ended(client, attempt))
        assert client.done["one"].reason == "rejected"
        assert "already running" in str(client.done["one"].error)
    ours.send(Abort("one", attempt=1))
    await ours.until(lambda: ours.done["one"].error == "no such request is running")
    ours.send(Abort("one", attempt=2))
    await ours.until(lambda: _ended(ours, 2))
    assert ours.done["one"].reason == "abort"
    for client in (ours, theirs):
        await client.close()


def _ended(client: Client, attempt: int) -> bool:
    return "one" in client.done and client.done["one"].attempt == attempt


async def test_who_only_looks_is_handed_nothing_and_delays_nothing(replica: ReplicaProcess):
    lost, other = await Client.dial(replica.path), await Client.dial(replica.path, name="other")
    lost.send(*ALL, generate("left", LONG, 1500))
    await lost.until(lambda: bool(lost.tokens.get("left")))
    lost.writer.transport.abort()

    end = asyncio.get_running_loop().time() + 60
    while "left" not in other.done:
        guest = await Client.dial(replica.path, name="")
        while len(guest.beats) < 2:
            await guest.hear()
        await guest.close()
        assert not guest.done
        await other.until(lambda: len(other.beats) > 1)
        other.beats.clear()
        assert asyncio.get_running_loop().time() < end
    await other.close()


async def test_sigterm_ends_what_runs_and_the_journal_keeps_it(tmp_path: Path, tiny_model: Path):
    replica = await ReplicaProcess.start(tmp_path, tiny_model, drain_s=0.3)
    client = await Client.dial(replica.path)
    client.send(*ALL, generate("runs", LONG, 1700), generate("paused", LONG, 10, credit=2))
    await client.until(lambda: len(client.tokens.get("paused", ())) == 2 and bool(client.tokens.get("runs")))
    replica.signal(signal.SIGTERM)
    await client.until(lambda: "runs" in client.done and "paused" in client.done)
    assert client.done["paused"].reason == "abort"
    assert client.done["runs"].counts.output == len(client.tokens["runs"])
    assert "stopped" in await replica.output()
    assert replica.status == 0
    again = await ReplicaProcess.start(tmp_path, tiny_model)
    heir = await Client.dial(again.path)
    await heir.until(lambda: len(heir.beats) > 1)
    assert not heir.done, "it was acknowledged"
    await heir.close()
    assert await again.stop() == 0


async def test_it_ends_with_its_parent(tmp_path: Path, tiny_model: Path):
    replica = await ReplicaProcess.start(tmp_path, tiny_model, parent_pid=os.getpid() + 1)
    assert "parent is gone" in await replica.output()
    assert replica.status == 0


def slow_compiler(gate: Path) -> str:
    """A fault for a replica: grammars compile only when the file `gate` exists; those with "quick" in them compile at
    once."""
    return f"""
import os, time
from engine.grammar.llguidance_grammar import LlguidanceGrammars
quick = LlguidanceGrammars.compile_proven
def slow(self, text, *proof):
    while "quick" not in text and not os.path.exists({str(gate)!r}):
        time.sleep(0.005)
    return quick(self, text, *proof)
LlguidanceGrammars.compile_proven = slow
"""


async def test_abort_while_a_grammar_is_compiled(tmp_path: Path):
    """The request ends at once, and once. Others that asked for the same grammar get it."""
    model = write_tokenizer(write_model(tmp_path / "model"))
    gate = tmp_path / "gate"
    process = await ReplicaProcess.start(tmp_path, model, fault=slow_compiler(gate))
    client = await Client.dial(process.path)
    grammar = '{"choice": ["yes", "no"]}'
    client.generate(generate("left", LONG, 8, grammar=grammar), ALL)
    client.send(generate("stays", LONG, 8, grammar=grammar), generate("plain", LONG, 8), Abort("left", "left"))
    await client.finished("left", "plain")
    assert (client.done["left"].reason, client.done["left"].counts) == ("rejected", Counts())
    assert "left" not in client.began
    gate.touch()
    await client.finished("stays")
    assert client.done["stays"].reason == "stop"
    assert text_of(model, client.tokens["stays"]) in {"yes", "no"}
    # The same id may be used again; the end was told once.
    del client.done["left"]
    client.send(generate("left", LONG, 8, grammar=grammar))
    await client.finished("left")
    assert client.done["left"].reason == "stop"
    await client.close()
    assert await process.stop() == 0


async def test_a_deadline_while_a_grammar_is_compiled(tmp_path: Path):
    """The request ends at its deadline, not when the compiler is done. A compiler that fails in its own way is
    named."""
    model = write_tokenizer(write_model(tmp_path / "model"))
    gate = tmp_path / "gate"
    process = await ReplicaProcess.start(tmp_path, model, fault=slow_compiler(gate))
    client = await Client.dial(process.path)
    slow = generate("late", LONG, 8, grammar='{"choice": ["yes", "no"]}', deadline=time.time() + 0.1)
    client.generate(slow, ALL)
    client.send(generate("rootless", LONG, 8, grammar=json.dumps({"grammar": 'leaf ::= "a"'})))
    await client.finished("late")  # which is not compiled yet
    assert (client.done["late"].reason, client.done["late"].counts) == ("deadline", Counts())
    assert client.done["late"].sequence > 0
    assert "late" not in client.began
    gate.touch()
    await client.finished("rootless")
    assert (client.done["rootless"].reason, client.done["rootless"].invalid) == ("rejected", "grammar")
    client.send(generate("after", LONG, 4))
    await client.finished("after")
    assert client.done["after"].reason == "length"
    await client.close()
    assert await process.stop() == 0


# ------------------------------------------------------------ starting


def make_options(folder: Path, model: Path, /, **changes: object) -> ReplicaOptions:
    fields = {"model": model, "address": f"unix:{folder / 'other'}", "data": folder / "other-journal"}
    known = {"name": "r", "link_key": LINK_KEY, "device": "cpu", "kv_memory": 1 << 20}
    return ReplicaOptions(**{**fields, **known, **changes})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"model": Path("/nowhere")}, "/nowhere: no such model folder"),
        ({"address": "unix:/nowhere/at/all"}, "listen: unix:/nowhere/at/all cannot be used"),
        ({"address": "http://x"}, "listen: 'http://x' is not a replica's address; expected unix:PATH or tcp:HOST:PORT"),
        ({"address": "tcp:localhost:70000"}, "is not a replica's address; expected unix:PATH or tcp:HOST:PORT"),
        ({"context": 63}, "context: 63 tokens are less than a block of KV, 64"),
        ({"token_budget": 64}, "token_budget: 64 is too small for max_running 64: at least 128"),
        ({"context": 4096}, "context: 4096 tokens are more than the model's 2048"),
        ({"kv_memory": 100}, "kv_memory: 100 bytes hold 0 blocks"),
        ({"data": Path("/dev/null/x")}, "/dev/null/x: the journal folder cannot be used"),
    ],
)
async def test_what_is_wrong_at_the_start_is_named(
    options: dict[str, object], message: str, tmp_path: Path, tiny_model: Path
):
    with pytest.raises(EngineError) as raised:
        await serve(make_options(tmp_path, tiny_model, **options))
    assert message in str(raised.value)
    assert "\n" not in str(raised.value)


async def test_a_process_that_cannot_start_prints_one_line(tmp_path: Path):
    replica = await ReplicaProcess.start(tmp_path, tmp_path / "nowhere")
    assert (await replica.output()).splitlines() == [f"{tmp_path}/nowhere: no such model folder"]
    assert replica.status == 2


async def test_a_second_replica_on_the_same_folder_or_address_says_so(
    replica: ReplicaProcess, tmp_path: Path, tiny_model: Path
):
    client = await Client.dial(replica.path)
    with pytest.raises(StartError, match="another replica uses this journal folder"):
        await serve(make_options(tmp_path, tiny_model, data=replica.data))
    with pytest.raises(StartError, match=f"listen: unix:{replica.path} is in use by another process"):
        await serve(make_options(tmp_path, tiny_model, address=f"unix:{replica.path}"))
    taken = await asyncio.start_server(lambda reader, writer: None, "127.0.0.1", 0)
    address = f"tcp:127.0.0.1:{taken.sockets[0].getsockname()[1]}"
    with pytest.raises(StartError, match=f"listen: {address} cannot be used"):
        await serve(make_options(tmp_path, tiny_model, address=address))
    taken.close()
    (tmp_path / "file").write_text("mine")
    with pytest.raises(StartError, match="file is there and not a socket"):
        await serve(make_options(tmp_path, tiny_model, address=f"unix:{tmp_path / 'file'}"))
    await client.until(lambda: len(client.beats) > 1)


# ------------------------------------------------------------ bad guests


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


async def test_over_tcp_too(tmp_path: Path, tiny_model: Path):
    port = free_port()
    replica = await ReplicaProcess.start(tmp_path, tiny_model, address=f"tcp:127.0.0.1:{port}")
    for _ in range(400):
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            break
        except ConnectionRefusedError:
            await asyncio.sleep(0.05)
    hello = await read_from_replica(reader)
    assert isinstance(hello, Hello)
    writer.write(encode(Dial(VERSION, "me", link_proof(LINK_KEY, hello.challenge, "me"))))
    assert isinstance(await read_from_replica(reader), Heartbeat)
    writer.close()
    replica.signal(signal.SIGINT)
    await replica.output()
    assert replica.status == 0


def test_requests_survive_the_wire() -> None:
    request = generate("a", LONG, 5)
    assert isinstance(request, Generate)
    assert len(encode(request)) < 1000


async def test_what_is_said_while_a_grammar_is_compiled_is_done_afterwards(tmp_path: Path):
    """Credit, and the end of one choice; a grammar that compiles quickly does not wait for one that does not."""
    model = write_tokenizer(write_model(tmp_path / "model"))
    gate = tmp_path / "gate"
    process = await ReplicaProcess.start(tmp_path, model, fault=slow_compiler(gate))
    client = await Client.dial(process.path)
    grammar, quick = '{"regex": "(yes){3}"}', '{"choice": ["quick"]}'
    client.generate(generate("slow", LONG, 30, grammar=grammar, credit=1), ALL)
    client.send(
        Credit("slow", 0, 1 << 20),
        generate("one of two", LONG, 30, grammar=grammar, choices=2),
        Abort("one of two", choice=1),
        generate("quick", LONG, 30, grammar=quick),
    )
    await client.finished("quick")
    assert "slow" not in client.began
    assert client.done["quick"].reason == "stop"
    gate.touch()
    await client.finished("slow", "one of two")
    assert client.done["slow"].reason == "stop"
    assert text_of(model, client.tokens["slow"]) == "yes" * 3
    assert client.done["one of two"].reasons == ("stop", "abort")
    await client.close()
    assert await process.stop() == 0
