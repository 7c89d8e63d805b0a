"""The routing of a fleet over real links: what replicas are told and tell, and prefixes that get another home."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from gateway.fleet.conversation_key import names_of_prompt
from gateway.fleet.fleet import Fleet
from gateway.fleet.hot_prefixes import HotPrefixes
from gateway.fleet.replica_stream import ReplicaStream
from gateway.fleet.router import Routed
from gateway.served_models.registry import ModelRegistry
from gateway.served_models.served_model import ServedModel, load_served_model
from protocol.frames import encode
from protocol.prefixes import PREFIX_ENDS, split_names
from protocol.replicas import DECODE_ROW_S, DECODE_STEP_S, PROMPT_CHUNK, PROMPT_TOKEN_S, Load, Scope, SentPrefix
from protocol.requests import ROUTING_VERSION, WARMING, Done, Generate, Retain, Sampling, Segment
from tests.gateway.fake_replica import FakeReplica, Script
from tests.gateway.fleet.test_fleet import fleet_of
from tests.gateway.tiny_model import make_model_folder
from tests.waiting import until

SCOPE, LAST_SCOPE = Scope("s", b"root", b"key"), Scope("last", b"root", b"key")
SHARED = 40 * 1024


def routed(*tokens: int, **changes: int) -> tuple[Routed, list[int]]:
    prompt = [token for token in tokens for _ in range(1024)]
    names = split_names(names_of_prompt(UUID(int=1), "", "tiny", prompt))
    ends = PREFIX_ENDS[: len(names)]
    return Routed(key=b"%d" % tokens[0], tokens=len(prompt), names=names, ends=ends, **changes), prompt  # type: ignore[arg-type]


def send(fleet: Fleet, id: str, *tokens: int, **changes: Any) -> ReplicaStream:
    asked, prompt = routed(*tokens)
    sent = fleet.choose("tiny", asked)
    segments = (Segment(len(prompt) - 100, "s"), Segment(len(prompt), "last"))
    return fleet.generate(
        sent, (SCOPE, LAST_SCOPE), Generate(id, 1, segments, prompt, Sampling(max_tokens=1), 1, **changes)
    )


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


async def hot(fleet: Fleet, *, paid: bool = True, **changes: Any) -> None:
    """Let many ask for the same beginning; where it is not paid they leave at once."""
    for number in range(30):
        prompt = (*range(100, 140), *range(1000 + number * 20, 1016 + number * 20))
        stream = send(fleet, f"q{number}", *prompt, **changes)
        if paid:
            await end(fleet, stream)
        else:
            stream.abort("client")
            fleet.end(stream)


def warmings(replicas: dict[str, FakeReplica]) -> list[Generate]:
    """What was to be computed ahead of requests, so far."""
    runs = [run.generate for one in replicas.values() for run in one.runs.values()]
    return [generate for generate in runs if generate.id.startswith(WARMING)]


async def all_heard(fleet: Fleet, replicas: dict[str, FakeReplica]) -> None:
    """Wait until replicas have taken what was sent to them."""
    for link in fleet.links:
        link.introduce(Scope(f"last {link.replica}", b"root", b"key"))
    for name, replica in replicas.items():
        await until(lambda name=name, replica=replica: any(s.scope == f"last {name}" for s in replica.scopes))  # type: ignore[misc]


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
    await until(lambda: len(router._epochs) == 2)  # the next beat, which forgets once more
    home = (await end(fleet, send(fleet, "last", *range(100, 140), *range(5000, 5016)))).strip()
    leaving = next(link for link in fleet.links if link.replica == home)
    assert await fleet.routing.give_homes(leaving, fleet.healthy("tiny"), 5.0) == 1
    other = next(replica for name, replica in replicas.items() if name != home)
    assert list(other.runs)[-1].startswith(WARMING)
    assert await fleet.routing.give_homes(leaving, fleet.healthy("tiny"), 5.0) == 0, "it has another home now"
    assert await fleet.routing.give_homes(leaving, [leaving], 5.0) == 0, "there is nobody to give it to"


async def start_again(fleet: Fleet, replicas: dict[str, FakeReplica]) -> list[Generate]:
    """Stop r0 and start it with nothing in memory; what it is to compute then."""
    replica = replicas["r0"]
    await replica.stop()
    await until(lambda: len(fleet.healthy("tiny")) == 1)
    replica.runs.clear()
    replica.scopes.clear()
    await replica.restart()
    await until(lambda: len(fleet.healthy("tiny")) == 2)
    await all_heard(fleet, {"r0": replica})
    return warmings({"r0": replica})


def purge(fleet: Fleet) -> None:
    fleet.purge("tiny", "s/partition", (b"k" * 32,))


def forget(fleet: Fleet) -> None:
    fleet.routing.forget_scope("s")


@pytest.mark.parametrize("gone", [purge, forget])
async def test_what_was_purged_or_forgotten_is_not_computed_again(
    pair: tuple[Fleet, dict[str, FakeReplica]], gone: Callable[[Fleet], None]
) -> None:
    fleet, replicas = pair
    await hot(fleet, retain=(Retain(1024, 9e9),))
    await until(lambda: warmings(replicas))
    assert warmings(replicas)[0].retain == (), "what is computed ahead is promised to nobody"
    fleet.routing.forget_scope("other")
    assert await start_again(fleet, replicas), "it is computed while it may be"
    known = {scope.scope for scope in replicas["r0"].scopes}
    assert "s" in known
    assert "last" not in known, "no part of the prefix is in this scope"
    gone(fleet)
    assert await start_again(fleet, replicas) == []
    assert "s" not in {scope.scope for scope in replicas["r0"].scopes}, "its key is not told again"


async def test_what_is_being_computed_ends_with_its_scope(pair: tuple[Fleet, dict[str, FakeReplica]]) -> None:
    fleet, replicas = pair
    for replica in replicas.values():
        replica.script = lambda of: Script(tokens=[1], queued=60 if of.id.startswith(WARMING) else 0)
    await hot(fleet)
    await until(lambda: warmings(replicas))
    (warming,) = warmings(replicas)
    fleet.routing.forget_scope("s")
    await until(lambda: not fleet.routing._warming)
    router = fleet.routing.router("tiny")
    assert warming.route is not None
    (home,) = [name for name, replica in replicas.items() if warming.id in replica.runs]
    assert not router.holds(home, split_names(warming.route.names)), "it was not computed to its end"


async def test_a_hot_prefix_is_forgotten_after_a_while(
    pair: tuple[Fleet, dict[str, FakeReplica]], monkeypatch: pytest.MonkeyPatch
) -> None:
    fleet, replicas = pair
    await hot(fleet)
    monkeypatch.setattr("gateway.fleet.routing._KEPT_S", 0.0)
    assert await start_again(fleet, replicas) == []


async def test_an_older_replica_is_sent_none_and_what_it_journals_is_acknowledged(
    pair: tuple[Fleet, dict[str, FakeReplica]],
) -> None:
    fleet, replicas = pair
    await hot(fleet)
    await until(lambda: any(ack.id.startswith(WARMING) for one in replicas.values() for ack in one.acked))
    for replica in replicas.values():
        assert not any(done.id.startswith(WARMING) for done in replica.journal.values()), "it would be told for ever"


async def test_replicas_of_an_older_version_are_sent_none(model: ServedModel, tmp_path: Path) -> None:
    replicas = {f"r{n}": FakeReplica(tmp_path / f"{n}", model.text_digest, name=f"r{n}") for n in range(2)}
    for replica in replicas.values():
        replica.script, replica.blocks, replica.version = Script(tokens=[1]), 100_000, ROUTING_VERSION - 1
    async with fleet_of(model, *replicas.values()) as fleet:
        await until(lambda: len(fleet.healthy("tiny")) == 2)
        await hot(fleet)
        await all_heard(fleet, replicas)
        assert warmings(replicas) == []


async def test_nothing_is_computed_ahead_for_who_leaves_unpaid_and_who_pays_bears_its_turn(
    pair: tuple[Fleet, dict[str, FakeReplica]],
) -> None:
    fleet, replicas = pair
    for replica in replicas.values():
        replica.script = Script(tokens=[1], queued=60)
    await hot(fleet, paid=False)
    await all_heard(fleet, replicas)
    assert warmings(replicas) == []
    assert not fleet.routing._unpaid
    for replica in replicas.values():
        replica.script = Script(tokens=[1])
    fleet.routing.router("tiny").hot = HotPrefixes()
    await hot(fleet, flow="tenant", sub_flow="project", weight=3)
    await until(lambda: warmings(replicas))
    (warming,) = warmings(replicas)
    assert (warming.flow, warming.sub_flow, warming.weight, warming.lane) == ("tenant", "project", 3, "batch")


async def test_nothing_is_computed_ahead_with_an_adapter(pair: tuple[Fleet, dict[str, FakeReplica]]) -> None:
    """Its slot has a price."""
    fleet, replicas = pair
    await hot(fleet, adapter="digest@owner")
    await all_heard(fleet, replicas)
    assert warmings(replicas) == []


@pytest.mark.parametrize("figure", [math.nan, math.inf, -math.inf, -1.0, 1e300])
async def test_a_replica_that_tells_nonsense_of_itself_stops_no_request(
    figure: float, pair: tuple[Fleet, dict[str, FakeReplica]]
) -> None:
    fleet, replicas = pair
    gateways = "turnpike_engine_gateways"
    names = (PROMPT_TOKEN_S, DECODE_STEP_S, DECODE_ROW_S, PROMPT_CHUNK, "turnpike_engine_dram_token_seconds", gateways)
    replicas["r0"].metrics = dict.fromkeys(names, figure)
    link = next(link for link in fleet.links if link.replica == "r0")
    await until(lambda: link.beat is not None and gateways in link.beat.metrics)
    for number in range(3):
        await end(fleet, send(fleet, f"q{number}", number, 2))
    say(replicas["r0"], Load({"standard": 1 << 62, "batch": -5}, 1 << 40))
    await until(lambda: fleet.routing.backlog("tiny", fleet.links) > 1000)
    assert math.isfinite(fleet.routing.backlog("tiny", fleet.links))
    await until(lambda: len(fleet.healthy("tiny")) == 2)
    assert await end(fleet, send(fleet, "last", 7, 8)) == "r1"


def test_registries_stay_apart(model: ServedModel) -> None:
    fleet = Fleet([], gateway="g", link_key=b"k" * 32, models=ModelRegistry([model]))
    assert fleet.backlog("tiny") == 0.0
    fleet.routing.wait_at_gateway("tiny", 10_000)
    assert fleet.backlog("tiny") > 0
    assert fleet.backlog("other") == 0.0
    fleet.routing.wait_at_gateway("tiny", -10_000)
    assert fleet.backlog("tiny") == 0.0
