"""`turnpike users`: make, invite, list and disable users, change their roles, and make links to sign in."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from turnpike.api.actions import Object, add_work, print_json, print_objects, tenant_names
from turnpike.api.client import Api
from turnpike.command_context import admin_command, print_table
from turnpike.command_line import CommandError, CommandParser
from turnpike.operator_identity import add_second_operator, check_appointment

if TYPE_CHECKING:
    from tenancy.rights.permissions import Role
    from tenancy.rights.principals import Principal
    from tenancy.users.accounts import User
    from tenancy.users.links import Link, LinkKind
    from tenancy.users.members import Scope
    from turnpike.admin_services import AdminServices

_ROLES = ("owner", "admin", "finance", "developer", "viewer")
_NO_ROLE = "none"


def add_arguments(parser: CommandParser) -> None:
    """Declare `turnpike users …`."""
    create = parser.add_action("create", "make a user; stdout has a one-time link to sign in", create_user)
    create.add_argument("email", metavar="EMAIL")
    create.add_argument("--name", default="", help="default: what stands before the @")
    _add_scope(create, "--role")
    _add_url(create)
    invite = parser.add_action("invite", "invite somebody to a role; stdout has the one-time link", invite_user)
    invite.add_argument("email", metavar="EMAIL")
    _add_scope(invite, "--role", required=True)
    _add_url(invite)
    listing = add_work(parser, "list", "users with their roles", _list)
    listing.add_argument("--tenant", help="with a role in one tenant alone")
    reset = parser.add_action("reset", "a one-time link by which a user sets another password", reset_user)
    reset.add_argument("email", metavar="EMAIL")
    reset.add_argument("--sign-in", action="store_true", help="a link that signs in once, and leaves the password")
    reset.add_argument("--second-factor", action="store_true", help="remove the second factor too: it is lost")
    _add_reason(reset)
    _add_url(reset)
    role = parser.add_action("role", "give a user a role, or none, at the platform, a tenant or a project", change_role)
    role.add_argument("email", metavar="EMAIL")
    role.add_argument("role", choices=[*_ROLES, _NO_ROLE])
    _add_scope(role)
    disable = parser.add_action("disable", "let a user sign in no more, and end its sessions at once", disable_user)
    disable.add_argument("email", metavar="EMAIL")
    disable.add_argument("--undo", action="store_true", help="let it sign in again")
    _add_reason(disable)
    sessions = parser.add_action("sessions", "where a user is signed in", list_sessions)
    sessions.add_argument("email", metavar="EMAIL")
    sessions.add_argument("--revoke", action="store_true", help="sign the user out everywhere")
    _add_reason(sessions)
    for action in (create, invite, reset, role, disable):
        add_second_operator(action)


def _add_scope(parser: CommandParser, role: str = "", *, required: bool = False) -> None:
    if role:
        parser.add_argument(role, choices=_ROLES, required=required, help="at the platform, or where the next two say")
    parser.add_argument("--tenant", help="the role is at this tenant")
    parser.add_argument("--project", help="the role is at this project of the tenant")


def _add_url(parser: CommandParser) -> None:
    parser.add_argument("--url", help="where users reach the gateway; default: where `turnpike serve` listens")


def _add_reason(parser: CommandParser) -> None:
    parser.add_argument("--reason", default="", help="why; kept in the audit log")


@admin_command
async def create_user(admin: AdminServices, arguments: argparse.Namespace) -> None:
    """`turnpike users create EMAIL`."""
    from tenancy.rights.principals import Membership

    if arguments.tenant and not arguments.role:
        raise CommandError("--tenant: say --role ROLE: which role the user has there")
    scope = await _scope(admin, arguments)
    if arguments.role and scope.tenant_id is None:
        await check_appointment(admin, arguments)
    roles = (Membership(arguments.role, scope.tenant_id, scope.project_id),) if arguments.role else ()
    users, name = admin.users, arguments.name or arguments.email.partition("@")[0]
    user = await users.accounts.create(arguments.email, name, users.clock(), roles)
    _print_link(await users.links.create(user.id, "sign_in", users.clock()), admin, arguments)


@admin_command
async def invite_user(admin: AdminServices, arguments: argparse.Namespace) -> None:
    """`turnpike users invite EMAIL --role ROLE`."""
    users, role = admin.users, arguments.role
    scope = await _scope(admin, arguments)
    if scope.tenant_id is None:
        await check_appointment(admin, arguments)
    _print_link(await users.links.invite(_machine(), arguments.email, role, scope, users.clock()), admin, arguments)


async def _list(api: Api, parsed: argparse.Namespace) -> None:
    """`turnpike users list`."""
    users = await api.pages("list_users")
    if parsed.tenant:
        tenant = (await api.call("retrieve_tenant", tenant=parsed.tenant))["id"]
        for user in users["data"]:
            user["memberships"] = [one for one in user["memberships"] if one["tenant"] == tenant]
        users["data"] = [user for user in users["data"] if user["memberships"]]
    if print_json(parsed, users):
        return
    names = await tenant_names(api)
    for tenant in {one["tenant"] for user in users["data"] for one in user["memberships"] if one["project"]}:
        names |= {project["id"]: project["name"] for project in await api.list("list_projects", tenant=tenant)}
    print_objects(
        users["data"],
        {
            **{"e-mail": "email", "name": "name"},
            "state": lambda user: "disabled" if user["disabled_at"] else "active",
            "signs in with": lambda user: (
                " + ".join(
                    text for text, has in (("password", "has_password"), ("code", "has_second_factor")) if user[has]
                )
                or "-"
            ),
            "roles": lambda user: ", ".join(_role_text(one, names) for one in user["memberships"]) or "-",
        },
    )


@admin_command
async def reset_user(admin: AdminServices, arguments: argparse.Namespace) -> None:
    """`turnpike users reset EMAIL`."""
    users = admin.users
    user = await users.accounts.find(arguments.email)
    if user.disabled_at is not None:
        raise CommandError(f"{user.email} is disabled: `turnpike users disable --undo {user.email}` first")
    await _check_operators_of(admin, arguments, user)
    if arguments.second_factor:
        await users.second_factors.remove(user.id, reason=arguments.reason)
    kind: LinkKind = "sign_in" if arguments.sign_in else "password_reset"
    _print_link(await users.links.create(user.id, kind, users.clock(), reason=arguments.reason), admin, arguments)


@admin_command
async def change_role(admin: AdminServices, arguments: argparse.Namespace) -> None:
    """`turnpike users role EMAIL ROLE`."""
    users, scope = admin.users, await _scope(admin, arguments)
    user = await users.accounts.find(arguments.email)
    if arguments.role == _NO_ROLE:
        await users.members.remove(_machine(), user.id, scope)
    else:
        if scope.tenant_id is None:
            await check_appointment(admin, arguments)
        role: Role = arguments.role
        await users.members.set(_machine(), user.id, scope, role, users.clock())
    print(f"{user.email}: {arguments.role} at {arguments.project or arguments.tenant or 'the platform'}")


@admin_command
async def disable_user(admin: AdminServices, arguments: argparse.Namespace) -> None:
    """`turnpike users disable EMAIL`."""
    users = admin.users
    user = await users.accounts.find(arguments.email)
    if arguments.undo:
        await _check_operators_of(admin, arguments, user)
        await users.accounts.enable(user.id, reason=arguments.reason)
    else:
        await users.accounts.disable(user.id, users.clock(), reason=arguments.reason)
    print(f"{user.email} may {'sign in again' if arguments.undo else 'sign in no more'}")


@admin_command
async def list_sessions(admin: AdminServices, arguments: argparse.Namespace) -> None:
    """`turnpike users sessions EMAIL`."""
    from billing.calendar import format_instant
    from tenancy.users.identifiers import session_public_id

    users = admin.users
    user = await users.accounts.find(arguments.email)
    if arguments.revoke:
        print(f"ended {await users.sessions.revoke_all(user.id, users.clock(), reason=arguments.reason)}")
        return
    rows = [
        (
            *(session_public_id(each.id), format_instant(each.created_at), format_instant(each.seen_at)),
            *(each.method, each.address, each.user_agent),
        )
        for each in await users.sessions.alive(user.id, users.clock())
    ]
    print_table(("session", "since", "last seen", "signed in with", "address", "browser"), rows)


async def _check_operators_of(admin: AdminServices, arguments: argparse.Namespace, user: User) -> None:
    """Becoming a user who has a role at the platform takes what making one does."""
    if any(one.tenant_id is None for one in user.memberships):
        await check_appointment(admin, arguments)


async def _scope(admin: AdminServices, arguments: argparse.Namespace) -> Scope:
    """Where a role is held, as `--tenant` and `--project` say. Raises CommandError, NoSuchRecord."""
    from tenancy.users.members import Scope

    if not arguments.tenant:
        if arguments.project:
            raise CommandError("--project: say --tenant NAME: whose project it is")
        return Scope()
    tenant = await admin.tenancy.tenant(arguments.tenant)
    if not arguments.project:
        return Scope(tenant.id)
    return Scope(tenant.id, (await admin.tenancy.project(tenant.id, arguments.project)).id)


def _machine() -> Principal:
    """Who runs commands on this machine, and may do everything."""
    from storage.database.base import new_id
    from tenancy.rights.principals import Membership, Principal
    from turnpike.admin_services import system_user

    return Principal("command", new_id(), system_user(), system_user(), (Membership("owner"),))


def _role_text(one: Object, names: dict[str, str]) -> str:
    if one["tenant"] is None:
        return str(one["role"])
    return f"{one['role']} of {names.get(one['tenant'], '?')}" + (f"/{names[one['project']]}" if one["project"] else "")


def _print_link(link: Link, admin: AdminServices, arguments: argparse.Namespace) -> None:
    from turnpike.settings.data_folder import last_address

    url = arguments.url or last_address(admin.settings)
    if url is None:
        url = f"http://{admin.settings.host}:{admin.settings.port}"
        print(f"no gateway has listened from this data folder: the link names {url}; else say --url", file=sys.stderr)
    print(f"{url.rstrip('/')}{link.path}")
