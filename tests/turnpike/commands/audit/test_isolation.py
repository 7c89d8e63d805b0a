"""The isolation audit at small scale, through a whole gateway: one that isolates passes, one that does not is seen."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from billing.prices import PriceCatalog
from protocol.requests import Generate
from storage.database.database import Database
from tests.gateway.conftest import model_folder, stocked_sqlite_url
from tests.gateway.endpoints.test_message_caching import LEASED
from tests.gateway.fake_replica import Script
from tests.gateway.stack import Stack, running_stack
from turnpike.commands.audit.isolation_probe import IsolationProbe, Report

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


async def probe_of(stack: Stack, *, isolated: bool) -> IsolationProbe:
    model = stack.replica.script = KvModel(stack, isolated=isolated)
    other = await stack.tenancy.create_project(stack.tenant.id, "other")
    issued = await stack.tenancy.create_key(stack.tenant.id, other.id)
    probe = IsolationProbe(stack.http, "tiny", stack.key, issued.key, prompt_words=80, seed=7)
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
