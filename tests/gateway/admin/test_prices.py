"""/admin/v1/prices: an operator proposes, another one activates, and nobody else has access."""

from __future__ import annotations

from typing import Any

import pytest

from billing.prices.approval import PriceSheets
from billing.prices.price_books import PriceBooks
from billing.verification.audit import audit_money
from tenancy.keys import IssuedKey
from tests.gateway.stack import Stack

GRID = [
    {"meter": "uncached", "price": "0.50"},
    *({"meter": f"read_{c}", "price": "0.05"} for c in ("automatic", "5m", "30m", "1h", "12h", "24h")),
    {"meter": "output", "price": "2.00"},
    *({"meter": m, "lane": "batch", "price": p} for m, p in (("uncached", "0.25"), ("output", "1.00"))),
    *(
        {"meter": f"read_{c}", "lane": "batch", "price": "0.025"}
        for c in ("automatic", "5m", "30m", "1h", "12h", "24h")
    ),
]
SHEETS = "/admin/v1/prices/sheets"


class Desk:
    """Somebody's way to the admin API."""

    def __init__(self, stack: Stack, key: IssuedKey | str) -> None:
        self._http = stack.http
        self._headers = {"authorization": f"Bearer {key if isinstance(key, str) else key.key}"}

    async def get(self, path: str, status: int = 200) -> Any:
        answer = await self._http.get(path, headers=self._headers)
        assert answer.status_code == status, answer.text
        return answer.json()

    async def post(self, path: str, body: Any = None, status: int = 200) -> Any:
        answer = await self._http.post(path, headers=self._headers, **({} if body is None else {"json": body}))
        assert answer.status_code == status, answer.text
        return answer.json()


async def test_one_operator_proposes_and_another_activates(stack: Stack) -> None:
    ann = Desk(stack, await stack.tenancy.create_operator_key("Ann"))
    again = Desk(stack, await stack.tenancy.create_operator_key(" ann"))
    bob = Desk(stack, await stack.tenancy.create_operator_key("bob"))
    wanted = {"model": "tiny", "prices": GRID, "reason": "contract 7"}
    checked = await ann.post(SHEETS, {**wanted, "dry_run": True})
    changed = {(d["meter"], d["lane"]): (d["before"], d["after"]) for d in checked["difference"]}
    assert changed["output", "*"] == ("1.60", "2.00")
    assert changed["output", "batch"] == (None, "1.00")
    assert (await ann.get(f"{SHEETS}?state=draft"))["data"] == []

    sheet = await ann.post(SHEETS, wanted, 201)
    assert (sheet["state"], sheet["author"], sheet["difference"]) == ("draft", "Ann", checked["difference"])
    assert [each["id"] for each in (await bob.get(f"{SHEETS}?state=draft"))["data"]] == [sheet["id"]]
    at = f"{SHEETS}/{sheet['id']}"
    for same in (ann, again):  # two keys of one name are one person's
        assert (await same.post(f"{at}/activate", status=403))["error"]["code"] == "four_eyes_required"
    assert (await stack.http.get("/v1/prices", headers={"x-api-key": stack.key})).json()["data"][0]["version"] == 1
    active = await bob.post(f"{at}/activate", {"reason": "as agreed"})
    assert active["state"] == "active"
    assert {c["via"] for c in active["changes"]} == {"operator key"}
    assert [(c["action"], c["actor"], c["reason"]) for c in active["changes"]] == [
        ("draft", "Ann", "contract 7"), ("approve", "bob", "as agreed"),
    ]  # fmt: skip
    assert (await bob.post(f"{at}/activate", status=409))["error"]["code"] == "wrong_state"
    stack.gateway.services.prices.forget()
    (listed,) = (await bob.get("/admin/v1/prices"))["data"]
    assert (listed["model"], listed["version"]) == ("tiny", 2)
    assert {(p["meter"], p["lane"]): p["price"] for p in listed["prices"]}["uncached", "batch"] == "0.25"
    before = await bob.get("/admin/v1/prices?model=tiny&at=2020-01-01T00:00:00Z")
    assert before["data"] == []
    assert await audit_money(stack.database) == []


@pytest.mark.slow
async def test_who_cannot_approve_prices_withdraws_their_own_alone(stack: Stack) -> None:
    ann, bob = [Desk(stack, await stack.tenancy.create_operator_key(name)) for name in ("Ann", "bob")]
    eve, fay = [Desk(stack, await stack.tenancy.create_operator_key(name, role="admin")) for name in ("eve", "fay")]
    later = {"model": "tiny", "prices": GRID, "effective_at": "2999-01-01T00:00:00Z"}
    agreed = await ann.post(SHEETS, later, 201)
    await bob.post(f"{SHEETS}/{agreed['id']}/activate")
    draft = await eve.post(SHEETS, {"model": "tiny", "prices": GRID}, 201)
    for sheet in (agreed, draft):
        for path in (f"{SHEETS}/{sheet['id']}", f"/admin/v1/approvals/price_sheet_{sheet['id']}"):
            refused = await fay.post(f"{path}/withdraw", None, 403)
            assert "prices.approve" in refused["error"]["message"]
    assert (await ann.get(f"{SHEETS}/{agreed['id']}"))["state"] == "scheduled"
    assert (await eve.post(f"{SHEETS}/{draft['id']}/withdraw"))["state"] == "withdrawn"
    assert (await bob.post(f"{SHEETS}/{agreed['id']}/withdraw"))["state"] == "withdrawn"
    await bob.post(f"{SHEETS}/999/withdraw", None, 404)


