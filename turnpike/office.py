"""The database with what administrators do to it, opened from the settings: for commands and for `serve`."""

from __future__ import annotations

import getpass
import os
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Literal

import msgspec

from billing.balances import Balances
from billing.budgets.setting import Budgets
from billing.holds.reserving import Holds
from billing.platform_settings import PlatformSettings
from billing.prices import PriceBook
from billing.prices.approval import PriceSheets
from billing.prices.books import PriceBooks
from billing.rating.term_store import Contracts
from gateway.tenancy.authenticator import Authenticator
from gateway.tenancy.keys import Peppers
from gateway.tenancy.repositories import Tenancy
from storage import migrate
from storage.bus import Bus, LocalBus, RedisBus
from storage.database import Database
from turnpike import secrets
from turnpike.data_folder import check_data, prepare_data_folder, read_secrets
from turnpike.secrets import Secrets
from turnpike.settings import Settings


class Office(msgspec.Struct, frozen=True):
    """What an administrator works with."""

    database: Database
    bus: Bus
    tenancy: Tenancy
    authenticator: Authenticator
    prices: PriceBook
    sheets: PriceSheets
    platform: PlatformSettings
    books: PriceBooks
    contracts: Contracts
    balances: Balances
    budgets: Budgets
    holds: Holds


def system_user() -> str:
    """As whom this process runs: USER@HOST."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container's user may have no name
        user = f"uid {os.getuid()}"
    return f"{user}@{socket.gethostname()}"


def open_bus(settings: Settings) -> Bus:
    """Redis where one was set, else the twin inside this process. Raises InvalidRedisUrl."""
    return RedisBus(settings.redis_url) if settings.redis_url else LocalBus()


Setup = Literal["never", "embedded", "always"]
"""Which databases are made or migrated: none that is not there (a command), an embedded one (a role), any (`serve`)."""


async def read_secrets_of_serve(settings: Settings) -> Secrets:
    """The secrets for `serve`, which makes them where there can be nothing yet that depends on older ones.

    Raises SecretsError, DatabaseUnavailable.
    """
    named = bool(settings.secrets_file) or settings.secrets.exists()
    if not named and settings.embedded_database is None and await migrate.current(settings.database) is None:
        return secrets.load_or_make(settings.secrets)
    return read_secrets(settings)


async def prepare_database(settings: Settings, setup: Setup) -> None:
    """Migrate or check the database. Raises SchemaMismatch, DatabaseUnavailable."""
    if setup == "always" or settings.embedded_database is not None:
        await migrate.upgrade(settings.database)
    else:
        await migrate.check(settings.database)


@asynccontextmanager
async def opened(settings: Settings, setup: Setup = "never") -> AsyncIterator[Office]:
    """The office. Raises what makes it impossible, each with one clear line."""
    if setup == "never":
        check_data(settings)
    else:
        prepare_data_folder(settings)
    known = read_secrets(settings)
    await prepare_database(settings, setup)
    database = await Database.open(settings.database)
    bus = open_bus(settings)
    peppers = Peppers(known.peppers, known.pepper_current)
    holds, prices = Holds(database), PriceBook(database)
    authenticator = Authenticator(database, peppers, bus, patience=settings.database_timeout)
    try:
        yield Office(
            database=database,
            bus=bus,
            tenancy=Tenancy(database, peppers, bus),
            authenticator=authenticator,
            prices=prices,
            sheets=PriceSheets(database, via=system_user()),
            platform=PlatformSettings(database),
            books=PriceBooks(database),
            contracts=Contracts(database, prices),
            balances=Balances(database),
            budgets=Budgets(database),
            holds=holds,
        )
    finally:
        await authenticator.close()
        await prices.close()
        await holds.close()
        await bus.close()
        await database.close()
