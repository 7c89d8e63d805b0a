"""Proofs of what a tenant's administrators and operators do below /admin/v1: keys, limits, exports, webhooks, fleet."""

from __future__ import annotations

import time
from typing import Any

from tests.gateway.access.proofs import Call, proof
from tests.gateway.access.proofs_v1 import (
    _delivery,
    _export,
    _marked_chat,
    _names,
    a_batch,
    a_closed_day,
    a_file,
    a_response,
    adapter_form,
    an_adapter,
    an_ended_batch,
    an_endpoint,
)
from tests.gateway.access.world import Place, World, bearer


async def made(world: World, place: Place, path: str, body: Any, by: str = "admin_key", method: str = "POST") -> Any:
    """What the place's own key makes below /admin/v1."""
    answer = await world.call(method, f"/admin/v1{path}", bearer(place.keys[by]), body=body)
    assert answer.is_success, f"{path}: {answer.text}"
    return answer.json()


@proof("admin_list_batches")
async def _(world: World, place: Place) -> Call:
    return Call({"tenant": place.tenant_name}, query={"limit": 100}, tells=(await a_batch(world, place),))


@proof("admin_retrieve_batch", "admin_cancel_batch")
async def _(world: World, place: Place) -> Call:
    return Call({"tenant": place.tenant_name, "batch": await a_batch(world, place)})


@proof("admin_download_batch_results", "admin_list_failed_batch_lines")
async def _(world: World, place: Place) -> Call:
    await _readable(world, place)
    return Call({"tenant": place.tenant_name, "batch": await an_ended_batch(world, place)})


@proof("admin_list_files")
async def _(world: World, place: Place) -> Call:
    return Call({"tenant": place.tenant_name}, query={"limit": 100}, tells=(await a_file(world, place),))


@proof("admin_retrieve_file", "admin_delete_file")
async def _(world: World, place: Place) -> Call:
    return Call({"tenant": place.tenant_name, "file": await a_file(world, place)})


@proof("admin_list_adapters")
async def _(world: World, place: Place) -> Call:
    return Call({"tenant": place.tenant_name}, query={"limit": 100}, tells=(await an_adapter(world, place),))


@proof("admin_retrieve_adapter", "admin_delete_adapter")
async def _(world: World, place: Place) -> Call:
    return Call({"tenant": place.tenant_name, "adapter": await an_adapter(world, place)})


@proof("admin_upload_adapter_of_project")
async def _(world: World, place: Place) -> Call:
    return Call(
        {"tenant": place.tenant_name, "project": place.project_name},
        body=adapter_form("boundary"),
        headers={"content-type": "multipart/form-data; boundary=boundary"},
    )


@proof("admin_download_file")
async def _(world: World, place: Place) -> Call:
    await _readable(world, place)
    return Call({"tenant": place.tenant_name, "file": await a_file(world, place)})


async def _readable(world: World, place: Place) -> None:
    """Let people read what the place's project keeps."""
    policy = "/tenants/{tenant}/projects/{project}/response-policy".format(**_of_project(place))
    await made(world, place, policy, {"readable": True}, method="PATCH")


def fresh(what: str) -> str:
    """A name that nothing has."""
    return f"{what}-{time.monotonic_ns()}"


async def a_key(world: World, place: Place) -> str:
    """The public id of a new key of the place's project."""
    issued = await world.stack.tenancy.create_key(place.tenant_id, place.project_id, fresh("key"))
    return issued.public_id


@proof("admin_create_key")
async def _(world: World, place: Place) -> Call:
    return Call({"tenant": place.tenant_name}, body={"project": place.project, "name": fresh("key")})


@proof("admin_list_keys")
async def _(world: World, place: Place) -> Call:
    key = await a_key(world, place)
    return Call({"tenant": place.tenant_name}, query={"limit": 100}, tells=(key,))


@proof("admin_retrieve_key", "admin_revoke_key")
async def _(world: World, place: Place) -> Call:
    key = await a_key(world, place)
    return Call({"tenant": place.tenant_name, "key": key}, tells=(key,))


@proof("admin_change_key")
async def _(world: World, place: Place) -> Call:
    return Call({"tenant": place.tenant_name, "key": await a_key(world, place)}, body={"name": fresh("key")})


