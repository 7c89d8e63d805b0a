"""The fake that a demonstration is served with: kept in a file, with pages on which people pay."""

from __future__ import annotations

import asyncio
from pathlib import Path

import httpx

from fake_stripe.account import Account
from fake_stripe.customers import create_customer
from fake_stripe.payments import create_session
from fake_stripe.standing import standing_fake


def _page(account: Account, amount: int) -> str:
    """A page of Checkout that a new customer can pay on; its id."""
    customer = create_customer(account, {"name": "Acme"})
    price = {"currency": "usd", "unit_amount": amount, "product_data": {"name": "credit"}}
    urls = {"success_url": "http://127.0.0.1/done", "cancel_url": "http://127.0.0.1/back"}
    values = {"mode": "payment", "customer": customer["id"], "line_items": [{"price_data": price, "quantity": 1}]}
    return str(create_session(account, {**values, **urls})["id"])


async def test_people_pay_on_its_pages_and_its_account_is_kept(tmp_path: Path) -> None:
    account, file = Account(), tmp_path / "account.json"
    session = _page(account, 2500)
    account.save(file)
    assert file.stat().st_mode & 0o777 == 0o600
    events: list[bytes] = []
    paid_event = asyncio.Event()

    async def hear(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length:")[2].split(b"\r\n")[0])
        events.append(await reader.readexactly(length))
        if b"payment_intent.succeeded" in events[-1]:
            paid_event.set()
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")
        await writer.drain()
        writer.close()

    listener = await asyncio.start_server(hear, "127.0.0.1", 0)
    webhook = f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}/webhooks/stripe"
    async with standing_fake(file, webhook, "whsec_0123456789") as base, httpx.AsyncClient(trust_env=False) as client:
        shown = await client.get(f"{base}/checkout/{session}")
        assert "This is a fake Stripe" in shown.text
        assert "25.00 USD" in shown.text
        declined = await client.post(f"{base}/checkout/{session}", data={"card": "pm_card_declined"})
        assert (declined.status_code, "declined" in declined.text) == (402, True)
        paid = await client.post(f"{base}/checkout/{session}", data={"card": "pm_card_visa"})
        assert (paid.status_code, paid.headers["location"]) == (303, "http://127.0.0.1/done")
        assert "used already" in (await client.get(f"{base}/checkout/{session}")).text
        assert (await client.get(f"{base}/checkout/cs_none")).status_code == 404
        assert (await client.get(f"{base}/v1/customers")).status_code == 401, "no key"
        async with asyncio.timeout(10):
            await paid_event.wait()
    listener.close()
    await listener.wait_closed()
    kept = Account.load(file)
    assert [one["status"] for one in kept.every("payment_intent")] == ["succeeded"]
    assert kept.add("customer", "cus")["id"] == "cus_fake000002", "ids go on where they were"


async def test_behind_the_last_port_it_takes_a_free_one(tmp_path: Path) -> None:
    Account().save(tmp_path / "account.json")
    async with standing_fake(
        tmp_path / "account.json", "http://127.0.0.1:1/webhooks/stripe", "whsec_0123456789", port=65_536
    ) as base:
        assert 0 < int(base.rpartition(":")[2]) < 65_536
