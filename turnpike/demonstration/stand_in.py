"""The fake Stripe of a demonstration: its account and our credentials, kept in the data folder.

It answers on the loopback alone, and only while a demonstration is made or served. No other folder has one.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from secrets import token_hex

import msgspec

from turnpike.settings.settings import Settings

ACCOUNT_FILE = "fake-stripe.json"
"""The account's objects. A data folder that has it is served with the fake."""
CREDENTIALS_FILE = "fake-stripe-credentials.json"
_KEY = "rk_test_fake"


def write_credentials(folder: Path, api: str, console: str, secret: str) -> Path:
    """Write the file that `--stripe-file` would name; returns its path. Raises OSError."""
    values = {"account": "acct_fake", "key": _KEY, "webhook_secrets": [secret], "return_url": console, "api": api}
    path = folder / CREDENTIALS_FILE
    path.unlink(missing_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(msgspec.json.format(msgspec.json.encode(values)) + b"\n")
    return path


def new_secret() -> str:
    """A secret with which the fake signs its webhooks."""
    return f"whsec_{token_hex(24)}"


def page_address(settings: Settings) -> str:
    """Where the fake's pages are: at the port behind the gateway's, unless somebody else has it."""
    return f"http://127.0.0.1:{settings.port + 1}"


@asynccontextmanager
async def with_stand_in(settings: Settings, base_url: str) -> AsyncIterator[Settings]:
    """The settings with which a data folder is served: those of a demonstration name its fake Stripe, which answers
    until the end. Where `--stripe-file` names an account, or there is no demonstration, they are as they were."""
    folder = settings.data.absolute()
    if settings.stripe_file or not (folder / ACCOUNT_FILE).exists():
        yield settings
        return
    from fake_stripe.standing import standing_fake

    secret, console = new_secret(), f"{base_url}/console/"
    webhook = f"{base_url}/webhooks/stripe"
    async with standing_fake(folder / ACCOUNT_FILE, webhook, secret, port=settings.port + 1) as api:
        path = write_credentials(folder, api, console, secret)
        yield msgspec.structs.replace(settings, stripe_file=str(path))
