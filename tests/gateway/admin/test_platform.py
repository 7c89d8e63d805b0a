"""What belongs to the platform by /admin/v1: periods, terms, parties, price books, settings, the fleet."""

from __future__ import annotations

from typing import Any

from audit_log.actors import Actor, acting_as
from billing.calendar import period_of
from billing.invoices.parties.store import Parties
from billing.prices import PriceCatalog
from billing.rating.contract_store import Contracts
from billing.rating.terms import parse_terms
from tests.gateway.admin.desk import Desk, Desks
from tests.gateway.stack import Stack

D = "/tenants/demo"
BUYER = {"name": "Demo GmbH", "address": ["Hauptstr. 1"], "city": "Berlin", "country": "DE"}
SELLER = {"name": "Turnpike BV", "address": ["Singel 1"], "city": "Amsterdam", "country": "NL"}


async def test_terms_are_set_for_a_month_and_kept(stack: Stack, desks: Desks) -> None:
    finance, owner = desks.operator("finance"), desks.own()
    assert (await owner.get(f"{D}/terms"))["terms"] == {
        "tiers": [], "discounts": [], "minimum": None, "commitment": None,
    }  # fmt: skip
    terms: dict[str, Any] = {
        "tiers": [
            {"kind": "graduated", "model": "tiny", "meter": "output", "lane": "standard",
             "steps": [{"price": "1.60", "up_to": 1000}, {"price": "1.20", "up_to": None}]},
        ],
        "discounts": [{"basis_points": 500, "models": ["tiny"]}],
        "minimum": {"amount": "100.000000000000", "first": "2998-01-15", "last": "", "prorated": True},
        "commitment": {"amount": "1200.000000000000", "first": "2998-01", "last": "2998-12", "invoiced": True,
                       "payments": [{"amount": "200.000000000000", "reference": "bank 1", "reason": "before"}]},
    }  # fmt: skip
    new = {"terms": terms, "from_period": "2998-01", "reason": "contract 7"}
    checked = await finance.post(f"{D}/terms", {**new, "dry_run": True}, 200)
    assert (checked["number"], checked["terms"]) == (None, terms)
    months = {month["period"]: month for month in checked["schedule"]}
    assert list(months) == [f"2998-{month:02}" for month in range(1, 13)]
    thousand, all_of_it, nothing = "1000.000000000000", "1200.000000000000", "0.000000000000"
    expected = {"sent": False, "asked": thousand, "funded": all_of_it, "drawn": None, "left": all_of_it}
    assert months["2998-01"] == expected | {"period": "2998-01"}
    assert months["2998-12"] == expected | {"period": "2998-12", "asked": nothing}
    made = await finance.post(f"{D}/terms", new, 201)
    assert (made["terms"], made["reason"]) == (terms, "contract 7")
    assert await owner.get(f"{D}/terms?period=2998-05") == made
    assert (await owner.get(f"{D}/terms?period=2997-12"))["number"] is None
    later = await finance.post(f"{D}/terms", {"terms": {}, "from_period": "2999-01"}, 201)
    page = await owner.get(f"{D}/terms/history?limit=1")
    assert ([each["number"] for each in page["data"]], page["has_more"]) == ([later["number"]], True)
    assert (await owner.get(f"{D}/terms/history?after={later['number']}"))["data"] == [made]
    assert len(await Contracts(stack.database, stack.gateway.services.prices).list(stack.tenant.id)) == 2
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"from_period": "2020-01"}, "$.from_period"),
        ({"terms": {"discounts": [{"basis_points": 0}]}}, "$.terms.discounts[0].basis_points"),
        ({"terms": {"tiers": [{**terms["tiers"][0], "meter": "none"}]}}, "$.terms.tiers[0].meter"),
        ({"terms": {"minimum": {"amount": "-1"}}}, "$.terms.minimum.amount"),
        ({"terms": {"rebate": 1}}, "$.terms"),
        (
            {"terms": {"discounts": [{"basis_points": 6000}, {"basis_points": 7000}]}},
            "$.terms.discounts[1].basis_points",
        ),
        ({"terms": {"commitment": terms["commitment"] | {"first": "2997-12"}}}, "$.terms.commitment.first"),
        (
            {"from_period": "2998-03", "terms": {"commitment": terms["commitment"] | {"amount": "1199"}}},
            "$.terms.commitment.amount",
        ),
        (
            {"from_period": "2998-03", "terms": {"commitment": terms["commitment"] | {"payments": []}}},
            "$.terms.commitment.payments",
        ),
        ({"reason": "a\nb"}, "$.reason"),
    ]
    for change, param in wrong:
        for dry_run in (True, False):
            refused = await finance.post(f"{D}/terms", {**new, **change, "dry_run": dry_run}, 400)
            assert refused["error"]["param"] == param.removeprefix("$.")
    for desk in (owner, desks.own("finance"), desks.operator("admin")):
        await desk.post(f"{D}/terms", new, 403)
    await desks.own("developer").get(f"{D}/terms", 403)


