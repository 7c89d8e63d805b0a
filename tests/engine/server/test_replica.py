"""A real replica process, over its socket: streams, crashes and replays, several gateways, starting and stopping."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest
import pytest_asyncio
from msgspec.structs import replace

from engine.errors import EngineError, StartError
from engine.server.replica import serve
from engine.startup.options import ReplicaOptions
from prompt_cache.model_digest import model_digest, text_digest
from protocol.frames import VERSION, encode, link_proof, read_from_replica
from protocol.prefixes import prefix_names
from protocol.replicas import DRAINING, PROMPT_TOKEN_S, Dial, Drain, Heartbeat, Hello
from protocol.requests import ROUTING_VERSION, WARMING, Abort, Ack, Counts, Credit, Done, Generate, Route, Tokens
from tests.engine.conftest import SCOPES, VOCABULARY, generate, make_bench
from tests.engine.fake_gateway import LINK_KEY, Client, ReplicaProcess
from tests.servers import free_port

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.usefixtures("connections")]
ALL = tuple(SCOPES.values())
LONG = [(11 * i + i * i) % VOCABULARY for i in range(300)]


@pytest_asyncio.fixture
async def replica(tmp_path: Path, tiny_model: Path) -> AsyncIterator[ReplicaProcess]:
    process = await ReplicaProcess.start(tmp_path, tiny_model)
    yield process
    if process.status is None:
        await process.kill()


# ------------------------------------------------------------ a life


@pytest.mark.parametrize("wrong_by", [-600.0, 600.0], ids=["behind", "ahead"])
async def test_a_deadline_is_as_far_away_as_its_gateway_says(replica: ReplicaProcess, wrong_by: float):
    """Whatever the gateway's clock says beside the replica's."""
    client = await Client.dial(replica.path)
    sent = time.time() + wrong_by
    client.generate(generate("in time", LONG, 8, deadline=sent + 300, sent_at=sent), ALL)
    client.send(generate("too late", LONG, 8, deadline=sent - 0.001, sent_at=sent))
    await client.finished("in time", "too late")
    assert [client.done[id].reason for id in ("in time", "too late")] == ["length", "deadline"]
    await client.close()


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


async def test_a_prefix_is_warmed_without_a_trace_in_the_journal_and_gateways_hear_of_queues(replica: ReplicaProcess):
    client, other = await Client.dial(replica.path), await Client.dial(replica.path, name="other")
    client.send(*ALL)
    other.send(*ALL)
    names = prefix_names(b"k", LONG)
    warming = generate(f"{WARMING}1", LONG, 0, credit=1, route=Route(names, 300))
    client.send(warming)
    await client.finished(warming.id)
    assert client.done[warming.id].sequence == 0
    other.generate(generate("reads", LONG, 4, route=Route(names, 44)))
    await other.finished("reads")
    assert other.began["reads"].counts.read_hbm >= 256, "what was warmed is read"
    await other.until(lambda: any(load.prefixes for load in other.loads))
    assert [sent.names for load in other.loads for sent in load.prefixes] == [names]
    await client.until(lambda: bool(client.loads) and client.loads[-1].decodes == 0)
    counted = "turnpike_engine_journal_requests_total"
    await client.until(lambda: bool(client.beats) and client.beats[-1].metrics.get(counted, 0.0) >= 1)
    assert client.beats[-1].metrics[counted] == 1, "the one that has a price"
    assert client.beats[-1].metrics[PROMPT_TOKEN_S] > 0
    await client.close()
    await other.close()


async def test_an_older_gateway_hears_nothing_of_queues(replica: ReplicaProcess):
    client = await Client.dial(replica.path, version=ROUTING_VERSION - 1)
    client.generate(generate("old", LONG, 4), ALL)
    await client.finished("old")
    beats = len(client.beats)
    await client.until(lambda: len(client.beats) > beats + 1)
    assert client.loads == []
    await client.close()


async def test_a_drained_replica_finishes_what_it_has_and_takes_nothing_more(replica: ReplicaProcess):
    client, other = await Client.dial(replica.path), await Client.dial(replica.path, name="other")
    client.send(*ALL, generate("runs", LONG, 400, credit=400))
    other.send(*ALL)
    await client.until(lambda: "runs" in client.tokens)
    client.send(Drain())
    for one in (client, other):
        await one.until(lambda: bool(one.beats) and one.beats[-1].metrics[DRAINING] == 1.0)  # noqa: B023  # called here
    other.send(generate("more", LONG, 3))
    await other.finished("more")
    assert (other.done["more"].reason, other.done["more"].error) == ("rejected", "the replica is draining")
    await client.finished("runs")
    assert (client.done["runs"].reason, client.done["runs"].counts.output) == ("length", 400)
    other.send(Drain(drain=False), generate("again", LONG, 3))
    await other.finished("again")
    assert other.done["again"].reason == "length"
    await client.until(lambda: client.beats[-1].metrics[DRAINING] == 0.0)
    other.send(Drain())
    await other.until(lambda: other.beats[-1].metrics[DRAINING] == 1.0)
    assert await replica.stop() == 0


@pytest.mark.slow
async def test_a_request_that_went_on_is_whole_in_the_journal(
    tmp_path: Path, tiny_model: Path, replica: ReplicaProcess
):
    """Dead again, the replica tells all of it: what an earlier attempt counted and delivered, and what it added."""
    client = await Client.dial(replica.path)
    client.send(*ALL)
    emitted, earlier = ([5] * 10,), Counts(prompt=300, computed=100, read_hbm=200)
    whole = generate("whole", LONG, 10, emitted=emitted, counted=earlier, delivered=10, attempt=2)
    client.send(whole)
    await client.finished("whole")
    done = client.done["whole"]
    assert (done.reason, done.delivered, done.counts) == ("length", 10, replace(earlier, output=10))
    client.acknowledges = False
    client.send(generate("more", LONG, 1500, emitted=emitted, counted=earlier, delivered=7, attempt=2, credit=1500))
    await client.until(lambda: len(client.tokens.get("more", ())) > 5)
    await replica.kill()
    second = await ReplicaProcess.start(tmp_path, tiny_model)
    try:
        heir = await Client.dial(second.path, name="another")
        await heir.finished("more")
        end = heir.done["more"]
        assert (end.reason, end.attempt, end.delivered) == ("crash", 2, 7)
        assert end.counts.output >= 10 + len(client.tokens["more"])
        assert end.counts.recomputed == 310
        assert replace(end.counts, output=0, recomputed=0) == earlier
    finally:
        await second.kill()


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
    # What is refused after the credit says that the credit is in the journal; tokens may be on their way for long.
    client.send(Credit("0", 25, 1500), generate("refused", [], 1))
    await client.finished("refused")
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
        assert short == msgspec.structs.replace(client.done["short"], replayed=True, timeline=None)
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
        ({"token_budget": 64}, "token_budget: 64 is too small for max_running 1: at least 65"),
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