@proof("admin_rotate_key")
async def _(world: World, place: Place) -> Call:
    return Call({"tenant": place.tenant_name, "key": await a_key(world, place)}, body={})


@proof("admin_retrieve_playground")
async def _(world: World, place: Place) -> Call:
    return Call({"tenant": place.tenant_name, "project": place.project_name})


@proof("admin_create_playground_completion", "admin_create_playground_estimate")
async def _(world: World, place: Place) -> Call:
    world.stack.say("said")
    body = {"model": "tiny", "messages": [{"role": "user", "content": "Say it."}], "max_tokens": 8}
    return Call({"tenant": place.tenant_name, "project": place.project_name}, body=body)


@proof("admin_create_operator_key")
async def _(world: World, place: Place) -> Call:
    return Call(body={"name": fresh("op"), "role": "viewer"})


@proof("admin_retrieve_operator_key", "admin_revoke_operator_key")
async def _(world: World, place: Place) -> Call:
    return Call({"key": (await world.stack.tenancy.create_operator_key(fresh("op"))).public_id})


@proof("admin_change_operator_key", "admin_rotate_operator_key")
async def _(world: World, place: Place) -> Call:
    return Call({"key": (await world.stack.tenancy.create_operator_key(fresh("op"))).public_id}, body={})


@proof("admin_set_key_limits")
async def _(world: World, place: Place) -> Call:
    return Call({"key": await a_key(world, place)}, body={"requests_per_minute": 60})


@proof("admin_retrieve_key_limits", "admin_remove_key_limits")
async def _(world: World, place: Place) -> Call:
    key = await a_key(world, place)
    await made(world, place, f"/limits/keys/{key}", {"requests_per_minute": 60}, method="PUT")
    return Call({"key": key}, tells=(key,))


@proof("admin_set_project_limits")
async def _(world: World, place: Place) -> Call:
    return Call({"project": place.project_name}, body={"requests_per_minute": 100_000})


@proof("admin_retrieve_project_limits", "admin_remove_project_limits")
async def _(world: World, place: Place) -> Call:
    path = f"/limits/projects/{place.project_name}"
    await made(world, place, path, {"requests_per_minute": 100_000}, method="PUT")
    return Call({"project": place.project_name}, tells=(place.project_name,))


@proof("admin_list_limits")
async def _(world: World, place: Place) -> Call:
    path = f"/limits/projects/{place.project_name}"
    await made(world, place, path, {"requests_per_minute": 100_000}, method="PUT")
    return Call(tells=(place.project_name,))


@proof("admin_create_tenant")
async def _(world: World, place: Place) -> Call:
    return Call(body={"name": fresh("tenant")})


@proof("admin_create_project")
async def _(world: World, place: Place) -> Call:
    return Call({"tenant": place.tenant_name}, body={"name": fresh("project")})


@proof("admin_list_tenants")
async def _(world: World, place: Place) -> Call:
    return Call(tells=(place.tenant_name,))


@proof("admin_list_projects")
async def _(world: World, place: Place) -> Call:
    return Call({"tenant": place.tenant_name}, query={"limit": 100}, tells=(place.project_name,))


async def _elsewhere(world: World) -> tuple[str, str]:
    """A new tenant with a project, which may be suspended without harm to other proofs."""
    tenant = await world.stack.tenancy.create_tenant(fresh("tenant"))
    project = await world.stack.tenancy.create_project(tenant.id, "main")
    return f"tenant_{tenant.id.hex}", f"project_{project.id.hex}"


@proof("admin_suspend_tenant")
async def _(world: World, place: Place) -> Call:
    return Call({"tenant": (await _elsewhere(world))[0]}, body={"reason": "fraud", "running": "finish"})


@proof("admin_resume_tenant")
async def _(world: World, place: Place) -> Call:
    tenant = (await _elsewhere(world))[0]
    await made(world, place, f"/tenants/{tenant}/suspend", {"reason": "fraud"}, "operator_key")
    return Call({"tenant": tenant}, body={"reason": "cleared"})


@proof("admin_suspend_project")
async def _(world: World, place: Place) -> Call:
    tenant, project = await _elsewhere(world)
    return Call({"tenant": tenant, "project": project}, body={"reason": "fraud", "running": "finish"})


