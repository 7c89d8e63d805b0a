"""The benchmarks' client of a replica: what it hears and acknowledges, and how its requests end with the replica."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from benchmarks.replica_link import ReplicaLink
from protocol.frames import ProtocolError, ToGateway
from protocol.replicas import Scope
from protocol.requests import Done, Generate, Sampling, Segment, Tokens
from tests.gateway.fake_replica import LINK_KEY, FakeReplica, Script
from tests.waiting import until

SCOPE = Scope("bench", b"r" * 32, b"d" * 32)
SILENT = Script(tokens=[], silent=True)


def request(id: str) -> Generate:
    return Generate(id, 1, (Segment(2, "bench"),), [1, 2], Sampling(3), credit=100)


class Heard(ReplicaLink):
    """Keeps the tokens of all requests in the order in which they came."""

    tokens: tuple[int, ...] = ()

    def heard(self, message: ToGateway) -> None:
        if isinstance(message, Tokens):
            self.tokens += tuple(message.tokens)


@pytest_asyncio.fixture
async def replica(tmp_path: Path) -> AsyncIterator[FakeReplica]:
    replica = FakeReplica(tmp_path / "socket", "text", script=Script(tokens=[7, 8, 9]))
    await replica.start()
    yield replica
    await replica.stop()


async def test_a_request_runs_to_its_end_which_is_acknowledged(replica: FakeReplica) -> None:
    link = await Heard.dial(replica.path, LINK_KEY, SCOPE)
    done = await link.ask(request("a"))
    assert (done.id, done.counts.output, link.tokens) == ("a", 3, (7, 8, 9))
    await until(lambda: [ack.id for ack in replica.acked] == ["a"])
    assert [scope.scope for scope in replica.scopes] == ["bench"]
    await link.close()


async def test_requests_fail_when_the_replica_ends_and_so_do_later_ones(replica: FakeReplica) -> None:
    replica.script = SILENT
    link = await ReplicaLink.dial(replica.path, LINK_KEY, SCOPE)
    ends = [link.begin(request(id)) for id in ("a", "b")]
    await until(lambda: len(replica.runs) == 2)
    await replica.stop()
    for end in [*ends, link.begin(request("c"))]:
        with pytest.raises(ConnectionError):
            await end
    await link.flushed()
    await link.close()


async def test_a_request_that_is_not_answered_fails_after_a_while(replica: FakeReplica) -> None:
    replica.script = SILENT
    link = await ReplicaLink.dial(replica.path, LINK_KEY, SCOPE)
    with pytest.raises(TimeoutError):
        await link.ask(request("a"), seconds=0.05)
    with pytest.raises(ValueError, match="a is under way"):
        link.begin(request("a"))
    await link.close()


async def test_what_is_under_way_fails_when_the_link_is_closed(replica: FakeReplica) -> None:
    replica.script = SILENT
    link = await ReplicaLink.dial(replica.path, LINK_KEY, SCOPE)
    end: asyncio.Future[Done] = link.begin(request("a"))
    await link.close()
    with pytest.raises(ConnectionResetError):
        await end


async def test_a_replica_that_has_ended_is_not_dialed_for_ever(tmp_path: Path) -> None:
    with pytest.raises(ConnectionResetError, match="ended before it listened"):
        await ReplicaLink.dial(tmp_path / "socket", LINK_KEY, alive=lambda: False)
    with pytest.raises(TimeoutError):
        await ReplicaLink.dial(tmp_path / "socket", LINK_KEY, seconds=0.1)


async def test_a_malformed_frame_fails_what_waits(replica: FakeReplica) -> None:
    replica.script = SILENT
    link = await ReplicaLink.dial(replica.path, LINK_KEY, SCOPE)
    end = link.begin(request("a"))
    await until(lambda: "a" in replica.runs)
    for writer in replica._linked:
        writer.write(b"\0\0\0\x01\xc1")
    with pytest.raises(ProtocolError, match="malformed frame from the replica"):
        await end
    await link.close()