async def test_parties_are_changed_by_their_fields(stack: Stack, desks: Desks) -> None:
    finance, owner = desks.operator("finance"), desks.own()
    await owner.get(f"{D}/buyer", 404)
    assert (await finance.call("PATCH", f"{D}/buyer", BUYER)).status_code == 400  # nobody sells yet
    tried = await finance.call("PATCH", "/sellers/turnpike-eu", {**SELLER, "rates": {"NL": "21"}, "dry_run": True})
    assert tried.status_code == 200
    assert (await finance.get("/sellers"))["data"] == []
    made = (await finance.call("PATCH", "/sellers/turnpike-eu", {**SELLER, "rates": {"NL": "21"}})).json()
    assert (made["rates"], made["series"]) == ({"NL": "21"}, "INV")
    refused = await finance.call("PATCH", "/sellers/turnpike-eu", {"city": "Utrecht"})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "reason")
    moved = {"city": "Utrecht", "reason": "moved"}
    changed = (await finance.call("PATCH", "/sellers/turnpike-eu", moved)).json()
    assert (changed["city"], changed["rates"]) == ("Utrecht", {"NL": "21"})
    assert (await finance.get("/sellers"))["data"] == [changed]
    assert await finance.get("/sellers/turnpike-eu") == changed
    await finance.get("/sellers/none", 404)
    buyer = (await owner.call("PATCH", f"{D}/buyer", BUYER)).json()
    assert (buyer["name"], buyer["seller"], buyer["treatment"]) == ("Demo GmbH", "turnpike-eu", "auto")
    assert await owner.get(f"{D}/buyer") == buyer
    assert (await Parties(stack.database).buyer(stack.tenant.id)).city == "Berlin"
    for field, value in (("treatment", "export"), ("payment_days", 365), ("seller", "x"), ("exemption", "why")):
        assert (await owner.call("PATCH", f"{D}/buyer", {field: value})).status_code == 403
    assert (await finance.call("PATCH", f"{D}/buyer", {"payment_days": 14})).json()["payment_days"] == 14
    for wrong in ({"country": "UK"}, {"vat_id": "DE1"}, {"name": ""}, {"email": "x"}, {"colour": 1}, {"name": None}):
        assert (await owner.call("PATCH", f"{D}/buyer", wrong)).status_code == 400
    assert (await finance.call("PATCH", "/sellers/turnpike-eu", {"rates": {"NL": "many"}})).status_code == 400
    for desk in (owner, desks.own("finance")):
        await desk.get("/sellers", 403)
        assert (await desk.call("PATCH", "/sellers/turnpike-eu", {"city": "X"})).status_code == 403
    assert (await desks.own("admin").call("PATCH", f"{D}/buyer", {"city": "X"})).status_code == 403


