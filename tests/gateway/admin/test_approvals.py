"""/admin/v1/approvals: a change that takes two waits with 202, and another operator approves it."""

from __future__ import annotations

import pytest
from sqlalchemy import update

from audit_log.actors import Actor, acting_as
from billing.accounts.balances import Balances
from billing.pending_changes import ChangePending
from billing.platform_settings import APPROVALS, PlatformSettings
from billing.tables.books import pending_change
from tenancy.users.identifiers import user_public_id
from tests.gateway.admin.test_keys import Holder
from tests.gateway.admin.test_members import signed_in
from tests.gateway.browser import make_user
from tests.gateway.stack import Stack

pytestmark = pytest.mark.slow

PATH = "/admin/v1/approvals"


async def _grant_by(stack: Stack, name: str, reason: str = "goodwill") -> str:
    """Propose a grant as an operator; the change's id."""
    try:
        with acting_as(Actor("operator_key", name, name)):
            await Balances(stack.database).grant(stack.tenant.id, 10**12, "USD", kind="promo", reason=reason)
    except ChangePending as pending:
        return pending.change.id
    raise AssertionError("it was made at once")


async def test_another_operator_decides(stack: Stack) -> None:
    keys = [(await stack.tenancy.create_operator_key(name, role=role)).key  # type: ignore[arg-type]
            for name, role in (("Ann", "owner"), ("bob", "finance"), ("cy", "admin"), ("vera", "viewer"))]  # fmt: skip
    ann, bob, cy, vera = [Holder(stack, key) for key in keys]
    await PlatformSettings(stack.database).set(APPROVALS, "on", by="Ann and bob", via="test")
    first, second = await _grant_by(stack, "Ann"), await _grant_by(stack, "Ann", "more")
    listed = (await bob.ask("GET", f"{PATH}?state=pending"))["data"]
    assert [change["id"] for change in listed] == [second, first]
    assert listed[0]["arguments"]["amount_pico"] == 10**12
    assert (listed[0]["details"]["amount"], listed[0]["details"]["kind"]) == ("1.000000000000", "promo")
    page = await bob.ask("GET", f"{PATH}?state=pending&limit=1")
    assert ([change["id"] for change in page["data"]], page["has_more"]) == ([second], True)
    assert (await bob.ask("GET", f"{PATH}/{first}"))["author"] == "Ann"

    assert (listed[0]["own"], listed[0]["approver_roles"]) == (False, ["owner", "finance"])
    assert (await ann.ask("GET", f"{PATH}/{first}"))["own"] is True
    assert (await ann.error("POST", f"{PATH}/{first}/approve"))[0] == "four_eyes_required"
    assert (await cy.error("POST", f"{PATH}/{first}/approve"))[0] == "not_allowed"  # admins do not decide
    assert (await vera.error("GET", PATH))[0] == "not_allowed"
    tenant = Holder(stack, stack.admin_key)
    for method, path in (("GET", PATH), ("GET", f"{PATH}/{first}"), ("POST", f"{PATH}/{first}/approve")):
        assert (await tenant.error(method, path))[0] == "not_allowed"

    assert (await bob.ask("POST", f"{PATH}/{first}/approve", {"dry_run": True}))["state"] == "approved"
    done = await bob.ask("POST", f"{PATH}/{first}/approve", {"reason": "as agreed"})
    assert (done["state"], done["decider"], done["result"][:6]) == ("approved", "bob", "grant ")
    assert (await bob.error("POST", f"{PATH}/{first}/approve", status=409))[0] == "wrong_state"
    gone = await ann.ask("POST", f"{PATH}/{second}/withdraw", {"reason": "a slip"})
    assert gone["state"] == "withdrawn"
    assert (await bob.error("POST", f"{PATH}/change_0/approve", status=404))[0] == "not_found"
    grants = await Balances(stack.database).grants(stack.tenant.id)
    assert [grant.kind for grant in grants].count("promo") == 1


async def test_every_way_to_such_a_change_over_http_waits(stack: Stack) -> None:
    await PlatformSettings(stack.database).set(APPROVALS, "on", by="Ann and bob", via="test")
    ann, bob = [Holder(stack, (await stack.tenancy.create_operator_key(name)).key) for name in ("Ann", "bob")]
    tenant = "/admin/v1/tenants/demo"
    for method, path, body, kind in (
        ("POST", f"{tenant}/grants", {"amount": "5.00"}, "grant.create"),
        ("POST", f"{tenant}/payments", {"amount": "5.00"}, "grant.create"),
        ("POST", f"{tenant}/terms", {"terms": {"discounts": [{"basis_points": 500}]}}, "terms.set"),
        ("PUT", f"{tenant}/credit-line", {"amount": "900000.00"}, "credit_line.set"),
        ("PUT", "/admin/v1/platform/settings/grant_approval_over", {"value": "10.00"}, "platform_setting.set"),
        ("PUT", "/admin/v1/platform/settings/approvals", {"value": "off"}, "platform_setting.set"),
    ):
        waits = await ann.ask(method, path, body, 202)
        assert (waits["object"], waits["kind"], waits["state"], waits["author"]) == ("change", kind, "pending", "Ann")
        assert (await bob.ask("POST", f"{PATH}/{waits['id']}/approve"))["state"] == "approved"
    settings = (await ann.ask("GET", "/admin/v1/platform/settings"))["data"]
    assert {one["name"]: one["value"] for one in settings} == {"approvals": "off", "grant_approval_over": "10.00"}
    await ann.ask("POST", f"{tenant}/grants", {"amount": "500.00"}, 201)


