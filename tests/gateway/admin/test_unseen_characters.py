"""Names with characters that nobody sees are refused by /admin/v1, with the field that has them."""

from __future__ import annotations

from typing import Any

import pytest

from tests.gateway.admin.desk import Desks
from tests.gateway.stack import Stack

PLACES: tuple[tuple[str, str, dict[str, Any], str], ...] = (
    ("POST", "/tenants", {"name": "ac\u200bme"}, "$.name"),
    ("POST", "/tenants/demo/projects", {"name": "\u202eweb"}, "$.name"),
    ("POST", "/tenants/demo/keys", {"project": "default", "name": "a\u3164"}, "$.name"),
)


@pytest.mark.parametrize(("method", "path", "body", "field"), PLACES, ids=[path for _, path, _, _ in PLACES])
async def test_a_name_with_one_is_refused(
    stack: Stack, desks: Desks, method: str, path: str, body: dict[str, Any], field: str
) -> None:
    answer = await desks.operator().call(method, path, body)
    error = answer.json()["error"]
    assert (answer.status_code, error["code"], error["param"]) == (400, "invalid_value", field.removeprefix("$.")), (
        error
    )
    assert "a character that nobody sees, U+" in error["message"]


async def test_a_webhook_to_such_a_url_is_refused(stack: Stack, desks: Desks) -> None:
    body = {"url": "https://example.com/\u200bhook", "topics": ["*"]}
    error = (await desks.own().post("/tenants/demo/webhooks", body, 400))["error"]
    assert "U+200B" in error["message"]
