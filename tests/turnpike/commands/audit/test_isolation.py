"""The isolation audit at small scale, through a whole gateway: one that isolates passes, one that does not is seen."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import msgspec
import pytest

from billing.prices import PriceCatalog
from protocol.requests import Generate
from storage.database.database import Database
from tests.gateway.conftest import model_folder, stocked_sqlite_url
from tests.gateway.endpoints.test_message_caching import LEASED
from tests.gateway.fake_replica import Script
from tests.gateway.stack import Stack, running_stack
from turnpike.command_line import CommandError
from turnpike.commands.audit import isolation_places
from turnpike.commands.audit.isolation_audit import Asked, IsolationAudit, KeptReport, interrupted
from turnpike.commands.audit.isolation_places import AS_IT_IS, TIERS, Place, alone_in
from turnpike.commands.audit.isolation_probe import IsolationProbe, Report, Timing

__all__ = ["model_folder", "stocked_sqlite_url"]
SAMPLES = 16
"""15 of each are the fewest that can be improbable enough."""
COLD_S, NOISE_S = 1.0, 0.5


class KvModel:
    """A replica's KV as far as its time to the first token goes, on a clock of its own; `isolated`: by scope.

    Device memory has `hbm` blocks of it, those used last, host memory the `dram` before them, and the disk what was
    used twice.
    """

    def __init__(self, stack: Stack, *, isolated: bool, hbm: int = 10**6, dram: int = 0) -> None:
        self.now = 0.0
        self._noise = random.Random(3)
        self._answer = stack.tokens("ok")
        self._isolated = isolated
        self._hbm, self._dram = hbm, dram
        self._uses: dict[int, int] = {}
        """By a hash of scope and tokens up to a block's end, those used last at the end."""

    def __call__(self, generate: Generate) -> Script:
        scope = generate.segments[-1].scope if self._isolated else ""
        blocks = [hash((scope, *generate.tokens[:end])) for end in range(64, len(generate.tokens), 64)]
        rank = {block: index for index, block in enumerate(reversed(self._uses))}
        found = {"hbm": 0, "dram": 0, "nvme": 0}
        for block in blocks:
            if (tier := self._tier(rank.get(block), self._uses.get(block, 0))) is None:
                break
            found[tier] += 64
        for block in reversed(blocks):  # a prompt's tail goes before its front
            self._uses[block] = self._uses.pop(block, 0) + 1
        self.now += COLD_S * (1 - sum(found.values()) / len(generate.tokens)) + self._noise.uniform(0, NOISE_S)
        return Script(tokens=self._answer, read_hbm=found["hbm"], read_dram=found["dram"], read_nvme=found["nvme"])

    def _tier(self, rank: int | None, uses: int) -> str | None:
        if rank is None:
            return None
        if rank < self._hbm + self._dram:
            return "hbm" if rank < self._hbm else "dram"
        return "nvme" if uses > 1 else None


@pytest.fixture
async def stack(stocked_sqlite_url: str, tmp_path: Path, model_folder: Path) -> AsyncIterator[Stack]:
    database = await Database.open(stocked_sqlite_url)
    await PriceCatalog(database).set("tiny", "USD", LEASED)
    await database.close()
    async with running_stack(stocked_sqlite_url, tmp_path, model_folder) as running:
        yield running


class Interrupted(Exception):
    """Somebody stopped the audit."""


def until(clock: Callable[[], float], ended: Callable[[], bool]) -> Callable[[], float]:
    """A clock at which the audit is interrupted."""

    def ticking() -> float:
        if ended():
            raise Interrupted
        return clock()

    return ticking


async def probe_of(stack: Stack, *, isolated: bool, seed: int = 7, **memory: int) -> IsolationProbe:
    model = stack.replica.script = KvModel(stack, isolated=isolated, **memory)
    projects = {project.name: project for project in await stack.tenancy.list_projects(stack.tenant.id)}
    other = projects.get("other") or await stack.tenancy.create_project(stack.tenant.id, "other")
    issued = await stack.tenancy.create_key(stack.tenant.id, other.id)
    probe = IsolationProbe(stack.http, "tiny", stack.key, issued.key, prompt_words=80, seed=seed)
    probe.clock = lambda: model.now
    return probe


