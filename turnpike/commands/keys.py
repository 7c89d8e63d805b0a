"""`turnpike keys …`: API keys."""

from __future__ import annotations

import argparse
import sys

from billing.platform_settings import APPROVALS
from tenancy.keys import PREFIX
from tenancy.repositories import NoSuchRecord
from tenancy.tables import ApiKey, Tenant
from turnpike.admin_services import AdminServices
from turnpike.commands.price_author import two_operators
from turnpike.commands.running import table, with_admin_services
from turnpike.failures import CommandError
from turnpike.settings.settings import Settings


def create_key(settings: Settings, arguments: argparse.Namespace) -> int:
    """`turnpike keys create`: the key alone on stdout."""
    if [bool(arguments.project), arguments.admin, arguments.operator].count(True) != 1:
        raise CommandError("say one of --project NAME (for inference), --admin (for the tenant's reports), --operator")
    if arguments.operator == bool(arguments.tenant):
        needed = "--operator is for a key of no tenant" if arguments.operator else "say --tenant NAME: whose key it is"
        raise CommandError(needed)
    if arguments.operator and not arguments.name.strip():
        raise CommandError("say --name WHO: operators are told apart by it")

    async def work(admin: AdminServices) -> int:
        if arguments.operator:
            if await admin.platform.value(APPROVALS) == "on":
                await two_operators(admin, settings, arguments)  # else one could be two by a key of another name
            print((await admin.tenancy.create_operator_key(arguments.name)).key)
            return 0
        tenant = await admin.tenancy.tenant(arguments.tenant)
        project = None
        if arguments.project:
            try:
                project = await admin.tenancy.project(tenant.id, arguments.project)
            except NoSuchRecord:
                if not arguments.create_project:
                    there = ", ".join(project.name for project in await admin.tenancy.list_projects(tenant.id))
                    raise CommandError(
                        f"--project: tenant {tenant.name} has no project {arguments.project}, but {there or 'none'}; "
                        "--create-project makes it"
                    ) from None
                project = await admin.tenancy.create_project(tenant.id, arguments.project)
                print(f"made project {project.name} of tenant {tenant.name}", file=sys.stderr)
        issued = await admin.tenancy.create_key(tenant.id, project.id if project else None, arguments.name)
        print(issued.key)
        return 0

    return with_admin_services(settings, work)


def revoke_key(settings: Settings, arguments: argparse.Namespace) -> int:
    """`turnpike keys revoke KEY`."""
    given: str = arguments.key
    public_id = given.removeprefix(PREFIX + "_").split("_")[0]

    async def work(admin: AdminServices) -> int:
        if await admin.platform.value(APPROVALS) == "on":
            await _keep_two_operators(admin, public_id)
        at_once = await admin.tenancy.revoke(public_id)
        print(f"revoked {public_id}" + ("" if at_once else "; Redis is away, so within 30 s"))
        return 0

    return with_admin_services(settings, work)


async def _keep_two_operators(admin: AdminServices, public_id: str) -> None:
    """Raise CommandError where too few operators would be left to change a price, or to turn approvals off."""
    keys = [key for key in await admin.tenancy.list_operator_keys() if not key.revoked_at]
    left = {key.name.casefold() for key in keys if key.public_id != public_id}
    if len(left) < 2 and any(key.public_id == public_id for key in keys):
        raise CommandError(
            "approvals take two operators, and fewer would have a key: make another's key first "
            "(`turnpike keys create --operator --name WHO`), or turn approvals off"
        )


def list_keys(settings: Settings, arguments: argparse.Namespace) -> int:
    """`turnpike keys list`."""

    async def work(admin: AdminServices) -> int:
        tenants: list[Tenant] = (
            [await admin.tenancy.tenant(arguments.tenant)] if arguments.tenant else await admin.tenancy.list_tenants()
        )
        rows = []
        for tenant in tenants:
            projects = {project.id: project.name for project in await admin.tenancy.list_projects(tenant.id)}
            for key in await admin.tenancy.list_keys(tenant.id):
                where = projects[key.project_id] if key.project_id else "(admin)"
                rows.append(_row(key, tenant.name, where))
        if not arguments.tenant:
            rows += [_row(key, "-", "(operator)") for key in await admin.tenancy.list_operator_keys()]
        table(("key", "tenant", "project", "state", "made", "last used", "name"), rows)
        return 0

    return with_admin_services(settings, work)


def _row(key: ApiKey, tenant: str, where: str) -> tuple[str, ...]:
    state = "revoked" if key.revoked_at else "active"
    used = f"{key.last_used_at:%Y-%m-%d %H:%M}" if key.last_used_at else "never"
    return key.public_id, tenant, where, state, f"{key.created_at:%Y-%m-%d}", used, key.name
