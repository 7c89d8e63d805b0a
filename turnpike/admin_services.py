"""The database with what administrators do to it, opened from the settings: for commands and for `serve`."""

from __future__ import annotations

import getpass
import os
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Literal
from uuid import UUID

import msgspec

from billing.accounts.balances import Balances
from billing.accounts.budgets import BudgetSettings
from billing.exports.datasets import DisplayNames
from billing.platform_settings import PlatformSettings
from billing.prices import PriceCatalog
from billing.prices.approval import PriceSheets
from billing.prices.price_books import PriceBooks
from billing.rating.contract_store import Contracts
from billing.reservation.hold_service import HoldService
from storage.bus import Bus, LocalBus, RedisBus
from storage.database import migrate
from storage.database.database import Database
from tenancy.authenticator import Authenticator
from tenancy.keys import Peppers
from tenancy.repositories import Tenancy
from turnpike.settings import secrets
from turnpike.settings.data_folder import check_data, prepare_data_folder, read_secrets
from turnpike.settings.secrets import Secrets
from turnpike.settings.settings import Settings
from webhooks.addresses import AddressPolicy, parse_networks
from webhooks.dispatch import Dispatcher
from webhooks.endpoints import WebhookEndpoints
from webhooks.sending import WebhookSender
from webhooks.signing import SecretCipher

_DAY_S = 86_400


def endpoints(settings: Settings, database: Database, known: Secrets) -> WebhookEndpoints:
    """What tenants change. Raises UrlRefused for networks that are none."""
    return WebhookEndpoints(database, SecretCipher(known.master_key), _policy(settings))


def dispatcher(settings: Settings, tenancy: Tenancy, database: Database, known: Secrets) -> Dispatcher:
    """What a worker does. Raises UrlRefused for networks that are none."""
    give_up_s = settings.webhook_give_up_days * _DAY_S

    async def names(tenant_id: UUID) -> dict[str, str]:
        projects = {str(project.id): project.name for project in await tenancy.list_projects(tenant_id)}
        return projects | {str(key.id): key.public_id for key in await tenancy.list_keys(tenant_id)}

    return Dispatcher(database, SecretCipher(known.master_key), WebhookSender(_policy(settings)), give_up_s, names)


def _policy(settings: Settings) -> AddressPolicy:
    return AddressPolicy(settings.webhook_allow_http, parse_networks(settings.webhook_allow_networks))


async def names(tenancy: Tenancy) -> DisplayNames:
    """What all tenants and projects are called."""
    tenants = {tenant.id: tenant.name for tenant in await tenancy.list_tenants()}
    projects = {each.id: each.name for tenant in tenants for each in await tenancy.list_projects(tenant)}
    return DisplayNames(tenants, projects)


class AdminServices(msgspec.Struct, frozen=True):
    """What an administrator works with."""

    database: Database
    bus: Bus
    tenancy: Tenancy
    authenticator: Authenticator
    prices: PriceCatalog
    sheets: PriceSheets
    platform: PlatformSettings
    books: PriceBooks
    contracts: Contracts
    balances: Balances
    budgets: BudgetSettings
    holds: HoldService


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
async def open_admin_services(settings: Settings, setup: Setup = "never") -> AsyncIterator[AdminServices]:
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
    holds, prices = HoldService(database), PriceCatalog(database)
    authenticator = Authenticator(database, peppers, bus, patience=settings.database_timeout)
    try:
        yield AdminServices(
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
            budgets=BudgetSettings(database),
            holds=holds,
        )
    finally:
        await authenticator.close()
        await prices.close()
        await holds.close()
        await bus.close()
        await database.close()
