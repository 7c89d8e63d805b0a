"""A fake that stays: its account is kept in a file, and its events go to a gateway by HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import httpx

from fake_stripe.account import Account
from fake_stripe.server import FakeStripe
from fake_stripe.webhooks import Deliveries

EVERY_S = 0.5
"""How often what changed is kept, and events are delivered."""


@asynccontextmanager
async def standing_fake(file: Path, webhook: str, secret: str, *, port: int = 0) -> AsyncIterator[str]:
    """Serve the account of a file on the loopback, at this port if it is free; gives the base address. Raises OSError,
    ValueError."""
    fake = FakeStripe(Account.load(file))
    try:
        base = await fake.start(port)
    except (OSError, OverflowError):  # it is somebody's, or there is no port behind the last
        base = await fake.start()
    fake.account.pages = base
    async with httpx.AsyncClient(trust_env=False, timeout=10) as client:

        async def post(body: bytes, headers: dict[str, str]) -> int:
            try:
                return (await client.post(webhook, content=body, headers=headers)).status_code
            except httpx.HTTPError:
                return 503  # the gateway starts, or is gone: it stays to be delivered

        deliveries = Deliveries(fake.account, post, [secret])
        task = asyncio.create_task(_attend(fake.account, deliveries, file))
        try:
            yield base
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
            await fake.stop()
            fake.account.save(file)


async def _attend(account: Account, deliveries: Deliveries, file: Path) -> None:
    """Deliver events and keep the account, for ever."""
    kept = -1
    while True:
        await asyncio.sleep(EVERY_S)
        await deliveries.deliver()
        if (size := len(account.objects) + len(account.events)) != kept:
            account.save(file)
            kept = size
