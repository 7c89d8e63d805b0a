"""Instants and months at the ends of time: every parameter that is one is answered, or refused by its name."""

from __future__ import annotations

from typing import Any

import pytest

from tests.gateway.admin.desk import Desk, Desks
from tests.gateway.stack import Stack

INSTANTS = (
    "0001-01-01T00:00:00Z",
    "0001-01-01T00:00:00%2B14:00",
    "0001-01-01T00:00:00-14:00",
    "1969-12-31T23:59:59Z",
    "1970-01-01T00:00:00Z",
    "9998-12-31T23:59:59.999999Z",
    "9999-12-31T23:59:59.999999Z",
    "9999-12-31T23:59:59-14:00",
    "0",
    "1099511627775",
)
VALUES = {
    **dict.fromkeys(("since", "until", "at", "from", "to", "starting_at", "ending_at"), INSTANTS),
    **dict.fromkeys(("start_time", "end_time"), ("0", "253370764799", "253370764800", "253402300800", "1099511627775")),
    "period": ("0000-01", "0001-01", "1969-12", "1970-01", "9998-12", "9999-11", "9999-12"),
    "day": ("0001-01-01", "9999-12-31"),
}


def example(parameter: dict[str, Any]) -> str:
    return str(parameter.get("example", parameter["schema"].get("example", "1")))


@pytest.mark.slow
async def test_no_instant_and_no_month_fails(stack: Stack, desks: Desks) -> None:
    document = (await stack.http.get("/openapi.json")).json()
    people = {"/admin/": desks.operator(), "/v1/": Desk(stack, stack.admin_key)}
    answered, failed, seen = 0, [], set[str]()
    for path, operations in document["paths"].items():
        desk = next((desk for start, desk in people.items() if path.startswith(start)), None)
        parameters = operations.get("get", {}).get("parameters", [])
        timely = [one["name"] for one in parameters if one["in"] == "query" and one["name"] in VALUES]
        if desk is None or not timely:
            continue
        at = path.replace("{tenant}", "demo")
        others = {
            one["name"]: example(one)
            for one in parameters
            if one["in"] == "query" and one.get("required") and one["name"] not in timely
        }
        for name in timely:
            seen.add(name)
            required = {one["name"] for one in parameters if one.get("required")} - {name}
            for value in VALUES[name]:
                query = {**others, **{each: VALUES[each][-5] for each in timely if each in required}, name: value}
                url = f"{at}?" + "&".join(f"{key}={text}" for key, text in query.items())
                answer = await stack.http.get(url, headers=desk._headers)
                answered += answer.status_code == 200
                if answer.status_code >= 500:
                    failed.append((url, answer.status_code))
    assert not failed
    assert {"since", "until", "at", "period", "start_time"} <= seen
    assert answered > 20


@pytest.mark.parametrize("period", ["9999-12", "1969-12", "0000-01"])
async def test_an_export_of_no_month_is_not_queued(period: str, stack: Stack) -> None:
    body = {"dataset": "usage", "period": period, "format": "csv"}
    answer = await stack.http.post("/v1/exports", json=body, headers={"authorization": f"Bearer {stack.admin_key}"})
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "period"