@pytest.mark.slow
async def test_a_gateway_that_isolates_passes(stack: Stack) -> None:
    probe = await probe_of(stack, isolated=True)
    control = await probe.time(AS_IT_IS, SAMPLES, same_project=True)
    attack = await probe.time(AS_IT_IS, SAMPLES, same_project=False)
    report = Report((control, attack), await probe.oracles(AS_IT_IS))
    assert report.has_power, control.test
    assert not report.leaks, (attack.test, attack.cached, report.oracles)
    assert len({oracle.name for oracle in report.oracles}) >= 8


async def test_one_that_does_not_is_seen(stack: Stack) -> None:
    restarts = []

    async def restart() -> None:
        restarts.append(len(stack.replica.runs))

    probe = await probe_of(stack, isolated=False)
    attack = await probe.time(Place("restart", None, 1, None, restart), SAMPLES, same_project=False)
    assert restarts == [SAMPLES], "every victim had sent its prompt by then"
    assert attack.test.p < 1e-8
    assert attack.cached > 0
    assert Report((attack,), ()).leaks


class Remembering:
    """A replica that sends an output in one piece if it remembers it, else token by token; `isolated`: by scope.

    Its clock goes on with each piece that the probe reads."""

    def __init__(self, stack: Stack, *, isolated: bool) -> None:
        self._answer = stack.tokens("an answer of a few words, to be remembered whole")[:8]
        self._isolated = isolated
        self._known: set[tuple[str, ...] | str] = set()
        self._noise = random.Random(5)
        self._now = 0.0

    def __call__(self, generate: Generate) -> Script:
        scope = generate.segments[-1].scope if self._isolated else ""
        key = repr((scope, generate.tokens))
        burst = len(self._answer) if key in self._known else 1
        self._known.add(key)
        return Script(tokens=self._answer, burst=burst, pause=0.01, read_hbm=64 if burst > 1 else 0)

    def clock(self) -> float:
        self._now += self._noise.uniform(1.0, 1.5)
        return self._now