@proof("admin_resume_project")
async def _(world: World, place: Place) -> Call:
    tenant, project = await _elsewhere(world)
    await made(world, place, f"/tenants/{tenant}/projects/{project}/suspend", {"reason": "fraud"}, "operator_key")
    return Call({"tenant": tenant, "project": project}, body={"reason": "cleared"})


@proof("admin_create_export", by="operator_key")
async def _(world: World, place: Place) -> Call:
    return Call({"tenant": place.tenant_name}, body={"dataset": "usage", "period": "2026-10"})


@proof("admin_list_receipt_days")
async def _(world: World, place: Place) -> Call:
    return Call({"tenant": place.tenant_name}, query={"period": "2026-10"})


@proof("admin_retrieve_receipt_day")
async def _(world: World, place: Place) -> Call:
    path = {"tenant": place.tenant_name, "day": await a_closed_day(world, place)}
    return Call(path, shared=frozenset({"day"}))


@proof("admin_list_exports")
async def _(world: World, place: Place) -> Call:
    return Call({"tenant": place.tenant_name}, tells=(await _export(world, place),))


@proof("admin_retrieve_export")
async def _(world: World, place: Place) -> Call:
    name = await _export(world, place)
    return Call({"tenant": place.tenant_name, "name": name}, tells=(name,))


@proof("admin_retrieve_export_content")
async def _(world: World, place: Place) -> Call:
    name = await _export(world, place)
    jobs: Any = world.stack.gateway.services.exports
    while await jobs.run_next(_names):
        pass
    return Call({"tenant": place.tenant_name, "name": name})


@proof("admin_create_webhook_endpoint")
async def _(world: World, place: Place) -> Call:
    body = {"url": f"https://hooks.example.com/{time.monotonic_ns()}", "topics": ["budget.threshold"]}
    return Call({"tenant": place.tenant_name}, body=body)


@proof("admin_list_webhook_endpoints")
async def _(world: World, place: Place) -> Call:
    return Call({"tenant": place.tenant_name}, tells=(await an_endpoint(world, place),))


@proof(
    "admin_retrieve_webhook_endpoint",
    "admin_remove_webhook_endpoint",
    "admin_rotate_webhook_secret",
    "admin_enable_webhook_endpoint",
    "admin_test_webhook_endpoint",
)
async def _(world: World, place: Place) -> Call:
    name = await an_endpoint(world, place)
    return Call({"tenant": place.tenant_name, "name": name}, tells=(name,))


@proof("admin_list_webhook_deliveries")
async def _(world: World, place: Place) -> Call:
    return Call({"tenant": place.tenant_name}, tells=(await _delivery(world, place),))


@proof("admin_retrieve_webhook_delivery", "admin_resend_webhook_delivery")
async def _(world: World, place: Place) -> Call:
    name = await _delivery(world, place)
    return Call({"tenant": place.tenant_name, "name": name}, tells=(name,))


async def _settled(world: World, place: Place) -> str:
    """The id of a request of the place that is in the books."""
    name = (await _marked_chat(world, place)).headers["x-request-id"]
    for _ in range(200):
        answer = await world.call(
            "GET", f"/admin/v1/tenants/{place.tenant_name}/requests/{name}", bearer(place.keys["admin_key"])
        )
        if answer.is_success:
            return name
        await world.pause()
    raise AssertionError(answer.text)


@proof("admin_retrieve_request")
async def _(world: World, place: Place) -> Call:
    name = await _settled(world, place)
    return Call({"tenant": place.tenant_name, "name": name}, tells=(name,))


@proof("admin_retrieve_waterfall")
async def _(world: World, place: Place) -> Call:
    name = await _settled(world, place)
    return Call({"tenant": place.tenant_name, "name": name}, tells=(name,))


@proof("admin_explain_request")
async def _(world: World, place: Place) -> Call:
    name = await _settled(world, place)
    path = f"/admin/v1/tenants/{place.tenant_name}/requests/{name}/cache"
    for _ in range(200):
        if (await world.call("GET", path, bearer(place.keys["admin_key"]))).is_success:
            break
        await world.pause()
    return Call({"tenant": place.tenant_name, "name": name}, tells=(name,))


