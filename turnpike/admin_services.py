"""The admin services: the database and what administrators do to it, opened from the settings.

Commands work with them, and the roles build theirs on them.
"""

from __future__ import annotations

import getpass
import os
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Literal
from uuid import UUID

import msgspec

from billing.accounts.balances import Balances
from billing.accounts.budgets import BudgetSettings
from billing.exports.datasets import DisplayNames
from billing.invoices.recording import CREDITED, DRAFTED, TOPICS
from billing.platform_settings import PlatformSettings
from billing.prices import PriceCatalog
from billing.prices.approval import PriceSheets
from billing.prices.price_books import PriceBooks
from billing.rating.contract_store import Contracts
from billing.reservation.hold_service import HoldService
from billing.settlement.settlement import OVERDRAWN
from billing.transaction.budget_charges import THRESHOLD, name_budget_subjects
from storage.bus import Bus, LocalBus, RedisBus
from storage.database import migrate
from storage.database.database import STATEMENT_S, Database
from tenancy.authenticator import Authenticator
from tenancy.directory import project_public_id
from tenancy.keys import Peppers
from tenancy.rate_limits import RateLimits
from tenancy.repositories import Tenancy
from tenancy.users.service import Users
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
WEBHOOK_TOPICS = (OVERDRAWN, THRESHOLD, DRAFTED, *TOPICS.values(), CREDITED)
"""The topics of all messages that go to the outbox: webhooks may subscribe to these."""


def webhook_endpoints(settings: Settings, database: Database, keys: Secrets) -> WebhookEndpoints:
    """The webhook endpoints that tenants change. Raises UrlRefused for a malformed network in the settings."""
    return WebhookEndpoints(database, SecretCipher(keys.master_key), _address_policy(settings), WEBHOOK_TOPICS)


def webhook_dispatcher(
    settings: Settings, tenancy: Tenancy, database: Database, keys: Secrets, sender: WebhookSender | None = None
) -> Dispatcher:
    """What sends webhooks, in a worker; `sender`: by another way than HTTP. Raises UrlRefused for a malformed network
    in the settings."""

    async def names(tenant_id: UUID) -> dict[str, tuple[str, str]]:
        projects = await tenancy.list_projects(tenant_id)
        shown = {str(project.id): (project_public_id(project.id), project.name) for project in projects}
        return shown | {str(key.id): (key.public_id, key.public_id) for key in await tenancy.list_keys(tenant_id)}

    cipher, sender = SecretCipher(keys.master_key), sender or WebhookSender(_address_policy(settings))
    payloads = partial(name_budget_subjects, names_of=names)
    return Dispatcher(database, cipher, sender, settings.webhook_give_up_days * _DAY_S, payloads)


def _address_policy(settings: Settings) -> AddressPolicy:
    return AddressPolicy(settings.webhook_allow_http, parse_networks(settings.webhook_allow_networks))


class AdminServices(msgspec.Struct, frozen=True):
    """What an administrator works with, and the settings from which it was opened."""

    settings: Settings
    database: Database
    bus: Bus
    tenancy: Tenancy
    authenticator: Authenticator
    users: Users
    prices: PriceCatalog
    sheets: PriceSheets
    platform: PlatformSettings
    books: PriceBooks
    contracts: Contracts
    balances: Balances
    budgets: BudgetSettings
    limits: RateLimits
    holds: HoldService

    async def tenant_names(self) -> dict[UUID, str]:
        """The names of all tenants."""
        return {tenant.id: tenant.name for tenant in await self.tenancy.list_tenants()}

    async def display_names(self) -> DisplayNames:
        """The names of all tenants and of their projects."""
        tenants = await self.tenant_names()
        projects = {
            project.id: project.name for tenant in tenants for project in await self.tenancy.list_projects(tenant)
        }
        return DisplayNames(tenants, projects)


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
"""When a database is made: never (a command), if it is embedded (a role), always (`serve`). An embedded database that
exists is migrated in any case."""


async def read_secrets_of_serve(settings: Settings) -> Secrets:
    """The secrets for `serve`. They are made where no secrets file is given or exists, and the database is empty.

    Raises SecretsError, DatabaseUnavailable.
    """
    has_file = bool(settings.secrets_file) or settings.secrets.exists()
    if not has_file and settings.embedded_database is None and await migrate.current(settings.database) is None:
        return secrets.load_or_make(settings.secrets)
    return read_secrets(settings)


async def prepare_database(settings: Settings, setup: Setup) -> None:
    """Migrate or check the database. Raises SchemaMismatch, DatabaseUnavailable."""
    if setup == "always" or settings.embedded_database is not None:
        await migrate.upgrade(settings.database)
    else:
        await migrate.check(settings.database)


@asynccontextmanager
async def open_admin_services(
    settings: Settings, setup: Setup = "never", statement_s: float = STATEMENT_S
) -> AsyncIterator[AdminServices]:
    """Open the admin services, and close them at the end. `statement_s`: seconds that a statement may take.

    Raises NoData, DataFolderError, SecretsError, SchemaMismatch, DatabaseUnavailable, InvalidRedisUrl.
    """
    if setup == "never":
        check_data(settings)
    else:
        prepare_data_folder(settings)
    keys = read_secrets(settings)
    await prepare_database(settings, setup)
    database = await Database.open(settings.database, statement_s=statement_s)
    bus = open_bus(settings)
    peppers = Peppers(keys.peppers, keys.pepper_current)
    holds, prices = HoldService(database), PriceCatalog(database)
    authenticator = Authenticator(database, peppers, bus, timeout=settings.database_wait)
    users = Users(database, keys.master_key, bus, timeout=settings.database_wait)
    try:
        yield AdminServices(
            settings=settings,
            database=database,
            bus=bus,
            tenancy=Tenancy(database, peppers, bus),
            authenticator=authenticator,
            users=users,
            prices=prices,
            sheets=PriceSheets(database, via=system_user()),
            platform=PlatformSettings(database),
            books=PriceBooks(database),
            contracts=Contracts(database, prices),
            balances=Balances(database),
            budgets=BudgetSettings(database),
            limits=RateLimits(database, bus),
            holds=holds,
        )
    finally:
        await users.close()
        await authenticator.close()
        await prices.close()
        await holds.close()
        await bus.close()
        await database.close()