async def test_what_tax_follows_from_changes_from_a_day_on(stack: Stack, desks: Desks) -> None:
    finance, owner = desks.operator("finance"), desks.own()
    made = (await finance.call("PATCH", "/sellers/turnpike-eu", {**SELLER, "rates": {"NL": "21"}})).json()
    assert made["versions"] == []
    later = {"rates": {"NL": "22"}, "valid_from": "2998-01-01", "reason": "the law of 2997"}
    changed = (await finance.call("PATCH", "/sellers/turnpike-eu", later)).json()
    assert changed["rates"] == {"NL": "21"}
    assert [(version["valid_from"], version["rates"]) for version in changed["versions"]] == [
        (None, {"NL": "21"}),
        ("2998-01-01", {"NL": "22"}),
    ]
    await owner.call("PATCH", f"{D}/buyer", BUYER)
    buyer = (await finance.call("PATCH", f"{D}/buyer", {"country": "NL", "valid_from": "2020-01-01"})).json()
    assert (buyer["country"], buyer["versions"][1]["valid_from"]) == ("NL", "2020-01-01")
    assert (await owner.call("PATCH", f"{D}/buyer", {"country": "FR", "valid_from": "2020-01-01"})).status_code == 403
    wrong = await finance.call("PATCH", f"{D}/buyer", {"country": "FR", "valid_from": "soon"})
    assert (wrong.status_code, wrong.json()["error"]["param"]) == (400, "valid_from")


async def test_periods_say_what_they_wait_for(stack: Stack, desks: Desks) -> None:
    finance = desks.operator("finance")
    assert (await finance.get("/periods/2998-01"))["state"] == "open"
    refused = await finance.post("/periods/2998-01/close", {"dry_run": True}, 409)
    assert refused["error"]["code"] == "period_open"
    await finance.get("/periods/2998-13", 400)
    closed = await finance.post("/periods/2020-01/close")
    assert (closed["state"], closed["waits_for"]) == ("closed", [])
    assert await finance.post("/periods/2020-01/close") == closed
    listed = (await finance.get("/periods?limit=100"))["data"]
    assert closed in listed
    assert listed == sorted(listed, key=lambda period: period["period"], reverse=True)
    page = await finance.get("/periods?limit=1")
    rest = await finance.get(f"/periods?limit=100&after={page['data'][0]['period']}")
    assert [*page["data"], *rest["data"]] == listed
    assert (await desks.own("viewer").get("/periods/2020-01"))["state"] == "closed"
    await desks.own("developer").get("/periods", 403)
    for desk in (desks.own(), desks.operator("admin")):
        await desk.post("/periods/2998-01/close", {}, 403)
    epoch = stack.spool.owner
    alive = await finance.post(f"/gateway-epochs/{epoch}/declare-dead", {"reason": "lost"}, 409)
    assert alive["error"]["code"] == "epoch_alive"
    await finance.post("/gateway-epochs/none/declare-dead", {"reason": "lost"}, 404)


async def test_price_books_are_the_platforms(stack: Stack, desks: Desks) -> None:
    finance = desks.operator("finance")
    euros = await finance.post("/prices/books", {"name": "in euros", "currency": "EUR"}, 201)
    own = await finance.post("/prices/books", {"name": "demo", "tenant": "demo"}, 201)
    assert (own["base"], own["tenant_id"]) == ("base", f"tenant_{stack.tenant.id.hex}")
    listed = (await finance.get("/prices/books"))["data"]
    assert [book["name"] for book in listed] == ["base", "in euros", "demo"]
    assert (await finance.get("/prices/books?after=base&limit=1"))["data"] == [euros]
    for wrong, status in (
        ({"name": "demo", "tenant": "demo"}, 400), ({"name": "x", "tenant": "none"}, 404), ({"name": "x"}, 400),
        ({"name": "x", "currency": "euro"}, 400), ({"name": "x", "tenant": "demo", "base": "none"}, 404),
        ({"name": "x", "currency": "EUR", "base": "base"}, 400),
    ):  # fmt: skip
        await finance.post("/prices/books", wrong, status)
    await desks.own().get("/prices/books", 403)


