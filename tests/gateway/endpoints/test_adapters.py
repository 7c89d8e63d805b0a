"""Adapters of a project: uploaded, listed, asked for behind a model's name, billed, deleted; and nobody else's."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import httpx
import pytest

from billing.prices import PriceCatalog
from file_store.adapters import MOST_ADAPTERS
from gateway.services import GatewayOptions
from model_files.adapter_file import read_packed
from protocol.adapters import adapter_name
from tests import adapter_files
from tests.gateway.endpoints.test_files import blobs, folder_of, foreign_key
from tests.gateway.stack import PRICES, Stack, running_stack

TARGETS = ("self_attn.q_proj", "self_attn.v_proj")


def tensors(seed: int = 1, **options: Any) -> bytes:
    return adapter_files.safetensors(adapter_files.matrices(4, TARGETS, seed=seed, **options))


async def upload(
    stack: Stack, name: str = "support", *, key: str | None = None, model: str = "tiny", seed: int = 1, **changes: Any
) -> httpx.Response:
    """Upload an adapter; `changes`: other parts of the form."""
    form = {"model": model, "name": name, "config": adapter_files.config(4, 8).decode(), "file": tensors(seed)}
    form |= changes
    files = {"file": ("adapter_model.safetensors", form.pop("file"))}
    data = {field: value for field, value in form.items() if value is not None}
    headers = {"authorization": f"Bearer {key or stack.key}"}
    return await stack.http.post("/v1/adapters", headers=headers, data=data, files=files, timeout=60)


async def call(stack: Stack, method: str, path: str, key: str | None = None) -> httpx.Response:
    return await stack.http.request(method, path, headers={"authorization": f"Bearer {key or stack.key}"})


def chat(model: str) -> dict[str, Any]:
    return {"model": model, "messages": [{"role": "user", "content": "hello"}], "max_tokens": 5}


async def test_an_adapter_is_uploaded_asked_for_billed_and_deleted(stack: Stack) -> None:
    made = await upload(stack)
    assert made.status_code == 200, made.text
    adapter = made.json()
    assert (adapter["model"], adapter["base"], adapter["rank"], adapter["alpha"]) == ("tiny:support", "tiny", 4, 8.0)
    assert (adapter["targets"], adapter["layers"], adapter["invocation_tokens"]) == (["q_proj", "v_proj"], 2, [])
    (blob,) = blobs(folder_of(stack))
    assert tensors()[400:464] not in blob.read_bytes(), "it is sealed"

    stack.say("yes")
    answer = await stack.post(chat("tiny:support"))
    assert answer.status_code == 200, answer.text
    assert answer.json()["model"] == "tiny:support"
    base = await stack.post(chat("tiny"))
    assert base.json()["model"] == "tiny"
    sent = {run.generate.adapter for run in stack.replica.runs.values()}
    name = adapter_name(adapter["digest"], stack.project.id.hex)
    assert sent == {"", name}
    await stack.until(lambda: len(stack.replica.adapters[name]) == adapter["bytes"])
    arrived = read_packed(stack.replica.adapters[name], next(iter(stack.models)).text_digest)
    assert arrived.digest == adapter["digest"]
    events = await stack.settled(2)
    assert [event.model for event in events] == ["tiny:support", "tiny"]
    assert events[0].cost_pico == events[1].cost_pico, "at the base's price"

    assert (await call(stack, "GET", "/v1/adapters")).json()["data"] == [adapter]
    assert (await call(stack, "GET", f"/v1/adapters/{adapter['id']}")).json() == adapter
    gone = await call(stack, "DELETE", f"/v1/adapters/{adapter['id']}")
    assert gone.json() == {"id": adapter["id"], "object": "adapter", "deleted": True}
    assert blobs(folder_of(stack)) == []
    await stack.until(lambda: name not in stack.replica.adapters)
    for path in (f"/v1/adapters/{adapter['id']}", "/v1/models/tiny:support"):
        assert (await call(stack, "GET", path)).status_code == 404
    assert (await stack.post(chat("tiny:support"))).status_code == 404
    actions = [row.action for row in await stack.rows("SELECT action FROM audit_entry ORDER BY number")]
    assert [action for action in actions if action.startswith("adapter.")] == ["adapter.created", "adapter.deleted"]


async def test_an_adapted_name_may_have_prices_of_its_own(stack: Stack) -> None:
    assert (await upload(stack)).status_code == 200
    await PriceCatalog(stack.database).set("tiny:support", "USD", PRICES | {"output": "3.20"})
    stack.gateway.services.prices.forget()
    stack.say("yes")
    for model in ("tiny:support", "tiny"):
        assert (await stack.post(chat(model))).status_code == 200
    adapted, base = await stack.settled(2)
    assert adapted.price_version != base.price_version
    assert adapted.cost_pico > base.cost_pico


async def test_models_are_listed_with_the_projects_own(stack: Stack) -> None:
    await upload(stack, "one")
    await upload(stack, "two", seed=2)
    listed = (await call(stack, "GET", "/v1/models")).json()["data"]
    assert [model["id"] for model in listed] == ["tiny", "tiny:two", "tiny:one"]
    assert listed[1]["adapter_of"] == "tiny"
    assert (await call(stack, "GET", "/v1/models/tiny:one")).json()["id"] == "tiny:one"
    key = await foreign_key(stack)
    assert [model["id"] for model in (await call(stack, "GET", "/v1/models", key)).json()["data"]] == ["tiny"]


async def test_another_tenant_sees_nothing_of_it(stack: Stack) -> None:
    adapter = (await upload(stack)).json()
    key = await foreign_key(stack)
    assert (await call(stack, "GET", "/v1/adapters", key)).json()["data"] == []
    for method, path in (
        ("GET", f"/v1/adapters/{adapter['id']}"),
        ("DELETE", f"/v1/adapters/{adapter['id']}"),
        ("GET", "/v1/models/tiny:support"),
        ("GET", f"/v1/files/file_{adapter['id'].removeprefix('adapter_')}"),
    ):
        assert (await call(stack, method, path, key)).status_code == 404
    for name in ("tiny:support", f"tiny:{adapter['digest']}", "tiny:nothing"):
        refused = await stack.post(chat(name), key)
        assert refused.status_code == 404
        assert refused.json()["error"]["message"] == f"The model {name!r} does not exist."
    mine = await call(stack, "GET", f"/v1/files/file_{adapter['id'].removeprefix('adapter_')}")
    assert mine.status_code == 404, "its content is nobody's file"
    # the same bytes of another tenant are another adapter, which outlives this one
    assert (await upload(stack, key=key)).json()["digest"] == adapter["digest"]


@pytest.mark.parametrize(
    ("changes", "param", "told"),
    [
        ({"config": "{}"}, "file", "peft_type"),
        ({"config": adapter_files.config(5, 8).decode()}, "file", "rank"),
        ({"config": adapter_files.config(4, 8, modules_to_save=["lm_head"]).decode()}, "file", "modules_to_save"),
        ({"file": b"\x80\x04pickle"}, "file", "pickle"),
        ({"file": tensors()[:-5]}, "file", "bytes"),
        ({"config": None}, "config", "missing"),
        ({"name": "a:b"}, "name", "letters"),
        ({"name": "../a"}, "name", "letters"),
        ({"more": "x"}, "more", "no such field"),
        ({"model": "tiny:support"}, "model", "does not exist"),
    ],
)
async def test_what_is_refused_leaves_nothing(stack: Stack, changes: dict[str, Any], param: str, told: str) -> None:
    refused = await upload(stack, **changes)
    assert refused.status_code in {400, 404}, refused.text
    error = refused.json()["error"]
    assert error["param"] == param
    assert told in error["message"]
    assert blobs(folder_of(stack)) == []
    assert (await call(stack, "GET", "/v1/adapters")).json()["data"] == []


async def test_a_name_is_taken_until_its_adapter_is_deleted(stack: Stack) -> None:
    first = (await upload(stack)).json()
    taken = await upload(stack, seed=2)
    assert taken.status_code == 409
    assert len(blobs(folder_of(stack))) == 1
    await call(stack, "DELETE", f"/v1/adapters/{first['id']}")
    second = (await upload(stack, seed=2)).json()
    assert second["digest"] != first["digest"]


async def test_a_projects_bytes_are_bounded(tmp_path: Path, stocked_sqlite_url: str, model_folder: Path) -> None:
    options = GatewayOptions(file_quota=3 * len(tensors()) // 2)
    async with running_stack(stocked_sqlite_url, tmp_path, model_folder, options=options) as stack:
        assert (await upload(stack)).status_code == 200
        full = await upload(stack, "other", seed=2)
        assert full.json()["error"]["code"] == "storage_exceeded"
        assert len(blobs(folder_of(stack))) == 1
    assert MOST_ADAPTERS > 1


async def test_an_adapter_is_gone_with_its_projects_data_key(stack: Stack) -> None:
    adapter = (await upload(stack)).json()
    keys = stack.gateway.services.scope_keys
    assert keys is not None
    await keys.destroy(stack.tenant.id, stack.project.id, "test")
    assert stack.gateway.files is not None
    assert await stack.gateway.files.forget() == 1
    assert blobs(folder_of(stack)) == []
    assert await stack.rows("SELECT * FROM adapter") == []
    assert (await call(stack, "GET", f"/v1/adapters/{adapter['id']}")).status_code == 404


async def test_what_a_replica_refuses_of_an_adapter_is_the_clients_error(stack: Stack) -> None:
    await upload(stack)
    stack.say("", reason="rejected", error="adapter: the prompt has not the tokens that invoke it", invalid="adapter")
    refused = await stack.post(chat("tiny:support"))
    assert refused.status_code == 400
    assert refused.json()["error"]["code"] == "invalid_adapter"
    assert "tokens that invoke it" in refused.json()["error"]["message"]


async def test_uploads_at_once_are_all_checked(stack: Stack) -> None:
    answers = await asyncio.gather(*(upload(stack, f"a{at}", seed=at) for at in range(4)))
    assert [answer.status_code for answer in answers] == [200] * 4
