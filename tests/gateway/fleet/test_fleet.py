"""Links and health: proof, fencing, foreign text sides, silence, stuck engines, the least loaded replica."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest

from engine.scheduling.fairness.fair_share import FairShare
from gateway.errors import Unavailable
from gateway.fleet.fleet import Fleet
from gateway.fleet.replica_link import FleetOptions
from gateway.fleet.replica_stream import LinkLost
from gateway.fleet.router import Routed
from gateway.served_models.registry import ModelRegistry
from gateway.served_models.served_model import ServedModel, load_served_model
from protocol.addresses import AddressError, parse_address
from protocol.replicas import MAX_SCOPES, Heartbeat, Scope
from protocol.requests import Generate, Sampling, Segment
from tests.gateway.fake_replica import LINK_KEY, FakeReplica, Script
from tests.gateway.tiny_model import make_model_folder
from tests.waiting import until

QUICK = FleetOptions(beat_timeout=0.5, step_timeout=0.3, silence=0.4, backoff_first=0.01, backoff_most=0.05)

PROMPT = Routed(key=b"k", tokens=10)


@asynccontextmanager
async def fleet_of(
    model: ServedModel, *replicas: FakeReplica, link_key: bytes = LINK_KEY, options: FleetOptions = QUICK
) -> AsyncIterator[Fleet]:
    addresses = [replica.address for replica in replicas]
    fleet = Fleet(addresses, gateway="g", link_key=link_key, models=ModelRegistry([model]), options=options)
    fleet.start()
    try:
        for replica in replicas:
            await replica.start()
        yield fleet
    finally:
        await fleet.stop()
        for replica in replicas:
            await replica.stop()


def request(identity: str, tokens: int = 4) -> Generate:
    return Generate(identity, 1, (Segment(tokens, "s"),), list(range(tokens)), Sampling(10), 100)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "unix:",
        "tcp:host",
        "tcp::80",
        "tcp:[]:80",
        "tcp: :80",
        "tcp:h:0",
        "tcp:h:65536",
        "tcp:h:x",
        "/run/x",
        "http://x",
    ],
)
def test_addresses_that_are_none(text: str) -> None:
    with pytest.raises(AddressError, match="expected unix:PATH or tcp:HOST:PORT"):
        parse_address(text)


def test_addresses() -> None:
    assert parse_address("unix:/run/a.sock").path == "/run/a.sock"
    tcp = parse_address("tcp:[::1]:80")
    assert (tcp.host, tcp.port) == ("::1", 80)


async def test_a_gateway_without_the_link_key_gets_nothing(model: ServedModel, tmp_path: Path) -> None:
    replica = FakeReplica(tmp_path / "r", model.text_digest)
    async with fleet_of(model, replica, link_key=b"x" * 32) as fleet:
        await asyncio.sleep(0.1)
        assert replica.dials == []
        assert fleet.links[0].beat is None


async def test_another_text_side_is_refused_and_said(
    model: ServedModel, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    replica = FakeReplica(tmp_path / "r", "f" * 64)
    async with fleet_of(model, replica) as fleet:
        await until(lambda: "another tokenizer or chat template" in fleet.links[0].problem)
        assert fleet.healthy("tiny") == []
        with pytest.raises(Unavailable):
            fleet.choose("tiny", PROMPT)
        await replica.stop()
        replica.model = FakeReplica(tmp_path / "r", model.text_digest).model
        await replica.start()
        await until(lambda: fleet.healthy("tiny"))
    assert "another tokenizer" in caplog.text


async def test_a_replica_that_starts_is_no_warning_until_it_takes_too_long(
    model: ServedModel, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def warned() -> bool:
        return any(record.levelname == "WARNING" for record in caplog.records)

    nobody = [f"unix:{tmp_path / 'nobody'}"]
    for start, expected in ((60.0, False), (0.2, True)):
        caplog.clear()
        options = msgspec.structs.replace(QUICK, start=start)
        fleet = Fleet(nobody, gateway="g", link_key=LINK_KEY, models=ModelRegistry([model]), options=options)
        fleet.start()
        await until(lambda: "cannot connect" in caplog.text)
        assert not warned()
        if expected:
            await until(warned)
        await fleet.stop()


async def test_an_unknown_model_is_refused(model: ServedModel, tmp_path: Path) -> None:
    replica = FakeReplica(tmp_path / "r", model.text_digest, model="other")
    async with fleet_of(model, replica) as fleet:
        await until(lambda: "which this gateway does not" in fleet.links[0].problem)
        assert fleet.healthy("tiny") == fleet.healthy("other") == []


async def test_an_old_incarnation_is_fenced(model: ServedModel, tmp_path: Path) -> None:
    replica = FakeReplica(tmp_path / "r", model.text_digest)
    replica.epoch = 5
    async with fleet_of(model, replica) as fleet:
        await until(lambda: fleet.healthy("tiny"))
        await replica.stop()
        replica.epoch = 4
        await replica.start()
        await until(lambda: "a newer one was seen" in fleet.links[0].problem)
        assert fleet.healthy("tiny") == []
        await replica.stop()
        replica.epoch = 6
        await replica.start()
        await until(lambda: fleet.healthy("tiny"))


async def test_a_silent_link_is_closed(model: ServedModel, tmp_path: Path) -> None:
    replica = FakeReplica(tmp_path / "r", model.text_digest)
    async with fleet_of(model, replica) as fleet:
        await until(lambda: fleet.healthy("tiny"))
        replica.beating = False
        stream = fleet.generate(fleet.choose("tiny", PROMPT), (), request("a"))
        replica.script = Script(tokens=[], silent=True)
        while not isinstance(await stream.next(), LinkLost):
            pass
        replica.beating = True
        await until(lambda: fleet.healthy("tiny"))
        assert len(replica.dials) >= 2


@pytest.mark.slow
async def test_a_pause_of_ours_is_not_the_replicas_silence(model: ServedModel, tmp_path: Path) -> None:
    replica = FakeReplica(tmp_path / "r", model.text_digest)
    async with fleet_of(model, replica) as fleet:
        await until(lambda: fleet.healthy("tiny"))
        time.sleep(3 * max(QUICK.silence, QUICK.beat_timeout))  # noqa: ASYNC251  # nothing of this process runs
        assert fleet.healthy("tiny"), "its beats are only not read yet"
        await asyncio.sleep(1.5 * QUICK.silence)
        assert fleet.healthy("tiny")
        assert len(replica.dials) == 1


async def test_health_is_steps_advancing_while_work_exists(model: ServedModel, tmp_path: Path) -> None:
    replica = FakeReplica(tmp_path / "r", model.text_digest)
    options = FleetOptions(step_timeout=0.3, backoff_first=0.01, backoff_most=0.05)
    async with fleet_of(model, replica, options=options) as fleet:
        (link,) = fleet.links
        await until(lambda: fleet.healthy("tiny"))
        replica.beating = False

        def beat(steps: int, running: int) -> None:
            link._take(Heartbeat(steps, running, {"standard": 0}, ()))

        beat(100, 0)
        await asyncio.sleep(0.2)
        beat(100, 0)
        await asyncio.sleep(0.2)
        beat(100, 1)
        assert link.healthy(), "idle is well, however long"
        for _ in range(4):
            await asyncio.sleep(0.1)
            beat(100, 1)
        assert not link.healthy(), "work, and no step"
        beat(101, 1)
        assert link.healthy()


async def test_the_least_loaded_replica_is_chosen(model: ServedModel, tmp_path: Path) -> None:
    replicas = [FakeReplica(tmp_path / str(number), model.text_digest, name=f"r{number}") for number in range(2)]
    for replica in replicas:
        replica.script = Script(tokens=[1], queued=5)
    async with fleet_of(model, *replicas, options=FleetOptions()) as fleet:
        await until(lambda: len(fleet.healthy("tiny")) == 2)
        chosen = []
        for number in range(6):
            sent = fleet.choose("tiny", PROMPT)
            chosen.append(sent.choice.replica.replica)
            fleet.generate(sent, (), request(f"q{number}"))
        assert chosen.count("r0") == chosen.count("r1") == 3
        assert fleet.context_tokens("tiny") == 512
        await replicas[0].stop()
        await until(lambda: len(fleet.healthy("tiny")) == 1)
        assert fleet.choose("tiny", PROMPT).choice.replica.replica == "r1"


async def test_several_models_in_one_gateway(model: ServedModel, tmp_path: Path) -> None:
    other = load_served_model(make_model_folder(tmp_path / "other", name="other"))
    replicas = [
        FakeReplica(tmp_path / "a", model.text_digest, name="r0"),
        FakeReplica(tmp_path / "b", other.text_digest, name="r1", model="other", context=64),
    ]
    addresses = [replica.address for replica in replicas]
    fleet = Fleet(addresses, gateway="g", link_key=LINK_KEY, models=ModelRegistry([model, other]), options=QUICK)
    fleet.start()
    try:
        await replicas[0].start()
        await until(lambda: fleet.healthy("tiny"))
        with pytest.raises(Unavailable, match="other"):
            fleet.choose("other", PROMPT)
        await replicas[1].start()
        await until(lambda: fleet.healthy("other"))
        assert fleet.choose("tiny", PROMPT).choice.replica.replica == "r0"
        assert fleet.choose("other", PROMPT).choice.replica.replica == "r1"
        assert fleet.context_tokens("other") == 64
        assert fleet.context_tokens("unheard of") is None
    finally:
        await fleet.stop()
        for replica in replicas:
            await replica.stop()


async def test_what_a_flow_got_here_counts_there_once(model: ServedModel, tmp_path: Path) -> None:
    """Two gateways tell the same; a replica that comes later hears all; then only what changed is said."""
    one, two = (FakeReplica(tmp_path / name, model.text_digest, name=name) for name in ("one", "two"))

    def counted(replica: FakeReplica, flow: str) -> float:
        return replica.share.flows["standard"].flow(flow).counter

    one.share.service.add("standard", "a", 1000)
    one.share.service.add("standard", "b", 500)
    async with fleet_of(model, one, two):
        await until(lambda: counted(two, "a") == 1000 and counted(two, "b") == 500)
        second = Fleet([one.address, two.address], gateway="h", link_key=LINK_KEY, models=ModelRegistry([model]))
        second.start()
        await until(lambda: len(two.elsewhere) >= 2)
        two.elsewhere.clear()
        one.share.service.add("standard", "a", 20)
        await until(lambda: len(two.elsewhere) == 2)
        assert [message.service for message in two.elsewhere] == [{"standard/a": 1020}] * 2
        assert counted(two, "a") == 1020
        assert counted(one, "a") == 0
        await two.stop()
        two.share, two.epoch = FairShare(), 2
        await two.start()
        await until(lambda: counted(two, "a") == 1020 and counted(two, "b") == 500)
        await second.stop()


async def test_a_scope_is_introduced_again_once_the_replica_has_dropped_it(model: ServedModel, tmp_path: Path) -> None:
    replica = FakeReplica(tmp_path / "r", model.text_digest)
    async with fleet_of(model, replica) as fleet:
        await until(lambda: fleet.healthy("tiny"))
        (link,) = fleet.links
        scopes = [Scope(str(number), b"root" * 8, b"key") for number in range(MAX_SCOPES + 1)]
        for scope in [*scopes, *scopes[1:], scopes[0]]:
            link.introduce(scope)
        await until(lambda: len(replica.scopes) >= len(scopes) + 1)
        assert [scope.scope for scope in replica.scopes] == [scope.scope for scope in [*scopes, scopes[0]]]