async def test_a_narrowed_key_decides_nothing_and_sudden_changes_count_at_once(stack: Stack) -> None:
    await PlatformSettings(stack.database).set(APPROVALS, "on", by="Ann and bob", via="test")
    change = await _grant_by(stack, "Ann")
    eve = await stack.tenancy.create_operator_key("eve")
    holder = Holder(stack, eve.key)
    assert (await holder.ask("GET", f"{PATH}/{change}"))["state"] == "pending"
    from tenancy.repositories import KeyChange
    from tenancy.rights.key_limits import key_limits

    limits = key_limits(scopes=["approvals", "platform.read"])
    await stack.tenancy.change_key(eve.public_id, KeyChange(limits=limits))
    await stack.until(lambda: eve.public_id not in stack.gateway.services.authenticator.keys.cached())
    assert (await holder.error("POST", f"{PATH}/{change}/approve"))[0] == "not_allowed"  # it lacks balance.write
    await stack.tenancy.change_key(eve.public_id, KeyChange(role="viewer"))
    await stack.until(lambda: eve.public_id not in stack.gateway.services.authenticator.keys.cached())
    assert (await holder.error("GET", f"{PATH}/{change}"))[0] == "not_allowed"


async def test_nobody_becomes_two_people_alone(stack: Stack) -> None:
    async with await signed_in(stack, "ann@x.com", "owner") as ann, await signed_in(stack, "bob@x.com", "owner") as bob:
        ids = [(await each.get("/users/me"))["id"] for each in (ann, bob)]
        made = await ann.post("/operator-keys", {"name": "ann", "user": "ann@x.com"}, 201)
        for name in ("carl", "dora"):
            await stack.tenancy.create_operator_key(name)
        viewer = await make_user(stack.users, "viewer@x.com", ("viewer", stack.tenant.id, None))
        await ann.call("PUT", "/platform/settings/approvals", {"value": "on"})
        grant = await ann.post("/tenants/demo/grants", {"amount": "1000.00", "reason": "mine"}, 202)
        again = await ann.post("/tenants/demo/grants", {"amount": "1000.00", "reason": "mine"}, 202)
        assert again["id"] == grant["id"]
        approve = f"/approvals/{grant['id']}/approve"
        assert (await ann.post(approve, {}, 403))["error"]["code"] == "four_eyes_required"
        own_key = Holder(stack, made["key"])
        assert (await own_key.error("POST", f"/admin/v1{approve}"))[0] == "four_eyes_required"
        for method, path, body in (
            ("PATCH", "/users/me", {"email": "other@x.com"}),
            ("POST", "/invitations", {"email": "second@x.com", "role": "owner"}),
            ("PUT", f"/members/{user_public_id(viewer.id)}", {"role": "finance"}),
            ("POST", f"/users/{ids[1]}/links", {"kind": "sign_in"}),
            ("POST", f"/users/{ids[1]}/links", {"kind": "password_reset"}),
            ("POST", f"/users/{ids[1]}/enable", {}),
            ("POST", "/operator-keys", {"name": "ann@x.com"}),
            ("POST", "/operator-keys", {"name": "bobs", "user": "bob@x.com"}),
        ):
            refused = await ann.call(method, path, body, status=403)
            assert refused["error"]["code"] == "second_operator_required", path
        await ann.call("PATCH", "/users/me", {"name": "Ann"})
        await ann.post(f"/users/{user_public_id(viewer.id)}/links", {}, 201)
        await ann.post("/tenants/demo/invitations", {"email": "new@x.com", "role": "owner"}, 201)
        assert (await ann.get("/approvals?state=pending"))["data"][0]["id"] == grant["id"]
        assert (await bob.post(approve, {}))["state"] == "approved"


async def test_details_are_for_people(stack: Stack) -> None:
    await PlatformSettings(stack.database).set(APPROVALS, "on", by="Ann and bob", via="test")
    key = (await stack.tenancy.create_operator_key("bob", role="finance")).key
    with acting_as(Actor("operator_key", "Ann", "Ann")), pytest.raises(ChangePending):
        await Balances(stack.database).set_credit_line(stack.tenant.id, 2_500_000_000_000, "USD")
    with acting_as(Actor("operator_key", "Ann", "Ann")), pytest.raises(ChangePending):
        await Balances(stack.database).grant(
            stack.tenant.id, 10**12, "USD", kind="promo", reason="a gift", expires_at=4_102_444_800_000_000
        )
    grant, line = (await Holder(stack, key).ask("GET", f"{PATH}?state=pending"))["data"]
    assert (line["details"]["amount"], line["details"]["currency"]) == ("2.500000000000", "USD")
    assert grant["details"]["expires_at"].startswith("2100-01-01T00:00:00"), "an instant, as everywhere in the API"


async def test_a_kind_of_change_that_we_do_not_know_is_listed_and_not_made(stack: Stack) -> None:
    """A newer gateway keeps it."""
    await PlatformSettings(stack.database).set(APPROVALS, "on", by="Ann and bob", via="test")
    bob = Holder(stack, (await stack.tenancy.create_operator_key("bob")).key)
    change = await _grant_by(stack, "Ann")
    async with stack.database.transaction() as session:
        await session.execute(update(pending_change).values(kind="payee.set"))
    (listed,) = (await bob.ask("GET", f"{PATH}?state=pending"))["data"]
    assert (listed["kind"], listed["approver_roles"]) == ("payee.set", ["owner", "finance"])
    assert (await bob.error("POST", f"{PATH}/{change}/approve", status=403))[0] == "not_allowed"
    assert (await bob.ask("POST", f"{PATH}/{change}/withdraw"))["state"] == "withdrawn"
