"""`turnpike keys`: make, revoke and list API keys."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from turnpike.command_context import admin_command, print_table, with_admin_services
from turnpike.command_line import CommandError, CommandParser
from turnpike.operator_identity import add_second_operator, approvals_are_on, check_operators
from turnpike.settings.settings import Settings

if TYPE_CHECKING:
    from uuid import UUID

    from tenancy.tables import ApiKey, Project
    from turnpike.admin_services import AdminServices


def add_arguments(parser: CommandParser) -> None:
    """Declare `turnpike keys …`."""
    create = parser.add_action("create", "make a key; stdout has the key alone", create_key)
    create.add_argument("--tenant", help="whose key it is")
    create.add_argument("--project", help="the key's project")
    create.add_argument("--create-project", action="store_true", help="make the project if the tenant has none of it")
    create.add_argument("--admin", action="store_true", help="a key for the tenant's reports, not for inference")
    create.add_argument("--operator", action="store_true", help="a key for who runs Turnpike (/admin/v1), of no tenant")
    create.add_argument("--name", default="", help="what the key is for; with --operator, who presents it")
    add_second_operator(create)
    revoke = parser.add_action("revoke", "stop a key, everywhere within a second", revoke_key)
    revoke.add_argument("key", help="its public id, the part after tp_live_ (the whole key works too)")
    listing = parser.add_action("list", "keys by tenant and project, without secrets", list_keys)
    listing.add_argument("--tenant", help="of one tenant alone")


def create_key(settings: Settings, arguments: argparse.Namespace) -> int:
    """`turnpike keys create`: the key alone on stdout."""
    if [bool(arguments.project), arguments.admin, arguments.operator].count(True) != 1:
        raise CommandError("say one of --project NAME (for inference), --admin (for the tenant's reports), --operator")
    if arguments.operator == bool(arguments.tenant):
        needed = "--operator is for a key of no tenant" if arguments.operator else "say --tenant NAME: whose key it is"
        raise CommandError(needed)
    if arguments.operator and not arguments.name.strip():
        raise CommandError("say --name WHO: operators are told apart by it")

    async def work(admin: AdminServices) -> None:
        if arguments.operator:
            if await approvals_are_on(admin):
                # Without a second operator's key, one person could become two by a key of another name.
                await check_operators(admin, arguments)
            print((await admin.tenancy.create_operator_key(arguments.name)).key)
            return
        tenant = await admin.tenancy.tenant(arguments.tenant)
        project = await _project(admin, tenant.id, arguments) if arguments.project else None
        issued = await admin.tenancy.create_key(tenant.id, project.id if project else None, arguments.name)
        print(issued.key)

    return with_admin_services(settings, work)


async def _project(admin: AdminServices, tenant_id: UUID, arguments: argparse.Namespace) -> Project:
    """The tenant's project that `--project` names; `--create-project` makes it. Raises CommandError."""
    from tenancy.repositories import NoSuchRecord

    try:
        return await admin.tenancy.project(tenant_id, arguments.project)
    except NoSuchRecord:
        if not arguments.create_project:
            names = ", ".join(project.name for project in await admin.tenancy.list_projects(tenant_id))
            raise CommandError(
                f"--project: tenant {arguments.tenant} has no project {arguments.project}, but {names or 'none'}; "
                "--create-project makes it"
            ) from None
    project = await admin.tenancy.create_project(tenant_id, arguments.project)
    print(f"made project {project.name} of tenant {arguments.tenant}", file=sys.stderr)
    return project


@admin_command
async def revoke_key(admin: AdminServices, arguments: argparse.Namespace) -> None:
    """`turnpike keys revoke KEY`."""
    from tenancy.keys import PREFIX

    whole_key_or_id: str = arguments.key
    public_id = whole_key_or_id.removeprefix(PREFIX + "_").split("_")[0]
    if await approvals_are_on(admin):
        await _keep_two_operators(admin, public_id)
    at_once = await admin.tenancy.revoke(public_id)
    print(f"revoked {public_id}" + ("" if at_once else "; Redis is away, so within 30 s"))


async def _keep_two_operators(admin: AdminServices, public_id: str) -> None:
    """Raise CommandError where too few operators would remain to change a price, or to turn approvals off."""
    keys = [key for key in await admin.tenancy.list_operator_keys() if not key.revoked_at]
    remaining = {key.name.casefold() for key in keys if key.public_id != public_id}
    if len(remaining) < 2 and any(key.public_id == public_id for key in keys):
        raise CommandError(
            "approvals take two operators, and fewer would have a key: make another's key first "
            "(`turnpike keys create --operator --name WHO`), or turn approvals off"
        )


@admin_command
async def list_keys(admin: AdminServices, arguments: argparse.Namespace) -> None:
    """`turnpike keys list`."""
    tenants = [await admin.tenancy.tenant(arguments.tenant)] if arguments.tenant else await admin.tenancy.list_tenants()
    rows = []
    for tenant in tenants:
        projects = {project.id: project.name for project in await admin.tenancy.list_projects(tenant.id)}
        keys = await admin.tenancy.list_keys(tenant.id)
        rows += [_row(key, tenant.name, projects[key.project_id] if key.project_id else "(admin)") for key in keys]
    if not arguments.tenant:
        rows += [_row(key, "-", "(operator)") for key in await admin.tenancy.list_operator_keys()]
    print_table(("key", "tenant", "project", "state", "made", "last used", "name"), rows)


def _row(key: ApiKey, tenant: str, project: str) -> tuple[str, ...]:
    state = "revoked" if key.revoked_at else "active"
    used = f"{key.last_used_at:%Y-%m-%d %H:%M}" if key.last_used_at else "never"
    return key.public_id, tenant, project, state, f"{key.created_at:%Y-%m-%d}", used, key.name
