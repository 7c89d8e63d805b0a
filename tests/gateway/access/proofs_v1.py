"""Proofs of the routes below /v1, and of those that anybody may call."""

from __future__ import annotations

import asyncio
import itertools
import json
import re
import time
from typing import Any

import httpx
import msgspec

from billing.exports.datasets import DisplayNames
from billing.prices import PriceCatalog
from billing.receipts.day_files import DAY, close_days, day_name
from billing.settlement.settlement import settle
from tests.adapter_files import config, matrices, safetensors
from tests.billing.money import Tenant
from tests.gateway.access.proofs import Call, proof
from tests.gateway.access.world import Place, World, bearer

_CHAT = {"model": "tiny", "messages": [{"role": "user", "content": "Say it."}], "max_tokens": 8}
_MARKED = "A long prompt that is worth keeping. " * 6
_VERSION = {"anthropic-version": "2023-06-01"}
_START = int(time.time()) - 3600
_ADAPTERS = itertools.count(1)


@proof("healthz", "readyz", "metrics", "get_docs", "get_openapi_document", "list_models", "get_prices")
@proof("get_receipt_keys")
async def _(world: World, place: Place) -> Call:
    return Call()


@proof("retrieve_model")
async def _(world: World, place: Place) -> Call:
    return Call({"name": "tiny"}, shared=frozenset({"name"}))


@proof("create_chat_completion", "create_estimate")
async def _(world: World, place: Place) -> Call:
    world.stack.say("said")
    return Call(body=_CHAT)


@proof("create_response", "count_input_tokens")
async def _(world: World, place: Place) -> Call:
    world.stack.say("said")
    return Call(body={"model": "tiny", "input": "Say it.", "max_output_tokens": 8})


async def a_response(world: World, place: Place, **options: Any) -> str:
    """The id of a new response of the place that is stored."""
    world.stack.say("said")
    body = {"model": "tiny", "input": "Say it.", "max_output_tokens": 8, "store": True, **options}
    answer = await world.call("POST", "/v1/responses", bearer(place.keys["project_key"]), body=body)
    assert answer.status_code == 200, answer.text
    return str(answer.json()["id"])


@proof("list_responses")
async def _(world: World, place: Place) -> Call:
    return Call(query={"limit": 100}, tells=(await a_response(world, place),))


@proof("retrieve_response", "delete_response", "list_input_items")
async def _(world: World, place: Place) -> Call:
    name = await a_response(world, place)
    return Call({"name": name})


@proof("cancel_response")
async def _(world: World, place: Place) -> Call:
    return Call({"name": await a_response(world, place, background=True)})


async def a_file(world: World, place: Place) -> str:
    """The id of a new file of the place, which a batch can read."""
    boundary, line = "boundary", {"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": _CHAT}
    answer = await world.call(
        "POST",
        "/v1/files",
        bearer(place.keys["project_key"]) | {"content-type": f"multipart/form-data; boundary={boundary}"},
        body=_form(boundary, json.dumps(line)),
    )
    assert answer.status_code == 200, answer.text
    return str(answer.json()["id"])


def _form(boundary: str, content: str) -> bytes:
    parts = (('name="purpose"', "batch"), ('name="file"; filename="a.jsonl"', content))
    begun = "".join(f"--{boundary}\r\nContent-Disposition: form-data; {head}\r\n\r\n{text}\r\n" for head, text in parts)
    return f"{begun}--{boundary}--\r\n".encode()


async def a_batch(world: World, place: Place) -> str:
    """The id of a new batch of the place."""
    world.stack.say("said")
    body = {"input_file_id": await a_file(world, place), "endpoint": "/v1/chat/completions", "completion_window": "24h"}
    answer = await world.call("POST", "/v1/batches", bearer(place.keys["project_key"]), body=body)
    assert answer.status_code == 200, answer.text
    return str(answer.json()["id"])


async def an_ended_batch(world: World, place: Place) -> str:
    """The id of a new batch of the place that has ended."""
    name = await a_batch(world, place)
    while True:
        answer = await world.call("GET", f"/v1/batches/{name}", bearer(place.keys["project_key"]))
        if answer.json()["status"] == "completed":
            return name
        await asyncio.sleep(0.05)


