"""A tenant or project is suspended: its keys are refused at once, and what runs finishes or ends as was said."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from gateway.app import application_of
from gateway.openapi.document import make_document, operations_of
from gateway.openapi.stand_in import stand_in
from tenancy.rights.permissions import PLATFORM_ONLY
from tenancy.users.identifiers import user_public_id
from tests.awake import Awake
from tests.gateway.admin.test_keys import Holder
from tests.gateway.browser import ADMIN, browser_of, make_user
from tests.gateway.stack import Stack

pytestmark = pytest.mark.slow

TENANT, PROJECT = "/admin/v1/tenants/demo", "/admin/v1/tenants/demo/projects/default"


async def _operator(stack: Stack) -> Holder:
    return Holder(stack, (await stack.tenancy.create_operator_key("ann")).key)


@pytest.mark.alone
@pytest.mark.parametrize(("path", "code"), [(TENANT, "tenant_suspended"), (PROJECT, "project_suspended")])
async def test_requests_are_refused_until_it_is_resumed(stack: Stack, path: str, code: str) -> None:
    await stack.ready()
    stack.say("hello")
    operator, holder = await _operator(stack), Holder(stack, stack.key)
    await holder.chat()
    done = await operator.ask("POST", f"{path}/suspend", {"reason": "fraud"})
    assert (done["suspended"], done["running"], done["reason"]) == (True, "finish", "fraud")
    with Awake() as awake:
        while (await stack.http.get("/v1/models", headers={"x-api-key": stack.key})).status_code == 200:
            assert awake.seconds < 1
    assert (await holder.chat(403))["error"]["code"] == code
    admin = await stack.http.get("/v1/models", headers={"x-api-key": stack.admin_key})
    assert (admin.status_code == 403) == (path == TENANT)  # an admin key is of no project
    assert len((await operator.ask("GET", "/admin/v1/suspensions"))["data"]) == 1
    assert (await operator.ask("GET", path))["suspended_at"] == done["suspended_at"]
    assert (await operator.ask("POST", f"{path}/resume"))["suspended"] is False
    assert (await operator.ask("GET", path))["suspended_at"] is None
    with Awake() as awake:
        while (await stack.http.get("/v1/models", headers={"x-api-key": stack.key})).status_code != 200:
            assert awake.seconds < 1
    await holder.chat()
    rows = await stack.rows("SELECT action, reason FROM audit_entry WHERE action LIKE '%sus%' OR action LIKE '%resum%'")
    kind = "project" if path == PROJECT else "tenant"
    assert [tuple(row) for row in rows] == [(f"{kind}.suspended", "fraud"), (f"{kind}.resumed", "")]


async def test_only_the_platform_suspends(stack: Stack) -> None:
    admin = Holder(stack, stack.admin_key)
    for path in (f"{TENANT}/suspend", f"{TENANT}/resume", f"{PROJECT}/suspend", f"{PROJECT}/resume"):
        assert (await admin.error("POST", path))[0] == "not_allowed"
    operator = await _operator(stack)
    assert (await operator.error("POST", "/admin/v1/tenants/nobody/suspend", status=404))[0] == "not_found"
    assert (await operator.error("POST", f"{TENANT}/suspend", {"running": "now"}, 400))[1] == "running"


@pytest.mark.parametrize("running", ["finish", "end"])
async def test_what_runs_finishes_or_ends_billed_for_what_was_delivered(stack: Stack, running: str) -> None:
    await stack.ready()
    operator = await _operator(stack)
    stack.say("a much longer answer", pause=0.15)
    body = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}], "stream": True}
    lines: list[Any] = []

    async def read() -> None:
        async with stack.http.stream("POST", "/v1/chat/completions", json=body, headers={"x-api-key": stack.key}) as r:
            assert r.status_code == 200
            async for line in r.aiter_lines():
                lines.extend([line.removeprefix("data: ")] if line.startswith("data: ") else [])

    reading = asyncio.create_task(read())
    await stack.until(lambda: len(lines) > 2)
    await operator.ask("POST", f"{PROJECT}/suspend", {"running": running})
    await reading
    (event,) = await stack.settled(1)
    if running == "finish":
        assert lines[-1] == "[DONE]"
        assert (event.status, event.output) == ("ok", len(stack.tokens("a much longer answer")))
    else:
        assert json.loads(lines[-1])["error"]["code"] == "project_suspended"
        assert event.status != "ok"
        assert 0 < event.output < len(stack.tokens("a much longer answer"))
        assert event.cost_pico > 0


OF_A_TENANT = (f"{ADMIN}/tenants/", f"{ADMIN}/limits/", f"{ADMIN}/users/{{")


def _changes(given: Mapping[str, str]) -> Iterator[tuple[str, str, Any]]:
    """Method, path and body of all that people of a tenant may change there, as the document has it."""
    for method, path, written in operations_of(make_document(application_of(stand_in()))):
        mine = "session" in written["x-principals"] and written["x-permission"] not in PLATFORM_ONLY
        if method == "GET" or not mine or not path.startswith(OF_A_TENANT):
            continue
        examples = {one["name"]: one["example"] for one in written.get("parameters", ()) if one["in"] == "path"}
        body = written.get("requestBody", {}).get("content", {}).get("application/json", {}).get("example")
        yield method, path.format(**{**examples, **given}).removeprefix(ADMIN), body


@pytest.mark.alone
async def test_people_of_a_suspended_tenant_only_read(stack: Stack) -> None:
    operator = await _operator(stack)
    key = await stack.tenancy.create_key(stack.tenant.id, stack.project.id)
    await make_user(stack.users, "ann@example.com", ("owner", stack.tenant.id, None))
    bob = await make_user(stack.users, "bob@example.com", ("viewer", stack.tenant.id, None))
    given = {
        "tenant": "demo",
        "project": f"project_{stack.project.id.hex}",
        "user": user_public_id(bob.id),
        "key": key.public_id,
    }
    async with browser_of(stack) as browser:
        await browser.sign_in("ann@example.com")
        invitation = {"email": "eve@example.com", "role": "viewer"}
        await browser.post("/tenants/demo/invitations", invitation, 201)
        await operator.ask("POST", f"{TENANT}/suspend", {"reason": "fraud"})
        with Awake() as awake:
            while stack.gateway.services.suspensions.find(stack.tenant.id) is None:
                assert awake.seconds < 1
                await asyncio.sleep(0.005)
        tried = 0
        for method, path, body in _changes(given):
            refused = await browser.call(method, path, body, status=403)
            assert refused["error"]["code"] == "tenant_suspended", (method, path, refused)
            tried += 1
        assert tried > 20
        for path in ("/tenants/demo", "/tenants/demo/keys", "/tenants/demo/members", "/users/me"):
            await browser.get(path)
        await operator.ask("PUT", f"{ADMIN}/limits/keys/{key.public_id}", {"requests_per_minute": 5})
        await operator.ask("POST", f"{TENANT}/resume")
        with Awake() as awake:
            while stack.gateway.services.suspensions.find(stack.tenant.id) is not None:
                assert awake.seconds < 1
                await asyncio.sleep(0.005)
        await browser.post("/tenants/demo/invitations", invitation, 201)
