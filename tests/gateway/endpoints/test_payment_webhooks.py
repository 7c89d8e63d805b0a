"""The route for a payment provider's webhooks: bounded, signed, of our account and mode; noted once."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from sqlalchemy import func, select
from stripe import WebhookSignature

from billing.payments.stripe_api.credentials import StripeCredentials
from billing.payments.stripe_api.stripe_provider import StripeProvider
from billing.tables.payments import payment_inbox, payment_job
from tests.gateway.stack import Stack, running_stack

SECRETS = ["whsec_newest000", "whsec_oldest000"]
CREDENTIALS = StripeCredentials(
    account="acct_ours", key="rk_live_1234567890", webhook_secrets=SECRETS, return_url="https://console.example"
)


@pytest.fixture
async def paid_stack(stocked_sqlite_url: str, tmp_path: Path, model_folder: Path) -> AsyncIterator[Stack]:
    provider = StripeProvider(CREDENTIALS)
    async with running_stack(stocked_sqlite_url, tmp_path, model_folder, payments=provider) as running:
        yield running


def _event(**changes: object) -> str:
    event = {"id": "evt_1", "object": "event", "type": "payment_intent.succeeded", "created": 1, "livemode": True}
    return json.dumps({**event, "data": {"object": {"id": "pi_1"}}, **changes})


async def _send(stack: Stack, body: str, secret: str = SECRETS[0], at: int | None = None) -> int:
    signature = WebhookSignature.generate_signature_header(body, secret, at or int(time.time()))
    headers = {"stripe-signature": signature, "content-type": "application/json"}
    return (await stack.http.post("/webhooks/stripe", content=body.encode(), headers=headers)).status_code


async def _counts(stack: Stack) -> tuple[int, int]:
    async with stack.database.reading() as session:
        tables = (payment_inbox, payment_job)
        events, jobs = [await session.scalar(select(func.count()).select_from(table)) for table in tables]
    return events or 0, jobs or 0


async def test_an_event_is_noted_once_with_either_secret(paid_stack: Stack) -> None:
    assert [await _send(paid_stack, _event(), secret) for secret in (*SECRETS, SECRETS[0])] == [200, 200, 200]
    assert await _counts(paid_stack) == (1, 1)
    assert await _send(paid_stack, _event(id="evt_2", type="product.created")) == 200
    assert await _counts(paid_stack) == (1, 1), "nothing follows from it"


async def test_what_is_not_ours_is_refused(paid_stack: Stack) -> None:
    refused = {
        "a test event": await _send(paid_stack, _event(livemode=False)),
        "another account": await _send(paid_stack, _event(account="acct_other")),
        "another secret": await _send(paid_stack, _event(), "whsec_forged000"),
        "an old signature": await _send(paid_stack, _event(), at=int(time.time()) - 301),
        "a thin event": await _send(paid_stack, _event(object="v2.core.event")),
        "no JSON": await _send(paid_stack, "{"),
        "no event": await _send(paid_stack, "[]"),
        "a long id": await _send(paid_stack, _event(id="e" * 300)),
    }
    assert refused == dict.fromkeys(refused, 400)
    unsigned = await paid_stack.http.post("/webhooks/stripe", content=_event().encode())
    assert unsigned.status_code == 400
    for signature in (
        b"t=1,v1=\xe9",
        b"t=\xb2,v1=0",
        f"t={int(time.time())},v1=\xe9".encode("latin-1"),
        b"t=,v1",
        b"=",
    ):
        headers = [(b"stripe-signature", signature)]
        forged = await paid_stack.http.post("/webhooks/stripe", content=_event().encode(), headers=headers)
        assert forged.status_code == 400, signature
    assert unsigned.json()["error"]["code"] == "event_refused"
    assert await _counts(paid_stack) == (0, 0)


async def test_a_body_is_bounded_before_it_is_looked_at(paid_stack: Stack) -> None:
    assert await _send(paid_stack, _event(padding="x" * (256 * 1024))) == 413
    assert await _counts(paid_stack) == (0, 0)


async def test_without_a_provider_there_is_no_route(stack: Stack) -> None:
    assert await _send(stack, _event()) == 404
