"""The routing of a fleet over real links: what replicas are told and tell, and prefixes that get another home."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from uuid import UUID

import pytest

from gateway.fleet.conversation_key import names_of_prompt
from gateway.fleet.fleet import Fleet
from gateway.fleet.replica_stream import ReplicaStream
from gateway.fleet.router import Routed
from gateway.served_models.registry import ModelRegistry
from gateway.served_models.served_model import ServedModel, load_served_model
from protocol.frames import encode
from protocol.prefixes import PREFIX_ENDS, split_names
from protocol.replicas import Load, Scope, SentPrefix
from protocol.requests import WARMING, Done, Generate, Sampling, Segment
from tests.gateway.fake_replica import FakeReplica, Script
from tests.gateway.fleet.test_fleet import fleet_of
from tests.gateway.tiny_model import make_model_folder
from tests.waiting import until

SCOPE = Scope("s", b"root", b"key")
SHARED = 40 * 1024


def routed(*tokens: int, **changes: int) -> tuple[Routed, list[int]]:
    prompt = [token for token in tokens for _ in range(1024)]
    names = split_names(names_of_prompt(UUID(int=1), "", "tiny", prompt))
    ends = PREFIX_ENDS[: len(names)]
    return Routed(key=b"%d" % tokens[0], tokens=len(prompt), names=names, ends=ends, **changes), prompt  # type: ignore[arg-type]


def send(fleet: Fleet, id: str, *tokens: int) -> ReplicaStream:
    asked, prompt = routed(*tokens)
    sent = fleet.choose("tiny", asked)
    segments = (Segment(len(prompt) - 100, "s"), Segment(len(prompt), "s"))
    return fleet.generate(sent, (SCOPE,), Generate(id, 1, segments, prompt, Sampling(max_tokens=1), 1))


async def end(fleet: Fleet, stream: ReplicaStream) -> str:
    while not isinstance(await stream.next(), Done):
        pass
    fleet.end(stream)
    return stream.replica


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> ServedModel:
    return load_served_model(make_model_folder(tmp_path_factory.mktemp("models") / "tiny"))


@pytest.fixture
async def pair(model: ServedModel, tmp_path: Path) -> AsyncIterator[tuple[Fleet, dict[str, FakeReplica]]]:
    replicas = [FakeReplica(tmp_path / f"{n}", model.text_digest, name=f"r{n}") for n in range(2)]
    for replica in replicas:
        replica.script, replica.blocks = Script(tokens=[1]), 100_000
    async with fleet_of(model, *replicas) as fleet:
        await until(lambda: len(fleet.healthy("tiny")) == 2)
        yield fleet, {replica.name: replica for replica in replicas}


def say(replica: FakeReplica, message: Load) -> None:
    for writer in replica._linked:
        writer.write(encode(message))


async def test_a_replica_is_told_names_and_what_is_expected_of_it(pair: tuple[Fleet, dict[str, FakeReplica]]) -> None:
    fleet, replicas = pair
    home = await end(fleet, send(fleet, "a", 1, 2))
    again = send(fleet, "b", 1, 2, 3)
    assert again.replica == home
    await end(fleet, again)
    (first, second) = [run.generate for run in replicas[home].runs.values()]
    assert first.route is not None
    assert second.route is not None
    assert first.route.expected == 2048
    assert second.route.names.startswith(first.route.names)
    assert second.route.expected == 3 * 1024 - 2048
    assert fleet.backlog("tiny") == pytest.approx(0.0, abs=1e-6)


async def test_what_other_gateways_sent_and_wait_for_counts(pair: tuple[Fleet, dict[str, FakeReplica]]) -> None:
    fleet, replicas = pair
    asked, _ = routed(7, 8)
    say(replicas["r1"], Load({"standard": 0}, 0, (SentPrefix(b"".join(asked.names)),)))  # type: ignore[arg-type]
    await until(lambda: fleet.routing.router("tiny").holds("r1", asked.names))
    assert await end(fleet, send(fleet, "a", 7, 8)) == "r1"
    say(replicas["r1"], Load({"standard": 1_000_000}, 0))
    await until(lambda: fleet.backlog("tiny") > 10)
    assert await end(fleet, send(fleet, "b", 7, 8)) == "r0"


async def test_credit_of_a_lost_replica_and_of_what_is_not_sent_comes_back(
    pair: tuple[Fleet, dict[str, FakeReplica]],
) -> None:
    fleet, replicas = pair
    for replica in replicas.values():
        replica.script = Script(tokens=[1], queued=60)
    asked, _ = routed(1, 2)
    fleet.give_up(fleet.choose("tiny", asked))
    assert fleet.backlog("tiny") == pytest.approx(0.0, abs=1e-6)
    stream = send(fleet, "a", 1, 2)
    assert fleet.backlog("tiny") > 0
    replicas[stream.replica].drop()
    await until(lambda: stream.link is None)
    assert fleet.routing.backlog("tiny", fleet.links) == pytest.approx(0.0, abs=1e-6)


async def hot(fleet: Fleet) -> None:
    """Let many ask for the same beginning."""
    for number in range(30):
        await end(fleet, send(fleet, f"q{number}", *range(100, 140), *range(1000 + number * 20, 1016 + number * 20)))


async def test_a_hot_prefix_is_computed_elsewhere_once_and_after_a_start(
    pair: tuple[Fleet, dict[str, FakeReplica]],
) -> None:
    fleet, replicas = pair
    await hot(fleet)
    await until(
        lambda: any(run.generate.id.startswith(WARMING) for one in replicas.values() for run in one.runs.values())
    )
    warmed = [
        run.generate for one in replicas.values() for run in one.runs.values() if run.generate.id.startswith(WARMING)
    ]
    assert len(warmed) == 1
    (warming,) = warmed
    assert (warming.lane, warming.sampling.max_tokens, warming.flow, warming.claim) == ("batch", 0, "", b"")
    assert warming.segments[-1].until == len(warming.tokens) <= SHARED
    assert all(end.until <= len(warming.tokens) for end in warming.segments)
    replica = replicas["r0"]
    seen = len(replica.runs)
    await replica.stop()
    await replica.restart()
    await until(lambda: any(run.generate.id.startswith(WARMING) for run in list(replica.runs.values())[seen:]))


async def test_a_replica_that_leaves_lets_others_compute_what_only_it_holds(
    pair: tuple[Fleet, dict[str, FakeReplica]],
) -> None:
    fleet, replicas = pair
    await hot(fleet)
    router = fleet.routing.router("tiny")
    for name in ("r0", "r1"):
        await until(lambda name=name: not fleet.routing._warming)  # type: ignore[misc]
        router.forget(name)
    home = (await end(fleet, send(fleet, "last", *range(100, 140), *range(5000, 5016)))).strip()
    leaving = next(link for link in fleet.links if link.replica == home)
    assert await fleet.routing.give_homes(leaving, fleet.healthy("tiny"), 5.0) == 1
    other = next(replica for name, replica in replicas.items() if name != home)
    assert list(other.runs)[-1].startswith(WARMING)
    assert await fleet.routing.give_homes(leaving, fleet.healthy("tiny"), 5.0) == 0, "it has another home now"
    assert await fleet.routing.give_homes(leaving, [leaving], 5.0) == 0, "there is nobody to give it to"


def test_registries_stay_apart(model: ServedModel) -> None:
    fleet = Fleet([], gateway="g", link_key=b"k" * 32, models=ModelRegistry([model]))
    assert fleet.backlog("tiny") == 0.0
    fleet.routing.wait_at_gateway("tiny", 10_000)
    assert fleet.backlog("tiny") > 0
    assert fleet.backlog("other") == 0.0
    fleet.routing.wait_at_gateway("tiny", -10_000)
    assert fleet.backlog("tiny") == 0.0
