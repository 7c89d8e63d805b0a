"""Draining replicas over /admin/v1: they take no more requests, run on what they have, and say so."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from msgspec import structs

from protocol.replicas import DRAIN_VERSION, LEASED_BLOCKS, LEASES_END
from tests.gateway.admin.desk import Desk, Desks
from tests.gateway.stack import Stack, running_stack

BODY = {"model": "tiny", "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 8}


@pytest.fixture
async def pair(stocked_sqlite_url: str, tmp_path: Path, model_folder: Path) -> AsyncIterator[Stack]:
    """A gateway with two replicas."""
    async with running_stack(stocked_sqlite_url, tmp_path, model_folder, replicas=2) as running:
        await running.ready(2)
        yield running


@pytest.fixture
def operator(pair: Stack, monkeypatch: pytest.MonkeyPatch) -> Desk:
    return Desks(pair, monkeypatch).operator("admin")


async def states(desk: Desk) -> dict[str, str]:
    return {one["name"]: one["state"] for one in (await desk.get("/fleet"))["data"]}


async def test_requests_go_to_the_other_replica_and_what_runs_is_finished(pair: Stack, operator: Desk) -> None:
    first, second = pair.replicas
    for replica in pair.replicas:
        pair.say("one two three", pause=0.1)
        replica.script = pair.replica.script
    running = asyncio.create_task(pair.post(BODY))
    await pair.until(lambda: bool(first.runs or second.runs))
    busy, free = (first, second) if first.runs else (second, first)
    drained = await operator.post(f"/fleet/{busy.name}/drain", {"reason": "new driver"})
    assert (drained["name"], drained["state"], drained["running"]) == (busy.name, "draining", 1)
    answers = await asyncio.gather(*(pair.post(BODY) for _ in range(4)))
    assert [answer.status_code for answer in answers] == [200] * 4
    assert (len(busy.runs), len(free.runs)) == (1, 4)
    assert (await running).json()["choices"][0]["message"]["content"].startswith("one two")
    assert await states(operator) == {busy.name: "draining", free.name: "healthy"}
    assert (await operator.post(f"/fleet/{busy.name}/resume"))["state"] == "healthy"
    await pair.ready(2)
    entries = (await operator.get("/audit?action=replica.drained"))["data"]
    assert [(one["target"]["id"], one["reason"]) for one in entries] == [(busy.name, "new driver")]


async def test_the_replica_whose_leases_end_first_leaves_first(pair: Stack, operator: Desk) -> None:
    first, second = pair.replicas
    first.metrics = {LEASED_BLOCKS: 7.0, LEASES_END: 2_000_000_000.0}
    links = {link.replica: link for link in pair.gateway.services.fleet.links}
    await pair.until(lambda: (beat := links[first.name].beat) is not None and LEASES_END in beat.metrics)
    dry = await operator.post("/fleet/scale-in", {"model": "tiny", "dry_run": True})
    assert [(one["name"], one["state"]) for one in dry["leaving"]] == [(second.name, "healthy")]
    assert dry["staying"] == 1
    assert set((await states(operator)).values()) == {"healthy"}
    too_many = await operator.post("/fleet/scale-in", {"model": "tiny", "count": 2}, status=409)
    assert too_many["error"]["code"] == "too_few_replicas"
    done = await operator.post("/fleet/scale-in", {"model": "tiny", "reason": "night"})
    assert [(one["name"], one["state"], one["leased_blocks"]) for one in done["leaving"]] == [
        (second.name, "draining", 0)
    ]
    assert await states(operator) == {first.name: "healthy", second.name: "draining"}
    last = await operator.post("/fleet/scale-in", {"model": "tiny", "to_zero": True})
    assert [(one["leased_blocks"], one["leases_end_at"]) for one in last["leaving"]] == [(7, "2033-05-18T03:33:20Z")]
    assert last["staying"] == 0
    entries = (await operator.get("/audit?action=replica.drained"))["data"]
    assert {one["target"]["id"] for one in entries} == {first.name, second.name}


@pytest.mark.slow
async def test_without_another_replica_requests_are_told_to_come_again(pair: Stack, operator: Desk) -> None:
    for replica in pair.replicas:
        await operator.post(f"/fleet/{replica.name}/drain")
    refused = await pair.post(BODY)
    assert (refused.status_code, int(refused.headers["retry-after"]) >= 1) == (503, True)
    assert (await pair.http.get("/readyz")).status_code == 503
    assert not any(replica.runs for replica in pair.replicas)


@pytest.mark.slow
async def test_who_cannot_be_told_is_named(pair: Stack, operator: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = pair.replicas
    await operator.post("/fleet/none/drain", status=404)
    first.beating = False  # it is told, and never says that it was
    link = next(link for link in pair.gateway.services.fleet.links if link.replica == first.name)
    monkeypatch.setattr(link, "_options", type(link._options)(beat_timeout=0.2))
    silent = await operator.post(f"/fleet/{first.name}/drain", status=409)
    assert silent["error"]["code"] == "replica_down"
    old = next(link for link in pair.gateway.services.fleet.links if link.replica == second.name)
    assert old.hello is not None
    monkeypatch.setattr(old, "hello", structs.replace(old.hello, version=DRAIN_VERSION - 1))
    too_old = await operator.post(f"/fleet/{second.name}/drain", status=409)
    assert too_old["error"]["code"] == "replica_too_old"
    assert not second.draining


@pytest.mark.slow
@pytest.mark.parametrize("role", ["finance", "developer", "viewer"])
async def test_only_those_who_run_the_platform_drain(pair: Stack, role: str, monkeypatch: pytest.MonkeyPatch) -> None:
    desks = Desks(pair, monkeypatch)
    refused = await desks.operator(role).call("POST", "/fleet/replica-0/drain")  # type: ignore[arg-type]
    assert refused.status_code == 403
    assert (await desks.own().call("POST", "/fleet/replica-0/drain")).status_code == 403
    assert not pair.replica.draining
