"""Suspensions: known to every process within a second, with a bus and without."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import pytest

from storage.bus import LocalBus, RedisBus
from storage.database.database import Database
from tenancy.administration.suspension import Suspension, Suspensions
from tenancy.keys import Peppers
from tenancy.repositories import NoSuchRecord, Tenancy
from tests.awake import Awake

PEPPERS = Peppers({1: b"p" * 32}, 1)


async def _until(condition: Any, seconds: float = 1.0) -> None:
    with Awake() as awake:
        while not condition():
            assert awake.seconds < seconds, "it is not known in time"
            await asyncio.sleep(0.005)


@pytest.mark.alone
async def test_it_is_heard_on_the_bus_and_says_what_ends(database: Database, redis_url: str, patient_bus: None) -> None:
    here, there = RedisBus(redis_url), RedisBus(redis_url)
    tenancy = Tenancy(database, PEPPERS, here)
    tenant = await tenancy.create_tenant("acme")
    project, other = [await tenancy.create_project(tenant.id, name) for name in ("web", "batch")]
    operator, gateway = Suspensions(database, here), Suspensions(database, there)
    ended: list[Suspension] = []
    gateway.on_end = ended.append
    await gateway.start()
    try:
        assert gateway.find(tenant.id, project.id) is None
        assert await operator.suspend(tenant.id, project.id, reason="quota")
        await _until(lambda: gateway.find(tenant.id, project.id) == "project")
        assert gateway.find(tenant.id, other.id) is None
        assert ended == []
        await operator.suspend(tenant.id, project.id, running="end")  # after all
        await _until(lambda: len(ended) == 1)
        await operator.suspend(tenant.id, running="end")
        await _until(lambda: gateway.find(tenant.id, other.id) == "tenant")
        assert [(one.tenant_id, one.project_id) for one in ended] == [(tenant.id, project.id), (tenant.id, None)]
        await operator.resume(tenant.id)
        await _until(lambda: gateway.find(tenant.id, other.id) is None)
        assert gateway.find(tenant.id, project.id) == "project"
        await gateway.refresh()
        assert len(ended) == 2, "what ended once does not end again"
    finally:
        await gateway.close()
        await here.close()
        await there.close()


@pytest.mark.alone
@pytest.mark.slow
async def test_another_process_without_a_bus_suspends_within_a_second(database: Database, database_url: str) -> None:
    bus = LocalBus()
    tenant = await Tenancy(database, PEPPERS, bus).create_tenant("acme")
    gateway = Suspensions(database, bus)
    ended: list[Suspension] = []
    gateway.on_end = ended.append
    await gateway.start()
    command = [sys.executable, "-m", "tests.tenancy.suspend_child", database_url, str(tenant.id)]
    child = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    assert child.stdout is not None
    assert await child.stdout.readline() == b"suspended\n"
    await _until(lambda: gateway.find(tenant.id) == "tenant")
    assert [one.reason for one in ended] == ["fraud"]
    await child.communicate()
    await gateway.close()
    await bus.close()


async def test_a_gateway_that_starts_later_knows_it(database: Database) -> None:
    bus = LocalBus()
    tenancy, operator = Tenancy(database, PEPPERS, bus), Suspensions(database, bus)
    acme, zoo = await tenancy.create_tenant("acme"), await tenancy.create_tenant("zoo")
    theirs = await tenancy.create_project(zoo.id, "web")
    await operator.suspend(acme.id)
    with pytest.raises(NoSuchRecord):
        await operator.suspend(acme.id, theirs.id)
    gateway = Suspensions(database, bus)
    await gateway.start()
    assert (gateway.find(acme.id), gateway.find(zoo.id, theirs.id)) == ("tenant", None)
    await gateway.close()
    await bus.close()


async def test_no_error_keeps_a_gateway_from_what_is_suspended_next(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    bus = LocalBus()
    tenancy, operator = Tenancy(database, PEPPERS, bus), Suspensions(database, bus)
    tenants = [await tenancy.create_tenant(name) for name in ("acme", "zoo", "third")]
    gateway = Suspensions(database, bus)
    ended: list[Suspension] = []

    def end(suspension: Suspension) -> None:
        ended.append(suspension)
        raise RuntimeError("a request would not end")

    gateway.on_end = end
    await gateway.start()
    read, failures = gateway._read, iter([RuntimeError("unexpected")])

    async def failing() -> Any:
        for error in failures:
            raise error
        return await read()

    try:
        await operator.suspend(tenants[0].id, running="end")
        await _until(lambda: gateway.find(tenants[0].id) == "tenant")
        await operator.suspend(tenants[1].id, running="end")
        await _until(lambda: len(ended) == 2)
        monkeypatch.setattr(gateway, "_read", failing)
        await operator.suspend(tenants[2].id)
        await _until(lambda: gateway.find(tenants[2].id) == "tenant", 3.0)
    finally:
        await gateway.close()
        await bus.close()