@proof("admin_list_running_requests")
async def _(world: World, place: Place) -> Call:
    return Call({"tenant": place.tenant_name})


@proof("admin_list_refused_requests")
async def _(world: World, place: Place) -> Call:
    body, path = {"model": "tiny", "messages": "none"}, f"/admin/v1/tenants/{place.tenant_name}/refused-requests"
    name = ""
    for number in range(500):
        if number % 100 == 0:  # of the many that these tests have refused in a second, some are left out
            refused = await world.call("POST", "/v1/chat/completions", bearer(place.keys["project_key"]), body=body)
            assert refused.status_code == 400, refused.text
            name = refused.headers["x-request-id"]
        if name in (await world.call("GET", path, bearer(place.keys["admin_key"]))).text:
            break
        await world.pause()
    return Call({"tenant": place.tenant_name}, {"project": place.project_name}, tells=(name,))


@proof("admin_find_a_request")
async def _(world: World, place: Place) -> Call:
    name = await _settled(world, place)
    return Call({"name": name}, tells=(place.tenant_name,))


@proof("admin_list_requests")
async def _(world: World, place: Place) -> Call:
    return Call({"tenant": place.tenant_name}, tells=(await _settled(world, place),))


@proof("admin_adjust_usage")
async def _(world: World, place: Place) -> Call:
    body = {"request": await _settled(world, place), "units": {"output": -1}, "reason": "wrong"}
    path = f"/admin/v1/tenants/{place.tenant_name}/adjustments"
    for _ in range(200):  # until it is settled
        headers = bearer(place.keys["operator_key"])
        if (await world.call("POST", path, headers, body=body | {"dry_run": True})).is_success:
            break
        await world.pause()
    return Call({"tenant": place.tenant_name}, body=body)


@proof("admin_show_replica")
async def _(world: World, place: Place) -> Call:
    return Call({"replica": "replica-0"})


@proof("admin_drain_replica", "admin_resume_replica")
async def _(world: World, place: Place) -> Call:
    """The second: the first goes on with what other proofs ask."""
    return Call({"replica": "replica-1"}, body={"reason": "new driver"})


@proof("admin_scale_in")
async def _(world: World, place: Place) -> Call:
    """Nobody is drained: the first replica goes on with what other proofs ask."""
    return Call(body={"model": "tiny", "dry_run": True})


@proof("admin_change_setting", quiet="the last operator cannot turn approvals on")
async def _(world: World, place: Place) -> Call:
    return Call({"name": "approvals"}, body={"value": "off", "reason": "as agreed"})


@proof("admin_retrieve_period")
async def _(world: World, place: Place) -> Call:
    return Call({"period": "2026-11"}, shared=frozenset({"period"}))


@proof("admin_create_book")
async def _(world: World, place: Place) -> Call:
    return Call(body={"name": fresh("book"), "currency": "EUR"})


@proof("admin_list_audit_entries")
async def _(world: World, place: Place) -> Call:
    key = await a_key(world, place)
    return Call(query={"limit": 100}, tells=(key,))


def _of_project(place: Place) -> dict[str, Any]:
    return {"tenant": place.tenant_name, "project": place.project_name}


@proof("admin_retrieve_response_policy")
async def _(world: World, place: Place) -> Call:
    return Call(_of_project(place))


@proof("admin_change_response_policy")
async def _(world: World, place: Place) -> Call:
    return Call(_of_project(place), body={"readable": True})


@proof("admin_retrieve_receipt_policy")
async def _(world: World, place: Place) -> Call:
    return Call(_of_project(place))


@proof("admin_change_receipt_policy")
async def _(world: World, place: Place) -> Call:
    return Call(_of_project(place), body={"always": False})


@proof("admin_list_project_responses")
async def _(world: World, place: Place) -> Call:
    return Call(_of_project(place), query={"limit": 100}, tells=(await a_response(world, place),))


@proof("admin_read_project_response", "admin_delete_project_response")
async def _(world: World, place: Place) -> Call:
    await _readable(world, place)
    return Call({**_of_project(place), "response": await a_response(world, place)})


@proof("admin_retrieve_audit_chain")
async def _(world: World, place: Place) -> Call:
    return Call(query={"tenant": place.tenant_name})