async def a_message_batch(world: World, place: Place, *, ended: bool = False) -> str:
    """The id of a new message batch of the place, which has `ended` or still waits."""
    world.stack.say("said", queued=0.0 if ended else 5.0)
    headers = bearer(place.keys["project_key"]) | _VERSION
    body = {"requests": [{"custom_id": "a", "params": _CHAT}]}
    answer = await world.call("POST", "/v1/messages/batches", headers, body=body)
    assert answer.status_code == 200, answer.text
    name = str(answer.json()["id"])
    while ended:
        answer = await world.call("GET", f"/v1/messages/batches/{name}", headers)
        if answer.json()["processing_status"] == "ended":
            break
        await asyncio.sleep(0.05)
    return name


@proof("create_file")
async def _(world: World, place: Place) -> Call:
    return Call(body=_form("boundary", "{}"), headers={"content-type": "multipart/form-data; boundary=boundary"})


@proof("list_files")
async def _(world: World, place: Place) -> Call:
    return Call(tells=(await a_file(world, place),))


@proof("retrieve_file", "download_file", "delete_file")
async def _(world: World, place: Place) -> Call:
    return Call({"file": await a_file(world, place)})


async def an_upload(world: World, place: Place) -> str:
    """The id of a new upload of the place, which is for two bytes and has none."""
    answer = await world.call("POST", "/v1/uploads", bearer(place.keys["project_key"]), body=_UPLOAD)
    assert answer.status_code == 200, answer.text
    return str(answer.json()["id"])


def adapter_form(boundary: str) -> bytes:
    """The form of a new adapter."""
    targets = ("self_attn.q_proj",)
    content = safetensors(matrices(4, targets, layers=1))
    texts = (("model", "tiny"), ("name", f"a{next(_ADAPTERS)}"), ("config", config(4, 8, targets).decode()))
    parts = [(f'name="{name}"', text.encode()) for name, text in texts] + [('name="file"; filename="a"', content)]
    begun = b"".join(
        f"--{boundary}\r\nContent-Disposition: form-data; {head}\r\n\r\n".encode() + body + b"\r\n"
        for head, body in parts
    )
    return begun + f"--{boundary}--\r\n".encode()


async def an_adapter(world: World, place: Place) -> str:
    """The id of a new adapter of the place."""
    headers = bearer(place.keys["project_key"]) | {"content-type": "multipart/form-data; boundary=boundary"}
    answer = await world.call("POST", "/v1/adapters", headers, body=adapter_form("boundary"))
    assert answer.status_code == 200, answer.text
    return str(answer.json()["id"])


_UPLOAD = {"bytes": 2, "filename": "a.jsonl", "mime_type": "application/jsonl", "purpose": "batch"}


@proof("create_upload")
async def _(world: World, place: Place) -> Call:
    return Call(body=_UPLOAD)


@proof("add_upload_part")
async def _(world: World, place: Place) -> Call:
    body = b'--x\r\nContent-Disposition: form-data; name="data"; filename="a"\r\n\r\n{}\r\n--x--\r\n'
    headers = {"content-type": "multipart/form-data; boundary=x"}
    return Call({"upload": await an_upload(world, place)}, body=body, headers=headers)


@proof("complete_upload")
async def _(world: World, place: Place) -> Call:
    answer = await world.call("POST", "/v1/uploads", bearer(place.keys["project_key"]), body=_UPLOAD | {"bytes": 0})
    return Call({"upload": str(answer.json()["id"])}, body={"part_ids": []})


@proof("cancel_upload")
async def _(world: World, place: Place) -> Call:
    return Call({"upload": await an_upload(world, place)})


@proof("create_adapter")
async def _(world: World, place: Place) -> Call:
    return Call(body=adapter_form("boundary"), headers={"content-type": "multipart/form-data; boundary=boundary"})


@proof("list_adapters")
async def _(world: World, place: Place) -> Call:
    return Call(tells=(await an_adapter(world, place),))


@proof("retrieve_adapter", "delete_adapter")
async def _(world: World, place: Place) -> Call:
    return Call({"adapter": await an_adapter(world, place)})


