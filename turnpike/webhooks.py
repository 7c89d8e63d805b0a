"""Webhooks as the settings and the server's secrets have them."""

from __future__ import annotations

from uuid import UUID

from billing.webhooks.addresses import AddressPolicy, parse_networks
from billing.webhooks.dispatch import Dispatcher
from billing.webhooks.endpoints import Endpoints
from billing.webhooks.sending import Sender
from billing.webhooks.signing import Sealer
from gateway.tenancy.repositories import Tenancy
from storage.database import Database
from turnpike.secrets import Secrets
from turnpike.settings import Settings

_DAY_S = 86_400


def endpoints(settings: Settings, database: Database, known: Secrets) -> Endpoints:
    """What tenants change. Raises UrlRefused for networks that are none."""
    return Endpoints(database, Sealer(known.master_key), _policy(settings))


def dispatcher(settings: Settings, tenancy: Tenancy, database: Database, known: Secrets) -> Dispatcher:
    """What a worker does. Raises UrlRefused for networks that are none."""
    give_up_s = settings.webhook_give_up_days * _DAY_S

    async def names(tenant_id: UUID) -> dict[str, str]:
        projects = {str(project.id): project.name for project in await tenancy.list_projects(tenant_id)}
        return projects | {str(key.id): key.public_id for key in await tenancy.list_keys(tenant_id)}

    return Dispatcher(database, Sealer(known.master_key), Sender(_policy(settings)), give_up_s, names)


def _policy(settings: Settings) -> AddressPolicy:
    return AddressPolicy(settings.webhook_allow_http, parse_networks(settings.webhook_allow_networks))
