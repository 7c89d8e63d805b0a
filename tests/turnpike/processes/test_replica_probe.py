"""Probing a replica: it is only looked at, and working without getting on is not well."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path

import msgspec
import pytest

from tests.gateway.fake_replica import LINK_KEY, FakeReplica
from turnpike.command_line import CommandError
from turnpike.commands.engine import probe_engine
from turnpike.processes.replica_probe import Unreachable, probe
from turnpike.settings import secrets
from turnpike.settings.settings import Settings


@pytest.fixture
async def replica(tmp_path: Path) -> AsyncIterator[FakeReplica]:
    made = FakeReplica(tmp_path / "replica.sock", "t" * 64)
    await made.start()
    yield made
    await made.stop()


async def test_a_probe_gives_no_name_so_that_nothing_is_handed_over_to_it(replica: FakeReplica) -> None:
    answer = await probe(replica.address, LINK_KEY)
    assert answer.hello.replica == "replica-0"
    assert answer.heartbeat is not None
    assert answer.advancing
    assert [dial.gateway for dial in replica.dials] == [""]


async def test_work_without_steps_is_not_well(
    replica: FakeReplica, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    replica.busy = 1
    assert (await probe(replica.address, LINK_KEY)).advancing, "its steps go on"
    replica.stuck = True
    assert not (await probe(replica.address, LINK_KEY, timeout_s=0.5)).advancing
    file = tmp_path / "secrets.json"
    secrets.save(msgspec.structs.replace(secrets.generate(), link_key=LINK_KEY), file)
    monkeypatch.setattr("turnpike.commands.engine.probe", partial(probe, timeout_s=0.5))
    settings = Settings(listen=replica.address, secrets_file=str(file))
    with pytest.raises(CommandError, match="still at step"):
        await asyncio.to_thread(probe_engine, settings)


async def test_nobody_there(tmp_path: Path) -> None:
    with pytest.raises(Unreachable, match=r"nobody\.sock"):
        await probe(f"unix:{tmp_path}/nobody.sock", LINK_KEY)
