"""The isolation audit at small scale, through a whole gateway: one that isolates passes, one that does not is seen."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Callable
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
from turnpike.commands.audit.isolation_audit import Asked, IsolationAudit, KeptReport, interrupted
from turnpike.commands.audit.isolation_probe import IsolationProbe, Report, Timing

__all__ = ["model_folder", "stocked_sqlite_url"]
SAMPLES = 16
"""15 of each are the fewest that can be improbable enough."""
COLD_S, NOISE_S = 1.0, 0.5


class KvModel:
    """A replica's KV as far as its time to the first token goes, on a clock of its own; `isolated`: by scope."""

    def __init__(self, stack: Stack, *, isolated: bool) -> None:
        self.now = 0.0
        self._noise = random.Random(3)
        self._answer = stack.tokens("ok")
        self._isolated = isolated
        self._seen: dict[str, set[tuple[int, ...]]] = {}

    def __call__(self, generate: Generate) -> Script:
        seen = self._seen.setdefault(generate.segments[-1].scope if self._isolated else "", set())
        blocks = [tuple(generate.tokens[:end]) for end in range(64, len(generate.tokens), 64)]
        read = 64 * next((index for index, block in enumerate(blocks) if block not in seen), len(blocks))
        seen.update(blocks)
        self.now += COLD_S * (1 - read / len(generate.tokens)) + self._noise.uniform(0, NOISE_S)
        return Script(tokens=self._answer, read_hbm=read)


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


async def probe_of(stack: Stack, *, isolated: bool, seed: int = 7) -> IsolationProbe:
    model = stack.replica.script = KvModel(stack, isolated=isolated)
    projects = {project.name: project for project in await stack.tenancy.list_projects(stack.tenant.id)}
    other = projects.get("other") or await stack.tenancy.create_project(stack.tenant.id, "other")
    issued = await stack.tenancy.create_key(stack.tenant.id, other.id)
    probe = IsolationProbe(stack.http, "tiny", stack.key, issued.key, prompt_words=80, seed=seed)
    probe.clock = lambda: model.now
    return probe


@pytest.mark.slow
async def test_a_gateway_that_isolates_passes(stack: Stack) -> None:
    probe = await probe_of(stack, isolated=True)
    control = await probe.time("same", SAMPLES, same_project=True)
    attack = await probe.time("other", SAMPLES, same_project=False)
    report = Report((control, attack), await probe.oracles())
    assert report.has_power, control.test
    assert not report.leaks, (attack.test, attack.cached, report.oracles)
    assert len({oracle.name for oracle in report.oracles}) >= 8


async def test_one_that_does_not_is_seen(stack: Stack) -> None:
    restarts = []

    async def restart() -> None:
        restarts.append(len(stack.replica.runs))

    probe = await probe_of(stack, isolated=False)
    attack = await probe.time("other, after a restart", SAMPLES, same_project=False, between=restart)
    assert restarts == [SAMPLES], "every victim had sent its prompt by then"
    assert attack.test.p < 1e-8
    assert attack.cached > 0
    assert Report((attack,), ()).leaks


@pytest.mark.slow
async def test_an_interrupted_audit_goes_on(stack: Stack, tmp_path: Path) -> None:
    """With what it has measured, and with prompts that it has not sent."""
    asked, path = Asked("http://here", "acme", "tiny", SAMPLES, 80, ("nothing",)), tmp_path / "report.json"
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
    assert [(one.name, len(one.shared), len(one.new)) for one in report.timings] == [
        (name, SAMPLES, SAMPLES)
        for name in ("same project", "same project, after nothing", "other project", "other project, after nothing")
    ]
    assert report.timings[0].shared[: len(timings[0].shared)] == timings[0].shared
    assert report.has_power
    assert not report.leaks
    with pytest.raises(CommandError, match="is finished"):
        interrupted(path, asked)


def test_what_cannot_be_resumed_is_said(tmp_path: Path) -> None:
    path, asked = tmp_path / "report.json", Asked("http://here", "acme", "tiny", SAMPLES, 80, ())
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
        {"words": 81},
        {"url": "http://there"},
    ):
        with pytest.raises(CommandError, match="another audit"):
            interrupted(path, msgspec.structs.replace(asked, **changed))