@proof("create_batch")
async def _(world: World, place: Place) -> Call:
    world.stack.say("said")
    body = {"input_file_id": await a_file(world, place), "endpoint": "/v1/chat/completions", "completion_window": "24h"}
    return Call(body=body)


@proof("list_batches")
async def _(world: World, place: Place) -> Call:
    return Call(tells=(await a_batch(world, place),))


@proof("retrieve_batch", "cancel_batch")
async def _(world: World, place: Place) -> Call:
    return Call({"batch": await a_batch(world, place)})


@proof("create_message_batch")
async def _(world: World, place: Place) -> Call:
    world.stack.say("said")
    return Call(body={"requests": [{"custom_id": "a", "params": _CHAT}]}, headers=_VERSION)


@proof("list_message_batches")
async def _(world: World, place: Place) -> Call:
    return Call(tells=(await a_message_batch(world, place),), headers=_VERSION)


@proof("retrieve_message_batch", "cancel_message_batch")
async def _(world: World, place: Place) -> Call:
    return Call({"batch": await a_message_batch(world, place)}, headers=_VERSION)


@proof("delete_message_batch", "download_message_batch_results")
async def _(world: World, place: Place) -> Call:
    return Call({"batch": await a_message_batch(world, place, ended=True)}, headers=_VERSION)


@proof("create_completion")
async def _(world: World, place: Place) -> Call:
    return Call(body={"model": "tiny", "prompt": "Say it.", "max_tokens": 8})


@proof("create_message", "count_tokens")
async def _(world: World, place: Place) -> Call:
    return Call(body=_CHAT, headers=_VERSION)


async def _marked_chat(world: World, place: Place) -> httpx.Response:
    """The answer to a new request of the place whose prompt is cached."""
    world.stack.say("said")
    text = f"{place.project} {time.monotonic_ns()} {_MARKED}"
    part = {"type": "text", "text": text, "cache_control": {"type": "ephemeral", "ttl": "1h"}}
    body = _CHAT | {"messages": [{"role": "user", "content": [part]}]}
    answer = await world.call("POST", "/v1/chat/completions", bearer(place.keys["project_key"]), body=body)
    assert answer.status_code == 200, answer.text
    return answer


async def a_lease(world: World, place: Place) -> str:
    """The id of a new cache of the place."""
    status = (await _marked_chat(world, place)).headers["cache-status"]
    found = re.search(r'stored;.*key="(cache_[0-9a-f]+)"', status)
    assert found, status
    return found[1]


@proof("retrieve_cache", "purge_cache")
async def _(world: World, place: Place) -> Call:
    name = await a_lease(world, place)
    return Call({"name": name}, tells=(name,))


@proof("extend_cache")
async def _(world: World, place: Place) -> Call:
    name = await a_lease(world, place)
    return Call({"name": name}, body={"ttl": "1h"}, tells=(name,))


@proof("list_caches")
async def _(world: World, place: Place) -> Call:
    return Call(tells=(await a_lease(world, place),))


@proof("purge_caches")
async def _(world: World, place: Place) -> Call:
    return Call(query={"tag": "user-7"})


@proof("explain_request")
async def _(world: World, place: Place) -> Call:
    answer = await _marked_chat(world, place)
    name = answer.headers["x-request-id"]
    for _ in range(400):
        found = await world.call("GET", f"/v1/requests/{name}/cache", bearer(place.keys["project_key"]))
        if found.status_code == 200:
            break
        await asyncio.sleep(0.005)
    return Call({"name": name}, tells=(name,))


@proof("cache_usage")
async def _(world: World, place: Place) -> Call:
    return Call()


@proof("get_completions_usage", "get_costs")
async def _(world: World, place: Place) -> Call:
    grouped = {"start_time": _START, "group_by": "project_id", "project_ids": str(place.project_id)}
    return Call(query=grouped, tells=(f'"project_id":"{place.project_id}"',))


@proof("get_messages_usage")
async def _(world: World, place: Place) -> Call:
    start = time.strftime("%Y-%m-%dT00:00:00Z", time.gmtime(_START))
    query = {"starting_at": start, "group_by[]": "workspace_id", "workspace_ids[]": str(place.project_id)}
    return Call(query=query, tells=(f'"workspace_id":"{place.project_id}"',))


