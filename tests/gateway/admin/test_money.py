"""Balance, grants, payments, refunds, credit line, statement, adjustments and budgets by /admin/v1."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest

from billing.accounts.statements import by_day, statement
from billing.calendar import parse_instant
from billing.money import format_pico
from billing.verification.audit import audit_money
from storage.database.base import new_id
from tests.gateway.admin.desk import Desks
from tests.gateway.admin.test_platform import BUYER, SELLER
from tests.gateway.stack import Stack

pytestmark = pytest.mark.slow

D = "/tenants/demo"


async def _asked(stack: Stack, times: int) -> list[Any]:
    for number in range(times):
        stack.say(f"answer {number}")
        await stack.post({"model": "tiny", "messages": [{"role": "user", "content": f"hello {number}"}]})
    return await stack.settled(times)


async def test_money_recorded_under_an_id_counts_once(stack: Stack, desks: Desks) -> None:
    finance = desks.operator("finance")
    identity = str(new_id())
    paid = {"amount": "25.000000000001", "id": identity, "reason": "transfer 7"}
    would = await finance.post(f"{D}/payments", {**paid, "dry_run": True})
    assert (would["available"], would["would_be_available"]) == ("10.000000000000", "35.000000000001")
    made = await finance.post(f"{D}/payments", paid, 201)
    assert (made["id"], made["kind"], made["amount"], made["remaining"]) == (
        identity, "paid", "25.000000000001", "25.000000000001",
    )  # fmt: skip
    assert await finance.post(f"{D}/payments", paid, 200) == made
    assert (await finance.post(f"{D}/payments", {**paid, "dry_run": True}))["would_be_available"] == "35.000000000001"
    for other in ({**paid, "amount": "26"}, {**paid, "currency": "EUR"}):
        assert (await finance.post(f"{D}/payments", other, 409))["error"]["code"] == "idempotency_conflict"
    assert (await finance.post(f"{D}/grants", paid, 409))["error"]["code"] == "idempotency_conflict"
    assert (await finance.get(f"{D}/balance"))["available"] == "35.000000000001"

    back = {"amount": "5", "id": str(new_id())}
    assert (await finance.post(f"{D}/refunds", {**back, "dry_run": True}))["would_be_available"] == "30.000000000001"
    assert (await finance.post(f"{D}/refunds", back, 201))["available"] == "30.000000000001"
    assert (await finance.post(f"{D}/refunds", back, 200))["id"] == back["id"]
    assert (await finance.post(f"{D}/refunds", {"amount": "999"}, 409))["error"]["code"] == "refund_refused"
    assert (await finance.get(f"{D}/balance"))["available"] == "30.000000000001"
    assert await audit_money(stack.database) == []


async def test_a_payment_in_advance_says_its_vat_and_has_an_invoice(stack: Stack, desks: Desks) -> None:
    finance = desks.operator("finance")
    await finance.call("PATCH", "/sellers/turnpike-eu", {**SELLER, "rates": {"NL": "21"}})
    assert (await finance.get("/sellers/turnpike-eu"))["prepayment"] == "advance"
    await finance.call("PATCH", f"{D}/buyer", {**BUYER, "country": "NL", "vat_id": ""})
    would = await finance.post(f"{D}/payments", {"amount": "10", "dry_run": True})
    assert would["vat"] == "2.100000000000"
    refused = await finance.post(f"{D}/payments", {"amount": "0.001"}, 400)
    assert refused["error"]["code"] == "invalid_amount"
    await finance.post(f"{D}/payments", {"amount": "10"}, 201)
    (advance,) = (await finance.get(f"{D}/invoices?kind=advance"))["data"]
    assert (advance["net"], advance["tax"], advance["state"]) == ("10.00", "2.10", "paid")
    assert (await finance.post(f"{D}/refunds", {"amount": "5"}, 201))["vat"] == "1.050000000000"
    (note,) = (await finance.get(f"{D}/invoices?kind=credit_note"))["data"]
    assert (note["gross"], note["corrects"]) == ("6.05", advance["id"])
    assert await audit_money(stack.database) == []


async def test_grants_for_one_model_or_project_are_beside_the_balance(stack: Stack, desks: Desks) -> None:
    finance = desks.operator("finance")
    given = await finance.post(f"{D}/grants", {"amount": "3", "project": "default", "model": "tiny"}, 201)
    assert (given["kind"], given["model"]) == ("promo", "tiny")
    balance = await finance.get(f"{D}/balance")
    assert (balance["available"], balance["restricted"]) == ("10.000000000000", "3.000000000000")
    wrong: list[tuple[dict[str, Any], str | None]] = [
        ({"project": "nobody"}, "$.project"),
        ({"amount": "-1"}, "$.amount"),
        ({"amount": "1.0000000000001"}, "$.amount"),
        ({"expires_at": "soon"}, "$.expires_at"),
        ({"expires_at": "2020-01-01T00:00:00Z"}, None),
        ({"priority": -1}, None),
        ({"id": "x"}, "$.id"),
        ({"reason": "a\nb"}, "$.reason"),
        ({"amount": 3}, "$.amount"),
        ({"whom": "me"}, "$"),
    ]
    for change, param in wrong:
        error = (await finance.post(f"{D}/grants", {"amount": "1", **change}, 400))["error"]
        assert error["param"] == (None if param in (None, "$") else param.removeprefix("$.")), error
    page = await finance.get(f"{D}/grants?limit=1")
    assert (page["data"][0]["id"], page["has_more"]) == (given["id"], True)
    rest = await finance.get(f"{D}/grants?limit=5&after={given['id']}")
    assert ([each["amount"] for each in rest["data"]], rest["has_more"]) == (["10.000000000000"], False)
    assert [each["kind"] for each in (await finance.get(f"{D}/grants?kind=promo"))["data"]] == ["promo"]
    assert await finance.get(f"{D}/grants/{given['id']}") == given
    other = desks.role("owner", (await stack.tenancy.create_tenant("other")).id)
    await other.get(f"/tenants/other/grants/{given['id']}", 404)


async def test_a_grant_that_expires_is_put_in_and_recorded(stack: Stack, desks: Desks) -> None:
    expires = "2999-01-01T00:00:00Z"
    given = await desks.operator("finance").post(f"{D}/grants", {"amount": "3", "expires_at": expires}, 201)
    assert given["expires_at"] == expires
    (entry,) = (await desks.operator("owner").get("/audit?action=grant.created&limit=1"))["data"]
    assert entry["after"]["expires_at"] == parse_instant(expires)


async def test_the_account_of_a_month(stack: Stack, desks: Desks) -> None:
    (account,) = (await desks.own("finance").get(f"{D}/account"))["data"]
    assert (account["opening"], account["closing"]) == ("0.000000000000", "10.000000000000")
    (line,) = account["lines"]
    assert (line["kind"], line["number"], line["amount"]) == ("payment", None, "10.000000000000")
    assert (await desks.own("finance").get(f"{D}/account?period=2020-01"))["data"] == []
    refused = await desks.own("finance").get(f"{D}/account?period=2020-13", 400)
    assert refused["error"]["code"] == "invalid_period"
    await desks.own("developer").get(f"{D}/account", 403)


async def test_a_tenant_sees_its_money_and_platform_finance_changes_it(stack: Stack, desks: Desks) -> None:
    for role, status in (("owner", 200), ("admin", 200), ("finance", 200), ("viewer", 200), ("developer", 403)):
        for path in ("balance", "grants", "statement"):
            await desks.own(role).get(f"{D}/{path}", status)  # type: ignore[arg-type]
    for desk in (desks.own("owner"), desks.own("finance"), desks.operator("admin"), desks.operator("viewer")):
        for path in ("payments", "grants", "refunds"):
            await desk.post(f"{D}/{path}", {"amount": "1"}, 403)
        await desk.put(f"{D}/credit-line", {"amount": "1"}, 403)
        await desk.post(f"{D}/adjustments", {"request": "req_x", "units": {}}, 403)
    assert len((await desks.operator().get(f"{D}/grants"))["data"]) == 1


async def test_the_credit_line_is_part_of_what_is_available(stack: Stack, desks: Desks) -> None:
    finance = desks.operator("finance")
    would = await finance.put(f"{D}/credit-line", {"amount": "100", "dry_run": True})
    assert (would["available"], would["credit_line"]) == ("110.000000000000", "100.000000000000")
    assert (await finance.get(f"{D}/balance"))["credit_line"] == "0.000000000000"
    assert await finance.put(f"{D}/credit-line", {"amount": "100"}) == would
    assert (await finance.put(f"{D}/credit-line", {"amount": "0"}))["available"] == "10.000000000000"
    await finance.put(f"{D}/credit-line", {"amount": "many"}, 400)


async def test_the_statement_goes_on_from_page_to_page(stack: Stack, desks: Desks) -> None:
    events = await _asked(stack, 3)
    finance = desks.operator("finance")
    await finance.post(f"{D}/payments", {"amount": "1"}, 201)
    lines = await statement(stack.database, stack.tenant.id)
    for query, wanted in (("every=true", lines), ("", by_day(lines))):
        seen: list[Any] = []
        after = ""
        while True:
            page = await finance.get(f"{D}/statement?{query}&limit=1{after}")
            seen += page["data"]
            if not page["has_more"]:
                break
            after = f"&after={page['next']}"
        assert [(line["amount"], line["balance"], line["kind"]) for line in seen] == [
            (format_pico(line.amount_pico), format_pico(line.balance_pico), line.kind) for line in wanted
        ]
    total = sum(Decimal(line["amount"]) for line in seen)
    assert total == Decimal((await finance.get(f"{D}/balance"))["available"])
    assert total == Decimal(11) - sum(Decimal(format_pico(event.cost_pico)) for event in events)
    later = await finance.get(f"{D}/statement?every=true&since=2999-01-01T00:00:00Z")
    assert (later["data"], later["has_more"]) == ([], False)


async def test_an_adjustment_is_an_event_of_its_own(stack: Stack, desks: Desks) -> None:
    (event,) = await _asked(stack, 1)
    finance = desks.operator("finance")
    name = f"req_{event.id.hex() if isinstance(event.id, bytes) else event.id.hex}"
    identity = str(new_id())
    change = {"request": name, "units": {"output": -2}, "id": identity}
    would = await finance.post(f"{D}/adjustments", {**change, "dry_run": True})
    assert (would["cost"], would["dry_run"]) == ("-0.000003200000", True)
    made = await finance.post(f"{D}/adjustments", change, 201)
    assert (made["id"], made["request"], made["units"], made["cost"]) == (
        identity, name, {"output": -2}, "-0.000003200000",
    )  # fmt: skip
    assert await finance.post(f"{D}/adjustments", change, 200) == made
    await finance.post(f"{D}/adjustments", {**change, "units": {"output": -1}}, 409)
    await finance.post(f"{D}/adjustments", {"request": name, "units": {"output": -9999}}, 400)
    await finance.post(f"{D}/adjustments", {"request": name, "units": {"thought": 1}}, 400)
    await finance.post(f"{D}/adjustments", {"request": f"req_{'0' * 32}", "units": {"output": 1}}, 404)
    await stack.tenancy.create_tenant("other")
    await finance.post("/tenants/other/adjustments", change, 404)
    assert await audit_money(stack.database) == []


async def test_budgets_are_set_listed_and_removed(stack: Stack, desks: Desks) -> None:
    owner, finance, viewer = desks.own(), desks.own("finance"), desks.own("viewer")
    would = await owner.post(f"{D}/budgets", {"limit": "5", "dry_run": True})
    assert would == {"object": "budget.check", "replaces": None}
    made = await owner.post(f"{D}/budgets", {"limit": "5"})
    assert (made["scope"], made["window"], made["available"]) == ("tenant", "month", "5.000000000000")
    again = await finance.post(f"{D}/budgets", {"limit": "7", "thresholds": [10, 90]})
    assert (again["id"], again["limit"], again["thresholds"]) == (made["id"], "7.000000000000", [10, 90])
    assert (await owner.post(f"{D}/budgets", {"limit": "5", "dry_run": True}))["replaces"] == made["id"]
    project = await owner.post(f"{D}/budgets", {"limit": "1", "project": "default", "window": "day"})
    assert (project["subject"], project["name"]) == (f"project_{stack.project.id.hex}", stack.project.name)
    key = await owner.post(f"{D}/budgets", {"limit": "1", "key": stack.public_id, "action": "notify"})
    assert (key["subject"], key["available"]) == (stack.public_id, None)
    assert key["name"], "that of the key, or its id"
    await owner.post(f"{D}/budgets", {"limit": "1", "tag": "nightly", "window": "total"})
    listed = await viewer.get(f"{D}/budgets")
    assert [each["scope"] for each in listed["data"]] == ["key", "project", "tag", "tenant"]
    first = await viewer.get(f"{D}/budgets?limit=3")
    rest = await viewer.get(f"{D}/budgets?after={first['data'][-1]['id']}")
    assert (first["has_more"], [*first["data"], *rest["data"]]) == (True, listed["data"])
    member = desks.role("viewer", stack.tenant.id, stack.project.id)
    assert (await member.get(f"{D}/budgets"))["data"] == [project]
    await member.post(f"{D}/budgets", {"limit": "5"}, 403)
    await viewer.post(f"{D}/budgets", {"limit": "5"}, 403)
    await desks.own("developer").post(f"{D}/budgets", {"limit": "5"}, 403)
    for wrong in (
        {"limit": "0"}, {"limit": "5", "project": "no"}, {"limit": "5", "key": "no"}, {"limit": "5", "tag": ""},
        {"limit": "5", "project": "default", "tag": "x"}, {"limit": "5", "thresholds": [90, 10]},
        {"limit": "5", "window": "year"},
    ):  # fmt: skip
        await owner.post(f"{D}/budgets", wrong, 400)
    assert (await owner.delete(f"{D}/budgets/{made['id']}?dry_run=true"))["deleted"] is False
    await viewer.delete(f"{D}/budgets/{made['id']}", 403)
    assert (await owner.delete(f"{D}/budgets/{made['id']}"))["deleted"] is True
    await owner.delete(f"{D}/budgets/{made['id']}", 404)
    assert len((await owner.get(f"{D}/budgets"))["data"]) == 3
