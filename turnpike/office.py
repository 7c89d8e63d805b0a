"""The database with what administrators do to it, opened from the settings: for commands and for `serve`."""

from __future__ import annotations

import getpass
import os
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

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
from turnpike.data_folder import prepare_data_folder, read_secrets
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


async def prepare_database(settings: Settings) -> None:
    """Migrate an embedded database; check any other. Raises SchemaMismatch, DatabaseUnavailable."""
    if settings.database.startswith("sqlite"):
        await migrate.upgrade(settings.database)
    else:
        await migrate.check(settings.database)


@asynccontextmanager
async def opened(settings: Settings) -> AsyncIterator[Office]:
    """The office, for one command. Raises what makes it impossible, each with one clear line."""
    prepare_data_folder(settings)
    known = read_secrets(settings)
    await prepare_database(settings)
    database = await Database.open(settings.database)
    bus = open_bus(settings)
    peppers = Peppers(known.peppers, known.pepper_current)
    holds, prices = Holds(database), PriceBook(database)
    authenticator = Authenticator(database, peppers, bus)
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
