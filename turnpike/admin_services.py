"""The admin services: the database and what administrators do to it, opened from the settings.

Commands work with them, and the roles build theirs on them.
"""

from __future__ import annotations

import getpass
import os
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Literal
from uuid import UUID

from msgspec import Struct

from storage.database import migrate
from storage.database.database import STATEMENT_S, Database
from storage.database.test_clock import follow_test_clock
from storage.reported_error import ReportedError
from turnpike.settings import secrets
from turnpike.settings.data_folder import check_data, prepare_data_folder, read_secrets
from turnpike.settings.secrets import Secrets
from turnpike.settings.settings import Settings

if TYPE_CHECKING:
    from billing.accounts.balances import Balances
    from billing.accounts.budgets import BudgetSettings
    from billing.exports.datasets import DisplayNames
    from billing.payments.provider import PaymentProvider
    from billing.platform_settings import PlatformSettings
    from billing.prices import PriceCatalog
    from billing.prices.approval import PriceSheets
    from billing.prices.price_books import PriceBooks
    from billing.rating.contract_store import Contracts
    from billing.reservation.hold_service import HoldService
    from file_store.adapters import AdapterStore
    from file_store.store import FileStore
    from gateway.services import GatewayOptions
    from storage.bus import Bus
    from tenancy.administration.suspension import Suspensions
    from tenancy.authenticator import Authenticator
    from tenancy.identity.service import Identity
    from tenancy.keys import Peppers
    from tenancy.rate_limits import RateLimits
    from tenancy.repositories import Tenancy
    from tenancy.users.service import Users
    from webhooks.addresses import AddressPolicy
    from webhooks.endpoints import WebhookEndpoints


class LiveKeyInSandbox(ReportedError):
    """A sandbox was to collect real money."""

    def __init__(self) -> None:
        super().__init__(
            "stripe_file: this installation is a sandbox, whose time is moved by hand: it takes a key of test mode"
        )


class SpoolFolder(Struct, frozen=True):
    """What a command knows of a gateway's spool."""

    folder: Path


