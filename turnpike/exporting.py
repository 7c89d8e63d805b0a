"""What exports need of the other rooms: the names of tenants and projects, and the settings."""

from __future__ import annotations

from billing.exports.datasets import Names
from gateway.tenancy.repositories import Tenancy


async def names(tenancy: Tenancy) -> Names:
    """What all tenants and projects are called."""
    tenants = {tenant.id: tenant.name for tenant in await tenancy.list_tenants()}
    projects = {each.id: each.name for tenant in tenants for each in await tenancy.list_projects(tenant)}
    return Names(tenants, projects)
