"""GET /v1/prices: the exact prices of the asking tenant at any instant."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from billing.prices import in_every_lane
from billing.prices.approval import PriceSheets
from billing.prices.grid import derived, parse_factor
from billing.prices.price_books import PriceBooks
from billing.prices.sheets import PriceProposal
from gateway.services import GatewayOptions
from tests.gateway.stack import Stack, quick_timeouts, running_stack

HOUR = 3_600_000_000
MESSAGES: Any = [{"role": "user", "content": "hi"}]


def cells(answer: Any) -> dict[tuple[str, str, int], tuple[str, int]]:
    (model,) = answer["data"]
    return {(p["meter"], p["lane"], p["context_from"]): (p["price"], p["price_micro"]) for p in model["prices"]}


async def get(stack: Stack, query: str = "", key: str | None = "") -> Any:
    headers = {} if key is None else {"authorization": f"Bearer {key or stack.key}"}
    return await stack.http.get(f"/v1/prices{query}", headers=headers)


async def test_the_prices_that_apply_to_who_asks(stack: Stack) -> None:
    answer = (await get(stack)).json()
    (model,) = answer["data"]
    assert (answer["object"], model["object"], model["model"], model["currency"]) == (
        "list", "model.prices", "tiny", "USD",
    )  # fmt: skip
    assert model["per"] == 1_000_000
    found = cells(answer)
    assert {lane for _, lane, _ in found} == {"interactive", "standard", "batch"}
    assert found["output", "batch", 0] == ("1.60", 1_600_000)
    # a scheduled change, and a tenant's own book
    sheets, now = PriceSheets(stack.database), await stack.database.now()
    rows = derived(
        in_every_lane({"uncached": 500_000, "read_automatic": 50_000, "output": 2_000_000}),
        {"batch": parse_factor("0.5x", "batch"), "1000": parse_factor("2x", "1000")},
    )
    await sheets.put(PriceProposal(model="tiny", rows=rows, effective_at=now + HOUR), by="ann")
    await PriceBooks(stack.database).create_for(stack.tenant.id, "demo")
    special = {("output", "*", 0): 1_500_000}
    await sheets.put(PriceProposal(model="tiny", rows=special, book="demo", kind="overrides"), by="ann")
    stack.gateway.services.prices.forget()
    assert cells((await get(stack)).json())["output", "standard", 0] == ("1.50", 1_500_000)
    later = cells((await get(stack, f"?at={(now + 2 * HOUR) // 1_000_000}")).json())
    assert later["output", "standard", 0] == ("1.50", 1_500_000)
    assert later["output", "interactive", 1000] == ("4.00", 4_000_000)
    assert later["output", "batch", 1000] == ("2.00", 2_000_000)
    other = await stack.tenancy.create_tenant("other")
    other_key = (await stack.tenancy.create_key(other.id, None)).key
    assert cells((await get(stack, key=other_key)).json())["output", "standard", 0] == ("1.60", 1_600_000)
    assert (await get(stack, "?at=2020-01-01T00:00:00Z")).json() == {
        "object": "list", "at": "2020-01-01T00:00:00Z", "data": [],
    }  # fmt: skip
    # the same version prices the tenant's requests
    stack.say("one two three")
    assert (await stack.post({"model": "tiny", "messages": MESSAGES})).status_code == 200
    (event,) = await stack.settled(1)
    (model,) = (await get(stack)).json()["data"]
    assert event.price_version == model["version"]
    assert event.cost_pico == event.uncached * 400_000 + event.output * 1_500_000


async def test_a_bad_instant_names_the_parameter(stack: Stack) -> None:
    for text in ("x", "", "2026-13-01", "-5", "1e9"):
        answer = await get(stack, f"?at={text}")
        assert answer.status_code == 400
        assert (answer.json()["error"]["param"], answer.json()["error"]["code"]) == ("at", "invalid_value")


async def test_prices_need_a_key(stack: Stack) -> None:
    assert (await get(stack, key=None)).status_code == 401


async def test_prices_can_be_public(stocked_sqlite_url: str, tmp_path: Path, model_folder: Path) -> None:
    options = GatewayOptions(timeouts=quick_timeouts(), drain_timeout=1.0, public_prices=True)
    async with running_stack(
        stocked_sqlite_url, tmp_path, model_folder, options=options, start_replica=False
    ) as public:
        assert cells((await get(public, key=None)).json())["output", "standard", 0] == ("1.60", 1_600_000)
        assert (await get(public)).status_code == 200
        assert (await get(public, key="tp_live_wrong")).status_code == 401
