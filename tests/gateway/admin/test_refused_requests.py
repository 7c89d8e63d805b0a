"""Refused requests by /admin/v1: which, why, for whom, and nothing of what was sent."""

from __future__ import annotations

import asyncio
from typing import Any

from tenancy.rate_limits import Limits, LimitSubject
from tests.gateway.admin.desk import Desk, Desks
from tests.gateway.stack import Stack

PATH = "/tenants/demo/refused-requests"
HELLO: dict[str, Any] = {"model": "tiny", "messages": [{"role": "user", "content": "a-secret"}], "max_tokens": 4}


async def listed(desk: Desk, name: str) -> Any:
    """The list, when this request is in it."""
    for _ in range(3000):
        found = await desk.get(PATH)
        if any(one["id"] == name for one in found["data"]):
            return found
        await asyncio.sleep(0.01)
    raise AssertionError("it was not written")


async def refuse(stack: Stack, body: Any, key: str | None = None) -> str:
    answer = await stack.post(body, key=key)
    assert 400 <= answer.status_code < 500, answer.text
    return str(answer.headers["x-request-id"])


async def test_each_says_when_who_where_and_why(stack: Stack, desks: Desks) -> None:
    stack.say("answer")
    assert (await stack.post(HELLO)).status_code == 200
    field = await refuse(stack, HELLO | {"temperature": 9})
    unknown = await refuse(stack, HELLO | {"model": "none"})
    elsewhere = await stack.http.get("/v1/exports/none", headers={"x-api-key": stack.admin_key})
    forbidden = await stack.http.get("/v1/exports", headers={"x-api-key": stack.key})
    nobody = await stack.http.get("/v1/models", headers={"x-api-key": "tp_none"})
    assert [elsewhere.status_code, forbidden.status_code, nobody.status_code] == [404, 403, 401]
    viewer = desks.own("viewer")
    found = await listed(viewer, forbidden.headers["x-request-id"])
    assert found["has_more"] is False
    last, before, second, first = found["data"]
    assert [one["id"] for one in (second, first)] == [unknown, field]
    assert (first["route"], first["status"], first["code"]) == ("POST /v1/chat/completions", 400, "invalid_value")
    assert first["message"].startswith("$.temperature: ")
    assert first["key"] in stack.key
    assert (first["project"], first["project_id"]) == ("default", f"project_{stack.project.id.hex}")
    assert (second["status"], second["code"]) == (404, "model_not_found")
    assert (before["route"], before["status"]) == ("GET /v1/exports/{name}", 404)
    assert (before["project"], before["project_id"]) == (None, None)
    assert before["key"] in stack.admin_key
    assert (last["route"], last["status"], last["code"]) == ("GET /v1/exports", 403, "not_allowed")
    assert "a-secret" not in str(found)
    assert all(one["at"] <= other["at"] for one, other in zip(found["data"][1:], found["data"], strict=False))


async def test_limits_are_said_and_pages_follow_each_other(stack: Stack, desks: Desks) -> None:
    subject = LimitSubject(stack.tenant.id, stack.project.id)
    await stack.gateway.services.rate_limits.set(subject, Limits(requests_per_minute=1))
    stack.say("answer")
    assert (await stack.post(HELLO)).status_code == 200
    names = [await refuse(stack, HELLO) for _ in range(5)]
    viewer = desks.own("viewer")
    found = await listed(viewer, names[-1])
    assert [one["id"] for one in found["data"]] == names[::-1]
    assert {(one["status"], one["code"]) for one in found["data"]} == {(429, "rate_limit_exceeded")}
    first = await viewer.get(f"{PATH}?limit=2")
    assert (first["data"], first["has_more"]) == (found["data"][:2], True)
    rest = await viewer.get(f"{PATH}?after={first['data'][-1]['id']}")
    assert (rest["data"], rest["has_more"]) == (found["data"][2:], False)
    assert (await viewer.get(f"{PATH}?key={found['data'][0]['key']}"))["data"] == found["data"]
    assert (await viewer.get(f"{PATH}?key=none"))["data"] == []
    await viewer.get(f"{PATH}?after=x", 400)
    await viewer.get(f"{PATH}?project=none", 400)
    await viewer.get(f"{PATH}?who=x", 400)


async def test_each_sees_those_of_what_it_may_see(stack: Stack, desks: Desks) -> None:
    second = await stack.tenancy.create_project(stack.tenant.id, "second")
    key = (await stack.tenancy.create_key(stack.tenant.id, second.id)).key
    own, theirs = await refuse(stack, {}), await refuse(stack, {}, key)
    whole = await listed(desks.own("viewer"), theirs)
    assert [one["id"] for one in whole["data"]] == [theirs, own]
    member = desks.role("developer", stack.tenant.id, second.id)
    assert [one["id"] for one in (await member.get(PATH))["data"]] == [theirs]
    await member.get(f"{PATH}?project=default", 400)
    assert len((await desks.operator("viewer").get(PATH))["data"]) == 2
    other = await stack.tenancy.create_tenant("stranger")
    stranger = desks.role("owner", other.id)
    await stranger.get(PATH, 404)
    assert (await stranger.get("/tenants/stranger/refused-requests"))["data"] == []
    assert (await stranger.get(f"/tenants/stranger/refused-requests?after={theirs}"))["data"] == []
