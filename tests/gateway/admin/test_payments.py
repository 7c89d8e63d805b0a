"""A tenant's own people connect it, top up and set their card; finance decides what nobody owes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from billing.payments.stripe_api.calls import StripeCalls
from billing.payments.stripe_api.stripe_provider import StripeProvider
from fake_stripe.payments import complete_checkout, new_intent, take_money
from fake_stripe.server import FakeStripe
from tests.billing.payments.desk import PaymentDesk, collecting_by, credentials_of
from tests.gateway.admin.desk import Desks
from tests.gateway.stack import Stack, running_stack


@pytest.fixture
async def fake() -> AsyncIterator[FakeStripe]:
    async with FakeStripe() as made:
        yield made


@pytest.fixture
async def stack(stocked_sqlite_url: str, tmp_path: Path, model_folder: Path, fake: FakeStripe) -> AsyncIterator[Stack]:
    async with (
        collecting_by(fake) as provider,
        running_stack(stocked_sqlite_url, tmp_path, model_folder, payments=provider) as running,
    ):
        yield running


@pytest.fixture
async def payments(stack: Stack, fake: FakeStripe) -> AsyncIterator[PaymentDesk]:
    made = PaymentDesk(stack.database, fake)
    yield made
    await made.provider.close()


async def test_from_connection_to_credit(desks: Desks, payments: PaymentDesk) -> None:
    owner, viewer = desks.own("finance"), desks.own("viewer")
    tenant = f"/tenants/{desks.stack.tenant.name}"
    refused = await owner.post(f"{tenant}/top-ups", {"amount": "25.00"}, 409)
    assert refused["error"]["code"] == "not_connected"
    await viewer.put(f"{tenant}/payment-connection", {}, 403)
    assert (await owner.put(f"{tenant}/payment-connection", {"collection": "charge"}))["ready"] is False
    await payments.work()
    assert (await owner.post(f"{tenant}/payment-connection/portal", {}))["url"].startswith("https://billing")
    before = (await owner.get(f"{tenant}/balance"))["available"]
    made = await owner.post(f"{tenant}/top-ups", {"amount": "25.00"}, 201)
    assert made["state"] == "sent"
    complete_checkout(payments.account, made["url"].rpartition("/")[2])
    await payments.work()
    after = await viewer.get(f"{tenant}/top-ups/{made['id']}")
    assert (after["state"], after["url"]) == ("granted", None)
    assert float((await owner.get(f"{tenant}/balance"))["available"]) == float(before) + 25
    assert (await viewer.get(f"{tenant}/payment-connection"))["card"] == "visa 4242, 12/2031"
    auto = await owner.put(f"{tenant}/auto-top-up", {"threshold": "1.00", "amount": "20.00"})
    assert (auto["state"], auto["amount"]) == ("on", "20.00")
    await owner.put(f"{tenant}/auto-top-up", {"threshold": "1.00", "amount": "0.10"}, 400)
    await owner.post(f"{tenant}/top-ups/{made['id']}/refunds", {"reason": "mine"}, 403)
    back = await desks.operator("finance").post(f"{tenant}/top-ups/{made['id']}/refunds", {"reason": "asked"}, 201)
    assert (back["amount"], back["state"]) == ("25.00", "created")


async def test_a_provider_that_is_away_delays_the_page(desks: Desks, payments: PaymentDesk, fake: FakeStripe) -> None:
    owner, tenant = desks.own("finance"), f"/tenants/{desks.stack.tenant.name}"
    await owner.put(f"{tenant}/payment-connection", {})
    await payments.work()
    fake.faults.script("POST", "/v1/checkout", "drop_after")
    made = await owner.post(f"{tenant}/top-ups", {"amount": "25.00"}, 201)
    assert made["url"] is None
    await payments.work()
    assert (await owner.get(f"{tenant}/top-ups/{made['id']}"))["url"].startswith("https://checkout")
    assert len(payments.account.every("checkout.session")) == 1
    fake.faults.script("POST", "/v1/billing_portal", "drop")
    away = await owner.post(f"{tenant}/payment-connection/portal", {}, 503)
    assert away["error"]["code"] == "provider_unavailable"


async def test_a_tenant_that_floods_the_provider_is_refused(
    stocked_sqlite_url: str, tmp_path: Path, model_folder: Path, fake: FakeStripe, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = StripeProvider(credentials_of(fake), StripeCalls(credentials_of(fake), per_second=4))
    async with running_stack(stocked_sqlite_url, tmp_path, model_folder, payments=slow) as stack:
        payments = PaymentDesk(stack.database, fake)
        await payments.connect(stack.tenant.id, card=None)
        await payments.provider.close()
        owner, portal = (
            Desks(stack, monkeypatch).own("finance"),
            f"/tenants/{stack.tenant.name}/payment-connection/portal",
        )
        answers = await asyncio.gather(*(owner.call("POST", portal, {}) for _ in range(16)))
        codes = [answer.status_code for answer in answers]
        assert codes.count(200) >= 4
        assert codes.count(503) >= 6
        assert (await owner.call("POST", portal, {})).status_code == 200
    await slow.close()


async def test_finance_decides_what_nobody_owes(desks: Desks, payments: PaymentDesk) -> None:
    finance, owner = desks.operator("finance"), desks.own("owner")
    take_money(payments.account, new_intent(payments.account, amount=700, currency="usd", customer=None))
    await payments.work()
    (receipt,) = (await finance.get("/payments/receipts?state=unapplied"))["data"]
    assert (receipt["amount"], receipt["tenant_id"]) == ("7.00", None)
    await owner.get("/payments/receipts", 403)
    (task,) = (await finance.get("/payments/tasks"))["data"]
    body = {"tenant": desks.stack.tenant.name, "reason": "the customer called"}
    applied = await finance.post(f"/payments/receipts/{receipt['id']}/apply", body)
    assert applied["state"] == "applied"
    again = await finance.post(f"/payments/receipts/{receipt['id']}/apply", body, 409)
    assert again["error"]["code"] == "payment_refused"
    assert (await finance.post(f"/payments/tasks/{task['id']}/close", {"reason": "done"}))["state"] == "done"
    shown = await finance.get("/payments/provider")
    assert (shown["provider"], shown["livemode"], shown["key"]) == ("stripe", False, "rk_test_…fake")
    csv = "date,amount,currency\n2026-11-05,5.00,USD\n"
    done = await finance.post("/payments/statements", {"name": "a.csv", "content": csv})
    assert (done["new_entries"], done["unapplied"]) == (1, 1)
    bad = await finance.post("/payments/statements", {"name": "a.csv", "content": "<!DOCTYPE a>"}, 400)
    assert bad["error"]["code"] == "statement_refused"
