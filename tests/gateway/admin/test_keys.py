"""/admin/v1/…/keys: made, limited, changed, rotated and revoked; never more than their maker has."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pytest

from billing.platform_settings import APPROVALS, PlatformSettings
from tenancy.rights.key_limits import key_limits
from tests.gateway.stack import Stack

pytestmark = pytest.mark.slow

KEYS = "/admin/v1/tenants/demo/keys"
OPERATORS = "/admin/v1/operator-keys"


class Holder:
    """Somebody with a key."""

    def __init__(self, stack: Stack, key: str, **headers: str) -> None:
        self._http, self._headers = stack.http, {"authorization": f"Bearer {key}", **headers}

    async def ask(self, method: str, path: str, body: Any = None, status: int = 200) -> Any:
        sent = {} if body is None else {"json": body}
        answer: httpx.Response = await self._http.request(method, path, headers=self._headers, **sent)
        assert answer.status_code == status, answer.text
        return answer.json()

    async def error(self, method: str, path: str, body: Any = None, status: int = 403) -> tuple[str, str | None]:
        error = (await self.ask(method, path, body, status))["error"]
        return error["code"], error["param"]

    async def chat(self, status: int = 200, **fields: Any) -> Any:
        body = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}], **fields}
        return await self.ask("POST", "/v1/chat/completions", body, status)


def _later(**delta: int) -> str:
    return (datetime.now(UTC) + timedelta(**delta)).isoformat()


async def test_an_admin_key_manages_the_keys_of_its_tenant(stack: Stack) -> None:
    await stack.ready()
    stack.say("hello")
    admin = Holder(stack, stack.admin_key)
    assert (await admin.ask("POST", KEYS, {"project": "default", "dry_run": True}))["object"] == "api_key.check"
    made = await admin.ask("POST", KEYS, {"project": "default", "name": "search", "scopes": ["inference"]}, 201)
    assert (made["kind"], made["permissions"], made["role"]) == ("project", ["inference"], None)
    holder = Holder(stack, made["key"])
    await holder.chat()
    assert (await holder.error("GET", "/v1/models"))[0] == "not_allowed"
    one = f"{KEYS}/{made['id']}"
    shown = await admin.ask("GET", one)
    assert "key" not in shown
    assert shown == {name: value for name, value in made.items() if name != "key"} | {
        "last_used_at": shown["last_used_at"]
    }
    changed = await admin.ask("PATCH", one, {"scopes": None, "name": "renamed"})
    assert (changed["name"], changed["scopes"], changed["id"]) == ("renamed", None, made["id"])
    await asyncio.sleep(0)
    assert (await holder.ask("GET", "/v1/models"))["data"][0]["id"] == "tiny"
    listed = await admin.ask("GET", f"{KEYS}?project=default&limit=1")
    assert ([key["id"] for key in listed["data"]], listed["has_more"]) == ([made["id"]], True)
    rest = await admin.ask("GET", f"{KEYS}?project=default&after={made['id']}")
    assert [key["id"] for key in rest["data"]] == [stack.public_id]
    ended = await admin.ask("DELETE", f"{one}?reason=left")
    assert (ended["state"], ended["leaked"]) == ("revoked", False)
    await holder.chat(401)
    leaked = await admin.ask("DELETE", f"{one}?reason=found+in+a+log&leaked=true")
    assert leaked == ended | {"leaked": True}, "when it was revoked stays"
    assert await admin.ask("DELETE", f"{one}?reason=again") == leaked
    assert (await admin.error("POST", f"{one}/rotate", status=409))[0] == "wrong_state"
    recorded = await stack.rows("SELECT action, actor_means, reason FROM audit_entry WHERE action LIKE 'key.%'")
    of_admin = [(row.action, row.reason) for row in recorded if row.actor_means == "admin_key"]
    assert of_admin == [
        ("key.created", ""),
        ("key.changed", ""),
        ("key.revoked", "left"),
        ("key.revoked", "found in a log"),
    ]


async def test_a_key_never_gives_more_than_its_maker_has(stack: Stack) -> None:
    soon = int((datetime.now(UTC) + timedelta(days=1)).timestamp()) * 1_000_000
    limits = key_limits(scopes=["keys", "inference"], networks=["127.0.0.0/8"], models=["tiny"], lanes=["standard"])
    narrow = (await stack.tenancy.create_key(stack.tenant.id, None, expires_at=soon, limits=limits)).key
    maker = Holder(stack, narrow)
    fits = {
        "project": "default", "scopes": ["inference"], "networks": ["127.0.0.1"], "models": ["tiny"],
        "lanes": ["standard"], "expires_at": _later(hours=1),
    }  # fmt: skip
    for field, wider in (
        ("scopes", None), ("scopes", ["usage.read"]), ("networks", None), ("networks", ["0.0.0.0/0"]),
        ("networks", ["::1"]), ("models", None), ("models", ["tiny", "huge"]), ("lanes", ["batch"]), ("lanes", None),
        ("expires_at", None), ("expires_at", _later(days=3)),
    ):  # fmt: skip
        assert await maker.error("POST", KEYS, {**fits, field: wider}) == ("exceeds_own_rights", field)
    made = await maker.ask("POST", KEYS, fits, 201)
    for field, wider in (("scopes", None), ("models", None), ("networks", None), ("expires_at", None)):
        error = await maker.error("PATCH", f"{KEYS}/{made['id']}", {field: wider})
        assert error == ("exceeds_own_rights", field)
    # Neither a new secret nor another end of a key that may do more; but to end it needs no more than the role.
    assert (await maker.error("POST", f"{KEYS}/{stack.public_id}/rotate"))[0] == "exceeds_own_rights"
    assert (await maker.ask("DELETE", f"{KEYS}/{stack.public_id}"))["state"] == "revoked"


@pytest.mark.parametrize(("role", "may_make"), [("admin", ("admin", "viewer")), ("developer", ("developer",))])
async def test_roles_of_admin_keys_do_not_climb(stack: Stack, role: Any, may_make: tuple[str, ...]) -> None:
    made = await stack.tenancy.create_key(stack.tenant.id, None, role=role)
    maker = Holder(stack, made.key)
    for wanted in ("owner", "admin", "finance", "developer", "viewer"):
        body = {"role": wanted, "dry_run": True}
        if wanted in may_make:
            await maker.ask("POST", KEYS, body)
        elif wanted in ("owner", "finance") or role == "developer":
            assert await maker.error("POST", KEYS, body) == ("exceeds_own_rights", "role")
    owner = (await stack.tenancy.list_keys(stack.tenant.id))[1]
    assert owner.role == "owner"
    assert (await maker.error("POST", f"{KEYS}/{owner.public_id}/rotate"))[0] == "exceeds_own_rights"
    assert (await maker.error("DELETE", f"{KEYS}/{owner.public_id}"))[0] == "not_allowed"


async def test_viewers_see_and_finance_does_not(stack: Stack) -> None:
    viewer, finance = [
        Holder(stack, (await stack.tenancy.create_key(stack.tenant.id, None, role=role)).key)
        for role in ("viewer", "finance")
    ]
    assert len((await viewer.ask("GET", KEYS))["data"]) == 4
    assert (await viewer.error("POST", KEYS, {"project": "default"}))[0] == "not_allowed"
    assert (await finance.error("GET", KEYS))[0] == "not_allowed"


async def test_foreign_keys_are_not_there(stack: Stack) -> None:
    stranger = await stack.tenancy.create_tenant("stranger")
    theirs = await stack.tenancy.create_key(stranger.id, None)
    admin, operator = (
        Holder(stack, stack.admin_key),
        Holder(stack, (await stack.tenancy.create_operator_key("ann")).key),
    )
    for method, path in (
        ("GET", f"{KEYS}/{theirs.public_id}"), ("PATCH", f"{KEYS}/{theirs.public_id}"),
        ("POST", f"{KEYS}/{theirs.public_id}/rotate"), ("DELETE", f"{KEYS}/{theirs.public_id}"),
        ("GET", "/admin/v1/tenants/stranger/keys"), ("POST", "/admin/v1/tenants/stranger/keys"),
        ("GET", f"/admin/v1/tenants/stranger/keys/{theirs.public_id}"),
    ):  # fmt: skip
        assert (await admin.error(method, path, {} if method in ("PATCH", "POST") else None, 404))[0] == "not_found"
    assert (await operator.ask("GET", f"/admin/v1/tenants/stranger/keys/{theirs.public_id}"))["id"] == theirs.public_id
    # A tenant's paths do not reach an operator's key, nor the other way round.
    operators = (await operator.ask("GET", OPERATORS))["data"]
    assert (await operator.error("GET", f"{KEYS}/{operators[0]['id']}", status=404))[0] == "not_found"
    assert (await operator.error("GET", f"{OPERATORS}/{theirs.public_id}", status=404))[0] == "not_found"
    assert (await admin.error("GET", OPERATORS))[0] == "not_allowed"


async def test_a_key_is_limited_to_models_lanes_and_addresses(stack: Stack) -> None:
    await stack.ready()
    stack.say("hello")
    admin = Holder(stack, stack.admin_key)
    body = {"project": "default", "models": ["another"], "lanes": ["batch"]}
    made = await admin.ask("POST", KEYS, body, 201)
    holder, one = Holder(stack, made["key"]), f"{KEYS}/{made['id']}"
    assert (await holder.ask("GET", "/v1/models"))["data"] == []
    assert (await holder.error("GET", "/v1/models/tiny", status=404))[0] == "model_not_found"
    assert (await holder.chat(403))["error"]["code"] == "model_not_allowed"
    count = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}]}
    counter = Holder(stack, made["key"], **{"anthropic-version": "2023-06-01"})
    assert (await counter.ask("POST", "/v1/messages/count_tokens", count, 403))["error"]["type"] == "permission_error"
    await admin.ask("PATCH", one, {"models": ["tiny"]})
    await asyncio.sleep(0.01)
    assert (await holder.chat(403))["error"]["code"] == "lane_not_allowed"
    await holder.chat(service_tier="flex")
    await admin.ask("PATCH", one, {"lanes": None, "networks": ["192.0.2.0/24"]})
    await asyncio.sleep(0.01)
    assert (await holder.chat(403))["error"]["code"] == "address_not_allowed"
    forwarded = Holder(stack, made["key"], **{"x-forwarded-for": "192.0.2.1"})
    assert (await forwarded.chat(403))["error"]["code"] == "address_not_allowed"  # no proxy is trusted
    await admin.ask("PATCH", one, {"networks": ["127.0.0.1"]})
    await asyncio.sleep(0.01)
    await holder.chat()


async def test_a_key_without_a_secret_says_so(stack: Stack) -> None:
    """It stands for a person who asks in the console: the console offers no rotation, which would be refused."""
    admin = Holder(stack, stack.admin_key)
    stand_in = await stack.tenancy.stand_in_key(stack.tenant.id, stack.project.id, "ann", "Ann's", now=0)
    listed = {key["id"]: key["stands_in"] for key in (await admin.ask("GET", KEYS))["data"]}
    assert listed[stand_in.public_id] is True
    assert listed[stack.public_id] is False
    assert (await admin.error("POST", f"{KEYS}/{stand_in.public_id}/rotate", status=409))[0] == "wrong_state"


async def test_what_is_wrong_with_a_key_is_named(stack: Stack) -> None:
    admin = Holder(stack, stack.admin_key)
    for body, param in (
        ({"scopes": ["everything"]}, "scopes"), ({"scopes": []}, "scopes"), ({"networks": ["here"]}, "networks"),
        ({"networks": ["192.0.2.1/24"]}, "networks"), ({"lanes": ["fast"]}, "lanes"),
        ({"models": [""]}, "models"),
        ({"expires_at": "2020-01-01T00:00:00Z"}, "expires_at"), ({"expires_at": "soon"}, "expires_at"),
        ({"project": "none"}, "project"), ({"project": "default", "role": "owner"}, "role"),
        ({"role": "king"}, "role"), ({"name": "x" * 201}, "name"), ({"tenant": "other"}, None),
        ({"project": "default", "scopes": ["inference", "balance.read"]}, "scopes"),
        ({"models": ["m"] * 101}, "models"), ({"scopes": ["inference"] * 201}, "scopes"),
    ):  # fmt: skip
        assert (await admin.error("POST", KEYS, body, 400))[1] == param, body
    assert len(await stack.tenancy.list_keys(stack.tenant.id)) == 2


async def test_a_rotated_keys_secrets_overlap(stack: Stack) -> None:
    admin = Holder(stack, stack.admin_key)
    one = f"{KEYS}/{stack.public_id}"
    rotated = await admin.ask("POST", f"{one}/rotate", {"old_secret_until": _later(hours=1), "reason": "yearly"})
    assert rotated["id"] == stack.public_id
    assert rotated["key"] != stack.key
    await asyncio.sleep(0.01)
    for key in (stack.key, rotated["key"]):
        await Holder(stack, key).ask("GET", "/v1/models")
    await stack.gateway.services.authenticator.close()
    shown = await admin.ask("GET", one)
    assert shown["old_secret_used_at"] is not None
    again = await admin.ask("POST", f"{one}/rotate", {"old_secret_until": "2020-01-01T00:00:00Z"})
    await asyncio.sleep(0.01)
    for key, status in ((stack.key, 401), (rotated["key"], 401), (again["key"], 200)):
        await Holder(stack, key).ask("GET", "/v1/models", status=status)
    far = {"old_secret_until": _later(days=100)}
    assert (await admin.error("POST", f"{one}/rotate", far, 409))[0] == "wrong_state"


async def test_operators_keys_and_one_person_does_not_become_two(stack: Stack) -> None:
    ann, bob = [Holder(stack, (await stack.tenancy.create_operator_key(name)).key) for name in ("Ann", "bob")]
    carol = await ann.ask("POST", OPERATORS, {"name": "carol", "role": "finance"}, 201)
    finance = Holder(stack, carol["key"])
    assert (await finance.error("POST", OPERATORS, {"name": "dave"}))[0] == "not_allowed"
    assert (await finance.ask("GET", f"{OPERATORS}/{carol['id']}"))["role"] == "finance"
    listed = {key["name"]: key["id"] for key in (await ann.ask("GET", OPERATORS))["data"]}
    assert (await ann.error("PATCH", f"{OPERATORS}/{listed['bob']}", {"name": "ann"}, 409))[0] == "wrong_state"
    await PlatformSettings(stack.database).set(APPROVALS, "on", by="Ann", via="test")
    for method, path, body in (
        ("POST", OPERATORS, {"name": "dave"}), ("POST", f"{OPERATORS}/{listed['bob']}/rotate", None),
        ("PATCH", f"{OPERATORS}/{listed['bob']}", {"expires_at": _later(seconds=1)}),
    ):  # fmt: skip
        assert (await ann.error(method, path, body))[0] == "second_operator_required"
    renewed = await ann.ask("POST", f"{OPERATORS}/{listed['Ann']}/rotate")
    assert renewed["name"] == "Ann"
    await bob.ask("DELETE", f"{OPERATORS}/{listed['carol']}")
    assert (await bob.error("DELETE", f"{OPERATORS}/{listed['Ann']}"))[0] == "second_operator_required"
