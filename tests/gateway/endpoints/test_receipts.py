"""Receipts of answers in every dialect, their keys, and the files of days; only for the tenant whose they are."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from sqlalchemy import literal

from billing.calendar import period_of
from billing.periods.periods import Periods
from billing.receipts import verifier
from billing.receipts.answer_receipts import tokens_digest
from billing.receipts.day_files import DAY, close_days
from billing.spool.gateway_epochs import EpochKeeper
from storage.database.base import Count
from storage.database.database import DatabaseUnavailable
from tests.gateway.stack import Stack

ASKED = {"x-turnpike-receipt": "true"}
CHAT = {"model": "tiny", "messages": [{"role": "user", "content": "Where is Paris?"}], "max_tokens": 20}
MESSAGE = CHAT
COMPLETION = {"model": "tiny", "prompt": "Once", "max_tokens": 20}
RESPONSE = {"model": "tiny", "input": "Where is Paris?", "max_output_tokens": 20}
DIALECTS = (
    ("/v1/chat/completions", CHAT),
    ("/v1/completions", COMPLETION),
    ("/v1/messages", MESSAGE),
    ("/v1/responses", RESPONSE),
)


async def asked(stack: Stack, path: str, body: dict[str, Any], **headers: str) -> Any:
    """The whole answer."""
    all_headers = {"x-api-key": stack.key, "anthropic-version": "2023-06-01", **ASKED, **headers}
    answer = await stack.http.post(path, json=body, headers=all_headers)
    assert answer.status_code == 200, answer.text
    return answer.json()


async def keys_of(stack: Stack) -> bytes:
    """The keys as anybody gets them."""
    answer = await stack.http.get("/.well-known/turnpike-receipt-keys.json")
    assert answer.status_code == 200
    return answer.content


def as_lines(receipts: list[Any]) -> list[bytes]:
    """Receipts as a file."""
    return [json.dumps(receipt).encode() for receipt in receipts]


async def days_file(stack: Stack, limit: int = 1000) -> tuple[str, list[bytes]]:
    """The day of the only event so far, closed, and the lines of all pages of its file."""
    (event, *_) = await stack.events()
    stack.database.clock = literal(event.admitted_at + 2 * DAY, Count())
    if period_of(event.admitted_at + DAY) != event.period:  # the last day of a period closes with it
        await EpochKeeper(stack.database, stack.spool, "gateway-test").publish()
        await Periods(stack.database).close(event.period)
    await close_days(stack.database, stack.tenant.id, event.period)
    admin = {"authorization": f"Bearer {stack.admin_key}"}
    heads = await stack.http.get(f"/v1/receipts?period={event.period}", headers=admin)
    day = next((head["day"] for head in heads.json()["data"] if head["events"]), "")
    lines: list[bytes] = []
    after = ""
    while True:
        page = await stack.http.get(f"/v1/receipts/{day}?limit={limit}{after}", headers=admin)
        assert page.status_code == 200, page.text
        lines += page.content.splitlines()
        if "x-turnpike-next" not in page.headers:
            return day, lines
        after = f"&after={page.headers['x-turnpike-next']}"


@pytest.mark.parametrize(("path", "body"), DIALECTS)
@pytest.mark.parametrize("streamed", [False, True])
async def test_every_dialect(stack: Stack, path: str, body: dict[str, Any], streamed: bool) -> None:
    stack.say("In France.")
    headers = {"x-api-key": stack.key, "anthropic-version": "2023-06-01", **ASKED}
    answer = await stack.http.post(path, json=body | {"stream": streamed}, headers=headers)
    assert answer.status_code == 200, answer.text
    texts = [line[6:] for line in answer.text.splitlines() if line.startswith("data: {")] if streamed else [answer.text]
    whole = [json.loads(text) for text in texts]
    found = [event.get("receipts") or event.get("response", {}).get("receipts") for event in whole]
    ((receipt,),) = [receipts for receipts in found if receipts]
    (event,) = await stack.settled(1)
    assert verifier.verify(None, [("mine", as_lines([receipt]))], await keys_of(stack)).findings == []
    assert int(receipt["event"]["cost_pico"]) == event.cost_pico
    assert receipt["answer"]["output"] == [tokens_digest(stack.tokens("In France."))]


async def test_no_receipt_unless_asked_for(stack: Stack) -> None:
    stack.say("In France.")
    path = "/v1/chat/completions"
    assert "receipts" not in await asked(stack, path, CHAT, **{"x-turnpike-receipt": "false"})
    assert "receipts" not in (await stack.post(CHAT)).json()
    await stack.gateway.receipt_policies.set(stack.tenant.id, stack.project.id, always=True)
    assert len((await stack.post(CHAT)).json()["receipts"]) == 1
    assert "receipts" not in await asked(stack, path, CHAT, **{"x-turnpike-receipt": "0"})
    refused = await stack.post(CHAT, headers={"x-turnpike-receipt": "perhaps"})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "X-Turnpike-Receipt")


async def test_receipts_that_wait_together_are_signed_together(stack: Stack) -> None:
    stack.say("In France.")
    stack.spool.gate.clear()
    running = [asyncio.create_task(asked(stack, "/v1/chat/completions", CHAT)) for _ in range(5)]
    await stack.until(lambda: stack.spool.entered == 5)
    stack.spool.gate.set()
    receipts = [receipt for answer in await asyncio.gather(*running) for receipt in answer["receipts"]]
    assert {receipt["signed"]["root"] for receipt in receipts} == {receipts[0]["signed"]["root"]}
    assert sorted(receipt["index"] for receipt in receipts) == [0, 1, 2, 3, 4]
    assert {receipt["signed"]["size"] for receipt in receipts} == {5}
    await stack.settled(5)
    _, lines = await days_file(stack, limit=2)
    mine = ("mine", as_lines(receipts))
    assert verifier.verify(None, [("file", lines), mine], await keys_of(stack)).findings == []
    other = json.loads(mine[1][0])
    other["event"]["cost_pico"] = "1"
    findings = verifier.verify(None, [("file", lines), ("mine", as_lines([other]))], await keys_of(stack)).findings
    assert any("was altered" in finding and other["event"]["id"] in finding for finding in findings)


async def test_a_prompt_list_has_a_receipt_for_each_prompt(stack: Stack) -> None:
    stack.say("In France.")
    answer = await asked(stack, "/v1/completions", COMPLETION | {"prompt": ["a", "b"]})
    assert len({receipt["event"]["id"] for receipt in answer["receipts"]}) == 2


async def test_files_are_for_the_tenant_alone(stack: Stack) -> None:
    stack.say("In France.")
    await asked(stack, "/v1/chat/completions", CHAT)
    await stack.settled(1)
    day, lines = await days_file(stack)
    assert len(lines) == 3
    stranger = await stack.tenancy.create_tenant("stranger")
    strange = {"x-api-key": (await stack.tenancy.create_key(stranger.id, None)).key}
    assert (await stack.http.get(f"/v1/receipts?period={day[:7]}", headers=strange)).json()["data"] == []
    assert (await stack.http.get(f"/v1/receipts/{day}", headers=strange)).status_code == 404
    assert (await stack.http.get(f"/v1/receipts/{day}", headers={"x-api-key": stack.key})).status_code == 403
    admin = {"authorization": f"Bearer {stack.admin_key}"}
    for path, status in (
        ("/v1/receipts", 400),
        ("/v1/receipts?period=2026-13", 400),
        ("/v1/receipts/2026-11-31", 404),
        ("/v1/receipts/0001-01-01", 404),
        ("/v1/receipts/today", 404),
        (f"/v1/receipts/{day}?limit=0", 400),
        (f"/v1/receipts/{day}?after=1.2", 400),
        (f"/v1/receipts/{day}?after=1.2.{'f' * 32}&more=1", 400),
    ):
        assert (await stack.http.get(path, headers=admin)).status_code == status, path


async def test_a_database_that_is_away_refuses_nobody_for_the_policy(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    stack.say("In France.")
    await stack.gateway.receipt_policies.set(stack.tenant.id, stack.project.id, always=True)
    assert "receipts" in (await stack.post(CHAT)).json()

    async def away(*_: object, **__: object) -> bool:
        raise DatabaseUnavailable("it is away")

    monkeypatch.setattr(stack.gateway.receipt_policies, "always", away)
    answer = await stack.post(CHAT)
    assert answer.status_code == 200
    assert "receipts" in answer.json()
