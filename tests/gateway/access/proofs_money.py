"""Proofs of a tenant's money below /admin/v1."""

from __future__ import annotations

import time

from audit_log.actors import Actor, acting_as
from billing.money import format_pico
from billing.pending_changes import ChangePending
from billing.platform_settings import APPROVALS, PlatformSettings
from tests.gateway.access.proofs import Call, proof
from tests.gateway.access.proofs_admin import fresh, made
from tests.gateway.access.world import Place, World


@proof("admin_retrieve_grant")
async def _(world: World, place: Place) -> Call:
    grant = await made(world, place, f"/tenants/{place.tenant_name}/grants", {"amount": "1.00"}, "operator_key")
    return Call({"tenant": place.tenant_name, "grant": grant["id"]}, tells=(grant["id"],))


@proof("admin_list_money")
async def _(world: World, place: Place) -> Call:
    grant = await made(world, place, f"/tenants/{place.tenant_name}/grants", {"amount": "1.00"}, "operator_key")
    return Call({"tenant": place.tenant_name}, query={"limit": 100}, tells=(grant["id"],))


@proof("admin_record_refund")
async def _(world: World, place: Place) -> Call:
    balance = await world.stack.balances.get(place.tenant_id)
    owed = 0 if balance is None else max(0, balance.debit - balance.credit)
    amount = format_pico(owed + 5 * 10**12)
    await made(world, place, f"/tenants/{place.tenant_name}/payments", {"amount": amount}, "operator_key")
    return Call({"tenant": place.tenant_name}, body={"amount": "1.00"})


@proof("admin_remove_budget")
async def _(world: World, place: Place) -> Call:
    body = {"limit": "1000.00", "tag": fresh("tag")}
    budget = await made(world, place, f"/tenants/{place.tenant_name}/budgets", body)
    return Call({"tenant": place.tenant_name, "budget": budget["id"]})


@proof("admin_set_budget")
async def _(world: World, place: Place) -> Call:
    return Call({"tenant": place.tenant_name}, body={"limit": "1000.00", "tag": fresh("tag")})


@proof("admin_list_budgets")
async def _(world: World, place: Place) -> Call:
    tag = f"tag-{time.monotonic_ns()}"
    await made(world, place, f"/tenants/{place.tenant_name}/budgets", {"limit": "1000.00", "tag": tag})
    return Call({"tenant": place.tenant_name}, query={"limit": 100}, tells=(tag,))


async def _change(world: World, place: Place) -> str:
    """The id of a change that waits for another operator than its author."""
    platform = PlatformSettings(world.stack.database)
    await platform.set(APPROVALS, "on", by="Ann and bob", via="test")
    try:
        with acting_as(Actor("operator_key", "bob", "bob")):
            await world.stack.balances.grant(place.tenant_id, 10**12, "USD", kind="promo", reason="goodwill")
    except ChangePending as pending:
        return pending.change.id
    finally:
        await platform.set(APPROVALS, "off", by="Ann and bob", via="test")
    raise AssertionError("it was made at once")


@proof("admin_retrieve_approval", "admin_approve_change", "admin_withdraw_change", by="operator_key")
async def _(world: World, place: Place) -> Call:
    return Call({"change": await _change(world, place)})


_SELLER = {
    "name": "Example Ltd",
    "reason": "a proof",
    "address": ["1 High Street"],
    "city": "Berlin",
    "postal_code": "10115",
    "country": "DE",
    "currency": "USD",
    "payment": ["IBAN DE02120300000000202051"],
}


@proof("admin_list_sellers", by="operator_key")
async def _(world: World, place: Place) -> Call:
    return Call()


@proof("admin_change_seller", by="operator_key")
async def _(world: World, place: Place) -> Call:
    return Call({"seller": "default"}, body=_SELLER, shared=frozenset({"seller"}))


@proof("admin_retrieve_buyer")
async def _(world: World, place: Place) -> Call:
    buyer = {name: _SELLER[name] for name in ("name", "address", "city", "postal_code", "country")}
    await made(world, place, "/sellers/default", _SELLER, "operator_key", "PATCH")
    await made(world, place, f"/tenants/{place.tenant_name}/buyer", buyer, "operator_key", "PATCH")
    return Call({"tenant": place.tenant_name})


@proof("admin_retrieve_seller", by="operator_key")
async def _(world: World, place: Place) -> Call:
    await made(world, place, "/sellers/default", _SELLER, "operator_key", "PATCH")
    return Call({"seller": "default"}, shared=frozenset({"seller"}))