class AdminServices:
    """What an administrator works with, and the settings from which it was opened. Each part is imported and made when
    it is first asked for: a command needs few of them.

    It has the parts that the routes of /admin/v1 use of a gateway's services, by the same names.
    """

    def __init__(self, settings: Settings, database: Database, keys: Secrets) -> None:
        self.settings = settings
        self.database = database
        self.secrets = keys
        self.is_sandbox = False
        """Whether its time is moved by hand (`billing.periods.sandbox_clock`)."""

    async def close(self) -> None:
        """Close what was made. The database stays open."""
        if self.__dict__.get("payments") is not None:
            await self.__dict__["payments"].close()
        for name in ("users", "authenticator", "prices", "holds", "bus"):
            if name in self.__dict__:
                await self.__dict__[name].close()

    @cached_property
    def bus(self) -> Bus:
        """Tells other processes what changed."""
        return open_bus(self.settings)

    @cached_property
    def peppers(self) -> Peppers:
        """The peppers of API keys."""
        from tenancy.keys import Peppers

        return Peppers(self.secrets.peppers, self.secrets.pepper_current)

    @cached_property
    def tenancy(self) -> Tenancy:
        """Tenants, projects and keys."""
        from tenancy.repositories import Tenancy

        return Tenancy(self.database, self.peppers, self.bus)

    @cached_property
    def authenticator(self) -> Authenticator:
        """Knows API keys."""
        from tenancy.authenticator import Authenticator

        return Authenticator(self.database, self.peppers, self.bus, timeout=self.settings.database_wait)

    @cached_property
    def users(self) -> Users:
        """Accounts, roles, sessions and links."""
        from tenancy.users.service import Users

        return Users(self.database, self.secrets.master_key, self.bus, timeout=self.settings.database_wait)

    @cached_property
    def identity(self) -> Identity:
        """Identity providers, passkeys and directories. Raises UrlRefused for a malformed network in the settings."""
        from tenancy.identity.service import Identity

        return Identity(self.database, self.users, self.tenancy, address_policy(self.settings))

    @cached_property
    def suspensions(self) -> Suspensions:
        """Who is suspended."""
        from tenancy.administration.suspension import Suspensions

        return Suspensions(self.database, self.bus)

    @cached_property
    def files(self) -> FileStore:
        """The files of projects."""
        from file_store.blobs import FolderBlobs
        from file_store.store import FileStore
        from prompt_cache.promise.scope_keys import ScopeKeys

        keys = ScopeKeys(self.database, self.secrets.master_key)
        return FileStore(self.database, keys, FolderBlobs(self.settings.files), self.settings.file_quota)

    @cached_property
    def adapters(self) -> AdapterStore:
        """The adapters of projects."""
        from file_store.adapters import AdapterStore

        return AdapterStore(self.files)

    @cached_property
    def prices(self) -> PriceCatalog:
        """The prices in force."""
        from billing.prices import PriceCatalog

        return PriceCatalog(self.database)

    @cached_property
    def sheets(self) -> PriceSheets:
        """Price sheets, as who runs this process."""
        from billing.prices.approval import PriceSheets

        return PriceSheets(self.database, via=system_user())

    @cached_property
    def platform(self) -> PlatformSettings:
        """The platform's settings."""
        from billing.platform_settings import PlatformSettings

        return PlatformSettings(self.database)

    @cached_property
    def books(self) -> PriceBooks:
        """Price books."""
        from billing.prices.price_books import PriceBooks

        return PriceBooks(self.database)

    @cached_property
    def contracts(self) -> Contracts:
        """Contract terms."""
        from billing.rating.contract_store import Contracts

        return Contracts(self.database, self.prices)

    @cached_property
    def balances(self) -> Balances:
        """What money tenants have."""
        from billing.invoices.advances import top_ups

        return top_ups(self.database)

    @cached_property
    def budgets(self) -> BudgetSettings:
        """Budgets."""
        from billing.accounts.budgets import BudgetSettings

        return BudgetSettings(self.database)

    @cached_property
    def rate_limits(self) -> RateLimits:
        """Rate limits."""
        from tenancy.rate_limits import RateLimits

        return RateLimits(self.database, self.bus)

    @cached_property
    def options(self) -> GatewayOptions:
        """What routes ask of a gateway's options."""
        from gateway.services import GatewayOptions

        return GatewayOptions(
            response_retention=self.settings.response_retention,
            waterfall_days=self.settings.waterfall_keep_days,
            reminder_days=self.settings.reminder_levels,
        )

    @property
    def spool(self) -> SpoolFolder:
        """Where the spools of this folder's gateways are."""
        return SpoolFolder(self.settings.data / "spool")

    @cached_property
    def holds(self) -> HoldService:
        """Holds of money."""
        from billing.reservation.hold_service import HoldService

        return HoldService(self.database)

    @cached_property
    def webhooks(self) -> WebhookEndpoints:
        """Tenants' webhook endpoints. Raises UrlRefused for a malformed network in the settings."""
        from webhooks.endpoints import WebhookEndpoints
        from webhooks.signing import SecretCipher

        cipher = SecretCipher(self.secrets.master_key)
        return WebhookEndpoints(self.database, cipher, address_policy(self.settings), webhook_topics())

    @cached_property
    def payments(self) -> PaymentProvider | None:
        """Who collects money; None if nobody does. Raises CredentialsError, LiveKeyInSandbox."""
        provider = payment_provider(self.settings)
        if provider is not None and provider.livemode and self.is_sandbox:
            raise LiveKeyInSandbox
        return provider

    async def tenant_names(self) -> dict[UUID, str]:
        """The names of all tenants."""
        return {tenant.id: tenant.name for tenant in await self.tenancy.list_tenants()}

    async def display_names(self) -> DisplayNames:
        """The names of all tenants and of their projects."""
        from billing.exports.datasets import DisplayNames

        tenants = await self.tenant_names()
        projects = {
            project.id: project.name for tenant in tenants for project in await self.tenancy.list_projects(tenant)
        }
        return DisplayNames(tenants, projects)


def payment_provider(settings: Settings) -> PaymentProvider | None:
    """Who collects money by these settings; None if nobody does. Raises CredentialsError."""
    if not settings.stripe_file:
        return None
    from billing.payments.stripe_api.credentials import load_credentials
    from billing.payments.stripe_api.stripe_provider import StripeProvider

    return StripeProvider(load_credentials(Path(settings.stripe_file)))


def webhook_topics() -> tuple[str, ...]:
    """The topics of all messages that go to the outbox: webhooks may subscribe to these."""
    from batch_store.running import TOPICS as BATCH_TOPICS
    from billing.invoices.recording import CREDITED, DRAFTED, TOPICS
    from billing.payments.notices import TOPICS as PAYMENT_TOPICS
    from billing.settlement.settlement import OVERDRAWN
    from billing.transaction.budget_charges import THRESHOLD

    return OVERDRAWN, THRESHOLD, DRAFTED, *TOPICS.values(), CREDITED, *PAYMENT_TOPICS, *BATCH_TOPICS


def address_policy(settings: Settings) -> AddressPolicy:
    """Where webhooks may go. Raises UrlRefused for a malformed network in the settings."""
    from webhooks.addresses import AddressPolicy, parse_networks

    return AddressPolicy(settings.webhook_allow_http, parse_networks(settings.webhook_allow_networks))


def system_user() -> str:
    """As whom this process runs: USER@HOST."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container's user may have no name
        user = f"uid {os.getuid()}"
    return f"{user}@{socket.gethostname()}"


def open_bus(settings: Settings) -> Bus:
    """Redis where one was set, else the twin inside this process. Raises InvalidRedisUrl."""
    from storage.bus import LocalBus, RedisBus

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
    database.keyring = keys.keyring
    admin = AdminServices(settings, database, keys)
    try:
        admin.is_sandbox = await follow_test_clock(database)
        yield admin
    finally:
        await admin.close()
        await database.close()
