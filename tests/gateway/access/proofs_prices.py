"""Proofs of /admin/v1/prices."""

from __future__ import annotations

import time

from billing.usage import LEASE_CLASSES
from tests.gateway.access.proofs import Call, proof
from tests.gateway.access.world import Place, World, bearer
from tests.gateway.admin.test_prices import GRID

_WRITES = [{"meter": f"write_{lease}", "price": "0.60"} for lease in LEASE_CLASSES]
_GRID = [*GRID, *_WRITES, *({**row, "lane": "batch", "price": "0.30"} for row in _WRITES)]


async def _sheet(world: World, place: Place) -> int:
    """A proposal of Ann's, who cannot activate it herself."""
    answer = await world.call(
        "POST",
        "/admin/v1/prices/sheets",
        bearer(place.keys["operator_key"]),
        body={"model": "tiny", "prices": _GRID, "reason": f"contract {time.monotonic_ns()}"},
    )
    assert answer.status_code == 201, answer.text
    return int(answer.json()["id"])


@proof("admin_list_prices")
async def _(world: World, place: Place) -> Call:
    return Call()


@proof("admin_list_price_sheets")
async def _(world: World, place: Place) -> Call:
    await _sheet(world, place)
    return Call()


@proof("admin_propose_price_sheet")
async def _(world: World, place: Place) -> Call:
    return Call(body={"model": "tiny", "prices": _GRID, "reason": "contract 7", "dry_run": True})


@proof("admin_retrieve_price_sheet", "admin_withdraw_price_sheet")
async def _(world: World, place: Place) -> Call:
    return Call({"number": await _sheet(world, place)}, shared=frozenset({"number"}))


@proof("admin_price_sheet_impact")
async def _(world: World, place: Place) -> Call:
    return Call({"number": await _sheet(world, place)}, query={"period": "2026-10"}, shared=frozenset({"number"}))


@proof("admin_activate_price_sheet", quiet="nobody activates what he proposed")
async def _(world: World, place: Place) -> Call:
    answer = await world.call(
        "POST",
        "/admin/v1/prices/sheets",
        bearer("as:an operator key:owner"),
        body={"model": "tiny", "prices": _GRID, "reason": f"contract {time.monotonic_ns()}"},
    )
    assert answer.status_code == 201, answer.text
    return Call({"number": answer.json()["id"]}, shared=frozenset({"number"}))
