"""Adapters as a tenant's people and operators see them: uploaded, listed with use and cost, billed by the hour."""

from __future__ import annotations

import argparse
import asyncio
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest
from sqlalchemy import literal
from sqlalchemy.exc import IntegrityError

from billing.calendar import period_of
from billing.prices import PriceCatalog
from billing.rating.rated_lines import rated_lines
from file_store.adapter_residency import HOUR, AdapterResidency, ResidencyCount
from file_store.adapters import AdapterStore
from file_store.store import STRAY_S
from gateway.adapters import residency_recorder
from protocol.adapters import ResidentAdapter, adapter_name
from storage.database.base import Count
from storage.database.database import DatabaseUnavailable
from tests import adapter_files
from tests.gateway.admin.desk import Desks
from tests.gateway.admin.test_batches import admin_key, base
from tests.gateway.endpoints.test_adapters import chat, tensors, upload
from tests.gateway.endpoints.test_files import blobs, folder_of, foreign_key
from tests.gateway.stack import PRICES, Stack
from turnpike.api.client import Api, Remote
from turnpike.commands.adapters import _FILES, _upload
from turnpike.processes.adapter_upkeep import AdapterUpkeep

_SECOND = 1_000_000


async def by_admin(stack: Stack, name: str = "support", **changes: Any) -> httpx.Response:
    """Upload an adapter for the stack's project, as its tenant's administrator."""
    form = {"model": "tiny", "name": name, "config": adapter_files.config(4, 8).decode()} | changes
    files = {"file": ("adapter_model.safetensors", form.pop("file", tensors()))}
    path = f"{base(stack)}/projects/default/adapters"
    return await stack.http.post(path, headers=admin_key(stack), data=form, files=files, timeout=60)


async def listed(stack: Stack, query: str = "") -> list[dict[str, Any]]:
    answer = await stack.http.get(f"{base(stack)}/adapters{query}", headers=admin_key(stack))
    assert answer.status_code == 200, answer.text
    return list(answer.json()["data"])