async def test_approvals_are_not_turned_on_where_nobody_could_turn_them_off(stack: Stack) -> None:
    ann, at = Desk(stack, await stack.tenancy.create_operator_key("ann")), "/platform/settings/approvals"
    await stack.tenancy.create_operator_key("fin", role="finance")  # decides, and may not change settings
    assert (await ann.put(at, {"value": "on"}, 409))["error"]["code"] == "second_operator_required"
    user = await stack.users.accounts.create("bob@example.com", "Bob", 0)
    await stack.tenancy.create_operator_key("bob", user_id=user.id)  # who may be ann, whose key names no user
    assert (await ann.put(at, {"value": "on"}, 409))["error"]["code"] == "second_operator_required"
    await stack.tenancy.create_operator_key("cat")
    await ann.put(at, {"value": "on"})


async def test_approvals_take_two_operators(stack: Stack, desks: Desks) -> None:
    ann = Desk(stack, await stack.tenancy.create_operator_key("ann"))
    setting = {"object": "platform.setting", "name": "approvals", "value": "off", "values": ["off", "on"]}
    assert (await ann.get("/platform/settings"))["data"][0] == setting
    at = "/platform/settings/approvals"
    assert (await ann.put(at, {"value": "on"}, 409))["error"]["code"] == "second_operator_required"
    await stack.tenancy.create_operator_key("bob")
    await ann.put(at, {"value": "maybe"}, 400)
    await ann.put("/platform/settings/none", {"value": "on"}, 404)
    assert (await ann.put(at, {"value": "on", "reason": "as agreed"}))["value"] == "on"
    (change,) = (await ann.get("/platform/changes"))["data"]
    assert (change["actor"], change["via"], change["reason"]) == ("ann", "operator key", "as agreed")
    waiting = await ann.put(at, {"value": "off"}, 202)
    assert (waiting["kind"], waiting["state"]) == ("platform_setting.set", "pending")
    assert (await ann.put("/platform/settings/grant_approval_over", {"value": "100"}, 202))["state"] == "pending"
    assert (await desks.operator("viewer").get("/platform/settings"))["data"][0]["value"] == "on"
    for desk in (desks.operator("admin"), desks.operator("finance"), desks.own()):
        await desk.put(at, {"value": "off"}, 403)
    await desks.own().get("/platform/settings", 403)


async def test_the_fleet_says_what_replicas_do(stack: Stack, desks: Desks) -> None:
    viewer = desks.operator("viewer")
    await stack.until(lambda: stack.gateway.services.fleet.links[0].beat is not None)
    fleet = await viewer.get("/fleet")
    (replica,) = fleet["data"]
    assert (replica["name"], replica["state"], replica["model"]) == (stack.replica.name, "healthy", "tiny")
    assert fleet["gateway"]["epoch"] == stack.spool.owner
    assert (await viewer.get(f"/fleet/{replica['name']}"))["epoch"] == replica["epoch"]
    await viewer.get("/fleet/none", 404)
    await stack.replica.stop()
    await stack.until(lambda: not stack.gateway.services.fleet.links[0].up)
    (down,) = (await viewer.get("/fleet"))["data"]
    assert down["state"] == "down"
    assert down["problem"]
    await desks.own().get("/fleet", 403)


async def test_tenants_do_not_read_on_which_machine_their_terms_were_set(stack: Stack, desks: Desks) -> None:
    contracts = Contracts(stack.database, PriceCatalog(stack.database))
    terms, period = parse_terms({"discounts": [{"basis_points": 500}]}), period_of(await stack.database.now())
    at = f"/tenants/{stack.tenant.name}/terms"
    for author, shown in (("root@gw-1", "operator"), ("Ann", "Ann")):
        with acting_as(Actor("command", "root@gw-1", author)):
            await contracts.put(stack.tenant.id, terms, period, author, "contract 7")
        for desk, name in ((desks.own(), shown), (desks.operator(), author)):
            assert (await desk.get(f"{at}?period={period}"))["author"] == name
            assert (await desk.get(f"{at}/history"))["data"][0]["author"] == name