@pytest.mark.slow
@pytest.mark.parametrize("isolated", [True, False])
async def test_what_a_replica_remembers_of_outputs_is_attacked(stack: Stack, isolated: bool) -> None:
    probe = await probe_of(stack, isolated=True)
    replica = stack.replica.script = Remembering(stack, isolated=isolated)
    probe.clock = replica.clock
    # Some more than are needed: pieces that come while the machine is busy are read at once.
    asked = Asked("http://here", "acme", "tiny", SAMPLES + 8, 80, (), (), drafts=True)
    report = await IsolationAudit(probe, asked, None).run(())
    attack, control = (
        next(timing for timing in report.timings if (timing.place, timing.same_project) == ("drafts", same))
        for same in (False, True)
    )
    assert control.test.p < 1e-8, "the same project may be quicker"
    assert (attack.test.p < 1e-8) != isolated


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The replica of these tests needs no time to write to its disk."""
    monkeypatch.setattr(isolation_places, "SETTLE_S", 0.0)
    monkeypatch.setattr(isolation_places, "AT_ONCE", {"hbm": 2, "dram": 4})


@pytest.mark.slow
@pytest.mark.usefixtures("at_once")
@pytest.mark.parametrize(("isolated", "tiers"), [(True, TIERS[:2]), (False, TIERS[1:2])])
async def test_each_tier_is_attacked_alone(stack: Stack, isolated: bool, tiers: tuple[str, ...]) -> None:
    asked = Asked("http://here", "acme", "tiny", SAMPLES, 80, tiers, ())
    report = await IsolationAudit(await probe_of(stack, isolated=isolated, hbm=40, dram=10**6), asked, None).run(())
    controls = [timing for timing in report.timings if timing.same_project]
    attacks = [timing for timing in report.timings if not timing.same_project]
    assert [timing.place for timing in controls] == [timing.place for timing in attacks] == list(tiers)
    for timing in controls if not isolated else report.timings:
        assert timing.there == timing.looked > 0, (timing.place, timing.same_project)
    assert all(timing.detected for timing in controls)
    assert [timing.detected for timing in attacks] == [not isolated] * len(tiers)
    assert report.leaks != isolated
    assert report.has_power or not isolated, "what leaked was moved by the attacker"
    assert {oracle.place for oracle in report.oracles} == set(tiers)


@pytest.mark.usefixtures("at_once")
@pytest.mark.parametrize("tier", TIERS)
async def test_others_drive_a_prompt_into_a_tier(tier: str) -> None:
    """Memory for 5 prompts and for 30 behind it; what was sent twice is on disk."""
    used: dict[int, int] = {}

    def victim() -> Callable[[], Awaitable[str]]:
        number = len(used)
        used[number] = 0

        async def ask() -> str:
            rank = list(reversed(used)).index(number)
            uses = used.pop(number)
            used[number] = uses + 1
            return "" if not uses else "hbm" if rank < 5 else "dram" if rank < 35 else "nvme" if uses > 1 else ""

        return ask

    place = await alone_in(tier, victim)
    asks = [victim() for _ in range(place.batch or 3)]
    for ask in asks:
        for _ in range(place.uses):
            await ask()
    await place.move()
    assert {await ask() for ask in asks} == {tier}


@pytest.mark.usefixtures("at_once")
async def test_a_tier_that_no_prompt_comes_to_is_said(stack: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(isolation_places, "MOST_FILLERS", 8)
    probe = await probe_of(stack, isolated=True)
    with pytest.raises(CommandError, match="--tier nvme: after 8 other prompts one was read from hbm"):
        await probe.place("nvme")


@pytest.mark.slow
@pytest.mark.usefixtures("at_once")
async def test_an_interrupted_audit_goes_on(stack: Stack, tmp_path: Path) -> None:
    """With what it has measured, and with prompts that it has not sent."""
    asked, path = Asked("http://here", "acme", "tiny", SAMPLES, 80, (), ("nothing",)), tmp_path / "report.json"
    steps = [("nothing", "true")]
    timings: tuple[Timing, ...] = ()
    for seed, stop in enumerate((25, 65)):
        probe = await probe_of(stack, isolated=True, seed=seed)
        probe.clock = until(probe.clock, lambda stop=stop: len(stack.replica.runs) >= stop)  # type: ignore[misc]
        with pytest.raises(Interrupted):
            await IsolationAudit(probe, asked, path, timings).run(steps)
        before, timings = timings, interrupted(path, asked)
        assert [one.shared[: len(two.shared)] for one, two in zip(timings, before, strict=False)] == [
            two.shared for two in before
        ]
        assert sum(len(one.shared) + len(one.new) for one in timings) > sum(len(one.shared) for one in before)
    report = await IsolationAudit(await probe_of(stack, isolated=True, seed=2), asked, path, timings).run(steps)
    assert [(one.place, one.same_project, len(one.shared), len(one.new)) for one in report.timings] == [
        (place, same, SAMPLES, SAMPLES) for place in ("", "nothing") for same in (True, False)
    ]
    assert report.timings[0].shared[: len(timings[0].shared)] == timings[0].shared
    assert report.has_power
    assert not report.leaks
    with pytest.raises(CommandError, match="is finished"):
        interrupted(path, asked)


def test_what_cannot_be_resumed_is_said(tmp_path: Path) -> None:
    path, asked = tmp_path / "report.json", Asked("http://here", "acme", "tiny", SAMPLES, 80, (), ())
    with pytest.raises(CommandError, match="no report"):
        interrupted(path, asked)
    path.write_text('{"timings": []}')
    with pytest.raises(CommandError, match="no report"):
        interrupted(path, asked)
    path.write_bytes(msgspec.json.encode(KeptReport(asked, finished=False, timings=(), oracles=())))
    assert interrupted(path, asked) == ()
    for changed in (
        {"samples": 17},
        {"tenant": "other"},
        {"steps": ("restart",)},
        {"tiers": ("dram",)},
        {"words": 81},
        {"url": "http://there"},
    ):
        with pytest.raises(CommandError, match="another audit"):
            interrupted(path, msgspec.structs.replace(asked, **changed))