def resident(stack: Stack, adapter: dict[str, Any], hour: int, milliseconds: int) -> ResidentAdapter:
    """What a replica says of an adapter of the stack's project. `hour`: in microseconds."""
    name = adapter_name(adapter["digest"], stack.project.id.hex)
    return ResidentAdapter(name, hour // _SECOND, milliseconds, ready=True)


async def test_an_adapter_is_uploaded_listed_with_its_use_and_deleted(stack: Stack) -> None:
    checked = await by_admin(stack, dry_run="true")
    assert (checked.status_code, checked.json()["created_at"]) == (200, None), checked.text
    assert await listed(stack) == []
    assert blobs(folder_of(stack)) == []
    made = (await by_admin(stack)).json()
    assert (made["model"], made["base"], made["rank"], made["project"]) == ("tiny:support", "tiny", 4, "default")
    assert (await by_admin(stack, dry_run="true")).status_code == 409, "the name is taken"
    assert (await by_admin(stack, dry_run="maybe")).json()["error"]["param"] == "dry_run"
    stack.say("yes")
    assert (await stack.post(chat("tiny:support"))).status_code == 200
    (event,) = await stack.settled(1)
    (shown,) = await listed(stack)
    use = shown["use"]
    assert (use["requests"], use["output_tokens"]) == (1, event.output)
    assert use["input_tokens"] == event.uncached
    assert float(use["cost"][0]["amount"]) * 10**12 == event.cost_pico
    assert shown["resident"] == []
    for query, count in (("?project=default", 1), (f"?after={made['id']}", 0), ("?limit=1", 1)):
        assert len(await listed(stack, query)) == count, query
    gone = await stack.http.delete(f"{base(stack)}/adapters/{made['id']}", headers=admin_key(stack))
    assert gone.json()["deleted"]
    assert blobs(folder_of(stack)) == []
    actors = await stack.rows("SELECT action FROM audit_entry WHERE action LIKE 'adapter.%' ORDER BY number")
    assert [row.action for row in actors] == ["adapter.created", "adapter.deleted"]


async def test_a_refusal_names_the_part_in_words(stack: Stack) -> None:
    refused = await by_admin(stack, config=adapter_files.config(4, 8, use_dora=True).decode())
    assert refused.status_code == 400
    assert "use_dora: DoRA scales weights" in refused.json()["error"]["message"]
    assert (await by_admin(stack, model="nothing")).status_code == 404


async def test_it_is_shown_where_an_adapter_is_ready(stack: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
    adapter, hour = (await upload(stack)).json(), await stack.database.now() // HOUR * HOUR
    stranger = ResidentAdapter("0" * 64 + "@nobody", hour // _SECOND, 1, ready=True)
    stack.replica.resident = (resident(stack, adapter, hour, 10), stranger)
    link = stack.gateway.services.fleet.links[0]
    await stack.until(lambda: link.beat is not None and len(link.beat.adapters) == 2)
    (shown,) = await listed(stack)
    assert shown["resident"] == [link.replica]
    (replica,) = (await Desks(stack, monkeypatch).operator("admin").get("/fleet"))["data"]
    models = {one["model"]: one for one in replica["adapters"]}
    assert set(models) == {"tiny:support", None}
    assert models["tiny:support"]["digest"] == adapter["digest"]
    assert models[None]["project_id"] is None


async def test_hours_of_a_ready_adapter_are_billed_once_at_its_own_price_or_its_bases(stack: Stack) -> None:
    """Two workers pass on the same heartbeats, and the worker that records is called twice."""
    one, two = (await upload(stack, "one")).json(), (await upload(stack, "two", seed=2)).json()
    catalog = PriceCatalog(stack.database)
    await catalog.set("tiny", "USD", PRICES | {"resident": "50"})
    await catalog.set("tiny:two", "USD", PRICES | {"resident": "80"})
    hour = await stack.database.now() // HOUR * HOUR + HOUR
    stack.replica.resident = (resident(stack, one, hour, 1_800_000), resident(stack, two, hour, 36_000))
    link, recorder = stack.gateway.services.fleet.links[0], stack.gateway.residency
    assert recorder is not None
    await stack.until(lambda: link.beat is not None and len(link.beat.adapters) == 2)
    await recorder.pass_on()
    recorder._passed_on.clear()
    await recorder.pass_on()
    upkeep = AdapterUpkeep(stack.database, PriceCatalog(stack.database))
    assert not await upkeep.run(), "the hour is not over"
    stack.database.clock = literal(hour + 2 * HOUR, Count())
    assert await upkeep.run()
    await recorder.pass_on()
    while await upkeep.run():
        pass
    lines = await rated_lines(stack.database, catalog, stack.tenant.id, period_of(hour))
    billed = {line.model: (line.kind, line.units, line.exact_pico) for line in lines}
    assert billed == {
        "tiny:one": ("residency", 500, 500 * 50_000_000),
        "tiny:two": ("residency", 10, 10 * 80_000_000),
    }
    used = {shown["name"]: shown["use"] for shown in await listed(stack)}
    assert used["one"]["ready_hours"] == 0.5


async def test_counts_of_an_hour_that_ends_while_the_database_is_away_are_billed(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A replica tells the count of an hour that is over for a minute, and what none can be is cut or left out."""
    one, two = (await upload(stack, "one")).json(), (await upload(stack, "two", seed=2)).json()
    hour = await stack.database.now() // HOUR * HOUR
    stack.replica.resident = (
        resident(stack, one, hour, 1_800_000),
        resident(stack, two, hour, 9_000_000),
        resident(stack, two, -HOUR, 1000),
        resident(stack, two, _SECOND << 60, 1000),
    )
    link, recorder = stack.gateway.services.fleet.links[0], stack.gateway.residency
    assert recorder is not None
    await stack.until(lambda: link.beat is not None and len(link.beat.adapters) == 4)
    with monkeypatch.context() as away:
        away.setattr(AdapterStore, "of_digests", database_is_away)
        with pytest.raises(DatabaseUnavailable):
            await recorder.pass_on()
    stack.replica.resident = ()
    await stack.until(lambda: link.beat is not None and not link.beat.adapters)
    await recorder.pass_on()
    rows = await stack.rows("SELECT model, milliseconds FROM adapter_residency ORDER BY model")
    assert [tuple(row) for row in rows] == [("tiny:one", 1_800_000), ("tiny:two", 3_600_000)]


async def test_no_error_ends_what_passes_counts_on(stack: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
    adapter = (await upload(stack)).json()
    hour = await stack.database.now() // HOUR * HOUR
    stack.replica.resident = (resident(stack, adapter, hour, 1_800_000),)
    link, recorder = stack.gateway.services.fleet.links[0], stack.gateway.residency
    assert recorder is not None
    await stack.until(lambda: link.beat is not None and len(link.beat.adapters) == 1)
    asked, report = list[int](), AdapterResidency.report

    async def refuse_at_first(self: AdapterResidency, counts: Sequence[ResidencyCount]) -> None:
        asked.append(len(counts))
        if len(asked) < 3:
            raise IntegrityError("INSERT", None, ValueError("a check"))
        await report(self, counts)

    monkeypatch.setattr(AdapterResidency, "report", refuse_at_first)
    monkeypatch.setattr(residency_recorder, "EVERY_S", 0.01)
    running = asyncio.create_task(recorder.run())
    for _ in range(1000):
        if rows := await stack.rows("SELECT milliseconds FROM adapter_residency"):
            break
        await asyncio.sleep(0.01)
    assert not running.done()
    running.cancel()
    assert [tuple(row) for row in rows] == [(1_800_000,)]


async def database_is_away(*_: Any) -> Any:
    raise DatabaseUnavailable("away")


async def test_an_upload_that_was_abandoned_leaves_nothing(stack: Stack) -> None:
    """A gateway died between writing and saving: the blob has no row, and goes after a day."""
    files = stack.gateway.files
    assert files is not None
    _, writer = await files.begin(stack.tenant.id, stack.project.id)
    await writer.append(tensors())
    await writer.commit()
    (blob,) = blobs(folder_of(stack))
    assert await files.forget() == 0
    old = blob.stat().st_mtime - STRAY_S - 60
    os.utime(blob, (old, old))
    assert await files.forget() == 1
    assert blobs(folder_of(stack)) == []


async def test_tokens_of_an_adapted_model_are_counted_for_its_own_project_alone(stack: Stack) -> None:
    await upload(stack)
    messages = {"messages": [{"role": "user", "content": "hello"}]}
    for path, body, more in (
        ("/v1/messages/count_tokens", messages, {"anthropic-version": "2023-06-01"}),
        ("/v1/responses/input_tokens", {"input": "hello"}, {}),
    ):
        counted = []
        for model, key in (("tiny", stack.key), ("tiny:support", stack.key), ("tiny:nothing", stack.key)):
            headers = {"authorization": f"Bearer {key}"} | more
            counted.append(await stack.http.post(path, headers=headers, json={"model": model} | body))
        assert [answer.status_code for answer in counted] == [200, 200, 404], path
        assert counted[0].json()["input_tokens"] == counted[1].json()["input_tokens"]
    headers = {"authorization": f"Bearer {await foreign_key(stack)}"}
    refused = await stack.http.post(
        "/v1/responses/input_tokens", headers=headers, json={"model": "tiny:support", "input": "hello"}
    )
    assert refused.status_code == 404


async def test_the_command_uploads_with_the_key_of_a_project_or_of_a_tenant(stack: Stack, tmp_path: Path) -> None:
    for name, content in zip(_FILES, (adapter_files.config(4, 8), tensors()), strict=True):
        (tmp_path / name).write_bytes(content)
    url = str(stack.http.base_url)
    for key, name, tenant in ((stack.key, "one", None), (stack.admin_key, "two", stack.tenant.name)):
        remote = Remote(url, key)
        async with remote.client:
            words = {"folder": tmp_path, "base": "tiny", "name": name, "tenant": tenant, "project": "default"}
            await _upload(Api(remote), argparse.Namespace(**words, dry_run=False, format="table"))
    assert [adapter["name"] for adapter in await listed(stack)] == ["two", "one"]