async def test_drafts_can_be_withdrawn_and_a_tenants_book_overrides(stack: Stack) -> None:
    ann = Desk(stack, await stack.tenancy.create_operator_key("ann"))
    bob = Desk(stack, await stack.tenancy.create_operator_key("bob"))
    await PriceBooks(stack.database).create_for(stack.tenant.id, "demo")
    own = {"model": "tiny", "book": "demo", "kind": "overrides", "prices": [{"meter": "output", "price": "1.50"}]}
    first = await ann.post(SHEETS, own, 201)
    assert first["difference"] == [
        {"meter": "output", "lane": "*", "context_from": 0, "before": "1.60", "after": "1.50"}
    ]
    gone = await ann.post(f"{SHEETS}/{first['id']}/withdraw", {"reason": "a slip"})
    assert gone["state"] == "withdrawn"
    await bob.post(f"{SHEETS}/{first['id']}/activate", status=409)
    later = await ann.post(SHEETS, {**own, "effective_at": "2999-01-01T00:00:00Z"}, 201)
    assert (await bob.post(f"{SHEETS}/{later['id']}/activate"))["state"] == "scheduled"
    found = await bob.get(f"{SHEETS}?book=demo&limit=1")
    assert ([each["id"] for each in found["data"]], found["has_more"]) == ([later["id"]], True)
    rest = await bob.get(f"{SHEETS}?book=demo&after={later['id']}")
    assert ([each["id"] for each in rest["data"]], rest["has_more"]) == ([first["id"]], False)


async def test_what_is_wrong_is_named_and_nothing_is_written(stack: Stack) -> None:
    ann = Desk(stack, await stack.tenancy.create_operator_key("ann"))
    wrong: list[tuple[Any, str | None, str | None]] = [
        ({"prices": GRID[1:]}, "$.prices", "price_refused"),
        ({"prices": [*GRID, GRID[0]]}, "$.prices", "invalid_value"),
        ({"prices": [{"meter": "thought", "price": "1"}]}, "$.prices", "price_refused"),
        ({"prices": [{**GRID[0], "price": "-1"}]}, "$.prices", "price_refused"),
        ({"prices": [{**GRID[0], "price": "99999"}, *GRID[1:]]}, "$.prices", "unusual_price"),
        ({"prices": [{"meter": "output", "price": 2}]}, "$.prices[0].price", "invalid_value"),
        ({"book": "none"}, "$.book", "unknown_book"),
        ({"currency": "EUR"}, "$.currency", "wrong_currency"),
        ({"effective_at": "2020-01-01T00:00:00Z"}, "$.effective_at", "price_in_past"),
        ({"effective_until": "2020-01-01T00:00:00Z"}, "$.effective_until", "price_refused"),
        ({"effective_at": "soon"}, "$.effective_at", "invalid_value"),
        ({"author": "bob"}, "$", "invalid_value"),
        ({"reason": "x" * 501}, "$.reason", "invalid_value"),
        ({"reason": "two\nlines"}, "$.reason", "invalid_value"),
        ({"force": "x" * 501}, "$.force", "invalid_value"),
        ({"model": "x" * 201}, "$.model", "invalid_value"),
    ]
    for change, param, code in wrong:
        error = (await ann.post(SHEETS, {"model": "tiny", "prices": GRID, **change}, 400))["error"]
        named = None if param == "$" else param.removeprefix("$.")
        assert (error["param"], error["code"]) == (named, code), error
    assert len(await PriceSheets(stack.database).history()) == 1


async def test_only_operators_come_in_and_only_here(stack: Stack) -> None:
    key = await stack.tenancy.create_operator_key("ann")
    for other, status in ((stack.key, 403), (stack.admin_key, 403), ("tp_live_x", 401)):
        refused = await Desk(stack, other).get("/admin/v1/prices", status)
        assert "an operator's key" in refused["error"]["message"]
    for path in ("/v1/prices", "/v1/models", "/v1/exports", "/v1/webhooks"):
        await Desk(stack, key).get(path, 403)
    ann = Desk(stack, key)
    await ann.get(f"{SHEETS}/99", 404)
    assert (await ann.get("/admin/v1/prices?book=none", 400))["error"]["param"] == "book"
    await ann.get("/admin/v1/prices?modle=x", 400)
    await ann.get(f"{SHEETS}?limit=0", 400)
    (row,) = await stack.tenancy.list_operator_keys()
    assert (row.name, row.kind, row.tenant_id) == ("ann", "operator", None)
    await stack.tenancy.revoke(key.public_id)
    await ann.get("/admin/v1/prices", 401)
