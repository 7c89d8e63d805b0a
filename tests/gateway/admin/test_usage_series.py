"""Series of usage by /admin/v1: what is on screen is what `turnpike usage` says, and what its CSV file has."""

from __future__ import annotations

import csv
import io
from decimal import Decimal
from typing import Any

import pytest

from billing.calendar import format_instant, period_of
from billing.money import format_pico
from billing.reports.usage_report import usage_by_project_and_model
from tests.billing.recorded import HOUR
from tests.gateway.admin.desk import Desk, Desks
from tests.gateway.stack import Stack

pytestmark = pytest.mark.slow

S = "/tenants/demo/usage/series"


async def _asked(stack: Stack, *keys: str) -> list[Any]:
    before = len(await stack.events())
    for number, key in enumerate(keys):
        stack.say(f"answer {number}")
        body = {"model": "tiny", "messages": [{"role": "user", "content": f"hello {number} " * (number + 1)}]}
        assert (await stack.post(body, key)).status_code == 200
    return await stack.settled(before + len(keys))


async def _csv(desk: Desk, path: str) -> list[dict[str, str]]:
    answer = await desk.call("GET", path)
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"].startswith("text/csv")
    return list(csv.DictReader(io.StringIO(answer.text, newline="")))


def _usd(costs: list[dict[str, str]]) -> Decimal:
    return sum((Decimal(cost.get("USD", "0")) for cost in costs), Decimal(0))


async def test_what_is_on_screen_is_in_the_file_and_in_turnpike_usage(stack: Stack, desks: Desks) -> None:
    second = await stack.tenancy.create_project(stack.tenant.id, "=second")
    other = await stack.tenancy.create_key(stack.tenant.id, second.id)
    events = await _asked(stack, stack.key, other.key, stack.key)
    total = Decimal(format_pico(sum(event.cost_pico for event in events)))
    month, owner = period_of(events[0].admitted_at), desks.own()
    lines = await usage_by_project_and_model(stack.database, month, stack.tenant.id)
    for groups in ("", "&group_by=project", "&group_by=key&group_by=model&top=1", "&group_by=lane"):
        path = f"{S}?period={month}&bucket=hour{groups}"
        shown = await owner.get(path)
        costs = [cell["cost"] for line in shown["lines"] for cell in line["cells"]]
        assert _usd(costs) == _usd([shown["total"]["cost"]]) == total == sum(Decimal(line.cost) for line in lines)
        assert shown["total"]["requests"] == 3 == sum(line.requests for line in lines)
        rows = await _csv(owner, f"{path}&format=csv&digest={shown['digest']}")
        assert sum(Decimal(row["cost"]) for row in rows) == total
        assert sum(int(row["requests"]) for row in rows) == 3
        assert [row["start"] for row in rows] == [
            shown["starts"][cell["bucket"]] for line in shown["lines"] for cell in line["cells"]
        ]
    by_project = await owner.get(f"{S}?group_by=project")
    assert {line["project"]: line["total"]["requests"] for line in by_project["lines"]} == {"default": 2, "=second": 1}
    assert {row["project"] for row in await _csv(owner, f"{S}?group_by=project&format=csv")} == {"default", "'=second"}
    rest = (await owner.get(f"{S}?group_by=key&top=1"))["lines"]
    assert [(line["rest"], line.get("key"), line.get("key_name"), line["total"]["requests"]) for line in rest] == [
        (False, stack.public_id, stack.public_id, 2),  # a key without a name is called by its id
        (True, None, None, 1),
    ]

    # what comes later is in no file of what was shown
    shown = await owner.get(S)
    await _asked(stack, stack.key)
    refused = await owner.get(f"{S}?format=csv&digest={shown['digest']}", 409)
    assert refused["error"]["code"] == "usage_changed"


async def test_it_says_until_when_it_is_complete_and_which_bucket_it_took(stack: Stack, desks: Desks) -> None:
    (event,) = await _asked(stack, stack.key)
    owner = desks.own()
    shown = await owner.get(
        f"{S}?since={format_instant(event.admitted_at - 400 * 24 * HOUR)}&bucket=hour&group_by=lane"
    )
    assert (shown["asked"], shown["bucket"]) == ("hour", "day")
    assert "10,000 points" in shown["note"]
    shown = await owner.get(f"{S}?since={format_instant(event.admitted_at - 5 * HOUR)}&bucket=hour")
    assert (shown["bucket"], shown["note"], len(shown["starts"])) == ("hour", "", 6)
    assert shown["complete"] == 5  # the hour that runs is not over
    assert shown["complete_until"] == shown["as_of"]


async def test_nobody_sees_what_others_used(stack: Stack, desks: Desks) -> None:
    second = await stack.tenancy.create_project(stack.tenant.id, "second")
    other = await stack.tenancy.create_key(stack.tenant.id, second.id)
    foreign = await stack.tenancy.create_tenant("foreign")
    await _asked(stack, stack.key, other.key)
    member = desks.role("developer", stack.tenant.id, second.id)
    shown = await member.get(f"{S}?group_by=project")
    assert [line["project"] for line in shown["lines"]] == ["second"]
    await member.get(f"{S}?project=default", 400)
    assert (await member.get("/usage/series"))["total"]["requests"] == 0  # the tenant is not whole
    await desks.role("owner", foreign.id).get(S, 404)
    assert (await desks.role("owner", foreign.id).get("/usage/series"))["total"]["requests"] == 0
    await desks.role("owner", foreign.id).get("/usage/series?tenant=demo", 400)
    operator = desks.operator("viewer")
    over = await operator.get("/usage/series?group_by=project&compare=previous")
    assert sorted((line["tenant"], line["project"]) for line in over["lines"]) == [
        ("demo", "default"),
        ("demo", "second"),
    ]
    assert over["previous"]["total"] == {"requests": 0, "tokens": {}, "cost": {}}
    assert all(line["previous"]["requests"] == 0 for line in over["lines"])
    assert (await operator.get("/usage/series?tenant=demo&lane=batch"))["total"]["requests"] == 0
    for wrong in ("top=0", "top=51", "bucket=week", "measure=love", "group_by=tag", "period=2026-13", "colour=red",
                  "period=2026-11&since=2026-11-01T00:00:00Z", "since=2026-11-02T00:00:00Z&until=2026-11-01T00:00:00Z",
                  "since=1970-01-01T00:00:00Z", "&".join(["model=x"] * 51)):  # fmt: skip
        await desks.own().get(f"{S}?{wrong}", 400)
