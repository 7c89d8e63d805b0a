"""What the cache did by /admin/v1: tokens and shares add up, amounts are the bill's, and nobody sees others'."""

from __future__ import annotations

import asyncio
import time
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from billing.calendar import period_of
from billing.money import format_pico
from gateway.admin.figures.cache_advice import shares
from tests.gateway.admin.desk import Desks
from tests.gateway.stack import Stack

C = "/tenants/demo/cache"
RULES = "Answer as the handbook of the house says, and never otherwise. " * 3


def _asking(question: str, system: str = RULES) -> dict[str, Any]:
    messages = [{"role": "system", "content": system}, {"role": "user", "content": question}]
    return {"model": "tiny", "messages": messages}


async def _written(stack: Stack, count: int) -> None:
    end = time.monotonic() + 60
    while len(await stack.rows("SELECT 1 FROM cache_request")) < count:
        assert time.monotonic() < end
        await asyncio.sleep(0.05)


@given(st.lists(st.integers(0, 10**12), max_size=30))
def test_shares_add_up_to_a_hundred(parts: list[int]) -> None:
    found = shares(parts)
    assert len(found) == len(parts)
    assert sum(map(Decimal, found)) == (100 if sum(parts) else 0)
    for part, share in zip(parts, found, strict=True):
        assert abs(Decimal(share) - Decimal(100 * part) / max(1, sum(parts))) <= Decimal("0.01")


@pytest.mark.slow
async def test_every_token_of_prompts_was_read_or_missed_for_one_cause(stack: Stack, desks: Desks) -> None:
    second = await stack.tenancy.create_project(stack.tenant.id, "second")
    other = await stack.tenancy.create_key(stack.tenant.id, second.id)
    for question in ("Why?", "How?", "Who?"):
        assert (await stack.post(_asking(question))).status_code == 200
    assert (await stack.post(_asking("Why?", f"It is 12:34. {RULES}"))).status_code == 200
    short = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}]}
    assert (await stack.post(short, other.key)).status_code == 200
    events = await stack.settled(5)
    await _written(stack, 4)
    prompt = sum(event.uncached + event.read_automatic for event in events)
    read = sum(event.read_automatic for event in events)
    viewer = desks.own("viewer")
    misses = await viewer.get(f"{C}/misses")
    assert misses["prompt_tokens"] == prompt == sum(one["tokens"] for one in misses["data"])
    assert sum(Decimal(one["share"]) for one in misses["data"]) == 100
    fates = {one["cause"]: one["tokens"] for one in misses["data"]}
    assert fates["read"] == read
    assert fates["not_diagnosed"] == events[-1].uncached
    assert fates["cold"] > 0
    assert fates["diverged"] > 0
    days = await stack.http.get("/v1/usage/cache", headers={"authorization": f"Bearer {stack.admin_key}"})
    missed = sum(Decimal(day["missed_cost"]) for day in days.json()["data"])
    assert sum(Decimal(one["cost"].get("USD", "0")) for one in misses["data"]) == missed

    summary = await viewer.get(f"{C}/summary?period={period_of(events[0].admitted_at)}")
    assert (summary["prompt_tokens"], summary["read_tokens"], summary["marked"]) == (prompt, read, False)
    assert summary["hit_rate"] == round(read / prompt, 6)
    ceiling = summary["hit_ceiling"]
    assert ceiling["diagnosed_tokens"] == prompt - fates["not_diagnosed"]
    assert ceiling["rate"] == round(ceiling["reachable_tokens"] / ceiling["diagnosed_tokens"], 6)
    if read:
        assert summary["saved"] == {"USD": format_pico(read * (400_000 - 40_000))}
        assert [one["name"] for one in summary["classes"]] == ["automatic"]
    assert Decimal(summary["missed_cost"].get("USD", "0")) == missed
    (advice,) = [one for one in summary["advice"] if one["code"] == "stable_prefix"]
    assert (advice["basis"], advice["tokens"]) == ("at_most", fates["diverged"])

    member = desks.role("developer", stack.tenant.id, second.id)
    mine = await member.get(f"{C}/misses")
    assert {one["cause"]: one["tokens"] for one in mine["data"]} == {"read": 0, "not_diagnosed": events[-1].uncached}
    assert (await member.get(f"{C}/summary"))["hit_ceiling"] is None
    await member.get(f"{C}/summary?project=default", 400)
    stranger = desks.role("owner", (await stack.tenancy.create_tenant("stranger")).id)
    for path in ("summary", "misses", "prefixes", "leases", "wasted"):
        await stranger.get(f"{C}/{path}", 404)
    for wrong in ("summary?lane=batch", "misses?key=x", "misses?since=soon", "prefixes?limit=0", "leases?within=90000",
                  "leases?after=x", "wasted?colour=red"):  # fmt: skip
        await viewer.get(f"{C}/{wrong}", 400)