@proof("get_cost_report")
async def _(world: World, place: Place) -> Call:
    start = time.strftime("%Y-%m-%dT00:00:00Z", time.gmtime(_START))
    query = {"starting_at": start, "group_by[]": "workspace_id"}
    return Call(query=query, tells=(f'"workspace_id":"{place.project_id}"',))


@proof("create_export")
async def _(world: World, place: Place) -> Call:
    return Call(body={"dataset": "usage", "period": "2026-10"})


async def _names() -> DisplayNames:
    return DisplayNames()


async def _export(world: World, place: Place) -> str:
    jobs: Any = world.stack.gateway.services.exports
    listed = await jobs.list(place.tenant_id, 1, None)
    if listed:
        return f"export_{listed[0].id.hex}"
    body = {"dataset": "usage", "period": "2026-10"}
    answer = await world.call("POST", "/v1/exports", bearer(place.keys["admin_key"]), body=body)
    assert answer.status_code == 202, answer.text
    return str(answer.json()["id"])


@proof("list_exports")
async def _(world: World, place: Place) -> Call:
    return Call(tells=(await _export(world, place),))


@proof("retrieve_export")
async def _(world: World, place: Place) -> Call:
    name = await _export(world, place)
    return Call({"name": name}, tells=(name,))


@proof("retrieve_export_content")
async def _(world: World, place: Place) -> Call:
    name = await _export(world, place)
    jobs: Any = world.stack.gateway.services.exports
    while await jobs.run_next(_names):
        pass
    return Call({"name": name})


@proof("list_receipt_days")
async def _(world: World, place: Place) -> Call:
    return Call(query={"period": "2026-10"})


@proof("retrieve_receipt_day")
async def _(world: World, place: Place) -> Call:
    return Call({"day": await a_closed_day(world, place)}, shared=frozenset({"day"}))


async def a_closed_day(world: World, place: Place) -> str:
    """A day of the place's tenant that has a file."""
    database: Any = world.stack.database
    tenant = await Tenant.rich(database, 0)
    tenant.id = place.tenant_id
    october = 1_791_000_000_000_000
    event = msgspec.structs.replace(
        tenant.event(tenant.request(0)), period="2026-10", admitted_at=october, finished_at=october
    )
    await settle(database, PriceCatalog(database), [event])
    await close_days(database, place.tenant_id, "2026-10")
    return day_name(october // DAY)


async def an_endpoint(world: World, place: Place) -> str:
    """The id of a new webhook endpoint of the place's tenant."""
    url = f"https://{place.tenant}.example.com/{time.monotonic_ns()}"
    answer = await world.call(
        "POST", "/v1/webhooks", bearer(place.keys["admin_key"]), body={"url": url, "topics": ["budget.threshold"]}
    )
    assert answer.status_code == 201, answer.text
    return str(answer.json()["id"])


async def _delivery(world: World, place: Place) -> str:
    endpoint = await an_endpoint(world, place)
    answer = await world.call("POST", f"/v1/webhooks/{endpoint}/test", bearer(place.keys["admin_key"]))
    assert answer.status_code == 202, answer.text
    return str(answer.json()["id"])


@proof("create_webhook_endpoint")
async def _(world: World, place: Place) -> Call:
    return Call(body={"url": f"https://hooks.example.com/{time.monotonic_ns()}", "topics": ["budget.threshold"]})


@proof("list_webhook_endpoints")
async def _(world: World, place: Place) -> Call:
    return Call(tells=(await an_endpoint(world, place),))


@proof(
    "retrieve_webhook_endpoint",
    "remove_webhook_endpoint",
    "rotate_webhook_secret",
    "enable_webhook_endpoint",
    "test_webhook_endpoint",
)
async def _(world: World, place: Place) -> Call:
    name = await an_endpoint(world, place)
    return Call({"name": name}, tells=(name,))


@proof("list_webhook_deliveries")
async def _(world: World, place: Place) -> Call:
    return Call(tells=(await _delivery(world, place),))


@proof("retrieve_webhook_delivery", "resend_webhook_delivery")
async def _(world: World, place: Place) -> Call:
    name = await _delivery(world, place)
    return Call({"name": name}, tells=(name,))
