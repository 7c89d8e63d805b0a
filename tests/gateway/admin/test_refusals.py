"""Who is refused is told what would help, by what was presented and what the route takes."""

from __future__ import annotations

import pytest

from tenancy.rights.key_limits import KeyLimits
from tests.gateway.admin.desk import Desks
from tests.gateway.stack import Stack

READ_BY_ALL_OPERATORS = ("/prices", "/prices/sheets", "/prices/books", "/suspensions")


async def message(stack: Stack, path: str, key: str = "") -> tuple[int, str, str]:
    answer = await stack.http.get(path, headers={"authorization": f"Bearer {key}"} if key else {})
    error = answer.json()["error"]
    return answer.status_code, error["code"], error["message"]


async def test_who_sends_no_key_or_a_wrong_one(stack: Stack) -> None:
    assert await message(stack, "/admin/v1/tenants") == (
        401, "not_signed_in",
        "You are not signed in: sign in, or send an admin key of the tenant or an operator's key as "
        "'Authorization: Bearer KEY'.",
    )  # fmt: skip
    status, code, text = await message(stack, "/admin/v1/tenants", "sk-wrong")
    assert (status, code) == (401, "invalid_api_key")
    assert "an admin key of the tenant or an operator's key" in text
    assert "Send an operator's key as" in (await message(stack, "/admin/v1/prices", "sk-wrong"))[2]
    status, code, text = await message(stack, "/v1/models")
    assert (status, code) == (401, "invalid_api_key")
    assert text.startswith("No API key was sent. Send the key of a project or an admin key")


async def test_who_may_not_is_told_who_may(stack: Stack, desks: Desks) -> None:
    refused = await desks.own("finance").call("GET", "/tenants/demo/keys")
    assert "the roles owner, admin, developer, viewer." in refused.text
    refused = await desks.operator("finance").call("POST", "/tenants", {})
    assert "the roles of the platform owner, admin." in refused.text
    scopes = KeyLimits(permissions=frozenset({"inference"}))
    scoped = await stack.tenancy.create_key(stack.tenant.id, stack.project.id, limits=scopes)
    assert await message(stack, "/v1/models", scoped.key) == (
        403, "not_allowed", "The scopes of this project key do not include models.read: use a key that has it.",
    )  # fmt: skip
    assert (await message(stack, "/v1/exports", stack.key))[2].endswith("it needs an admin key of the tenant.")
    assert (await message(stack, "/admin/v1/tenants", stack.key))[2] == (
        "This project key may not do this (tenants.read): it needs an admin key of the tenant or an operator's key or "
        "a signed-in user."
    )


@pytest.mark.parametrize("path", READ_BY_ALL_OPERATORS)
async def test_what_all_roles_of_the_platform_may_read(path: str, desks: Desks) -> None:
    await desks.operator("viewer").get(path)
    await desks.operator("developer").get(path)
    assert (await desks.own("owner").call("GET", path)).status_code == 403
    assert (await desks.operator("viewer").call("POST", path, {})).status_code in (403, 405)
