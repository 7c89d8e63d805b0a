"""`turnpike keys`: make, change, rotate, revoke and list API keys."""

from __future__ import annotations

import argparse
import re
import sys
import time
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from tenancy.rights.permissions import ROLES
from turnpike.command_context import admin_command, print_table
from turnpike.command_line import CommandError, CommandParser
from turnpike.operator_identity import (
    add_second_operator,
    approvals_are_on,
    check_operators,
    check_second_operator,
    is_own_person,
)

if TYPE_CHECKING:
    from uuid import UUID

    from tenancy.rights.delegation import KeyGrant, KeyKind
    from tenancy.rights.key_limits import KeyLimits
    from tenancy.rights.permissions import Role
    from tenancy.tables import ApiKey, Project
    from turnpike.admin_services import AdminServices

_DURATION = re.compile(r"(\d{1,6})([smhd])")
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
_DEFAULT_OVERLAP = "24h"
_LIMITS = {
    "scopes": "what it may do: permissions, or groups such as read, keys, inference (docs/access.md)",
    "networks": "from where it may be used, such as 192.0.2.0/24",
    "models": "served models that it may use",
    "lanes": "lanes that it may use",
}
_NO_LIMIT = "none"


def add_arguments(parser: CommandParser) -> None:
    """Declare `turnpike keys …`."""
    create = parser.add_action("create", "make a key; stdout has the key alone", create_key)
    create.add_argument("--tenant", help="whose key it is")
    create.add_argument("--project", help="the key's project")
    create.add_argument("--create-project", action="store_true", help="make the project if the tenant has none of it")
    create.add_argument("--admin", action="store_true", help="a key to administer the tenant, not for inference")
    create.add_argument("--operator", action="store_true", help="a key for who runs Turnpike (/admin/v1), of no tenant")
    create.add_argument("--name", default="", help="what the key is for; with --operator, who presents it")
    create.add_argument("--user", metavar="EMAIL", help="with --operator: the user who this operator is, if it is one")
    create.add_argument("--role", choices=ROLES, help="of an admin or operator key; default: owner")
    change = parser.add_action(
        "change", "change a key's name, end, role or limits; what is not given stays", change_key
    )
    rotate = parser.add_action("rotate", "a new secret for a key; stdout has the key alone", rotate_key)
    revoke = parser.add_action("revoke", "stop a key, everywhere within a second", revoke_key)
    for action in (change, rotate, revoke):
        action.add_argument("key", help="its public id, the part after tp_live_ (the whole key works too)")
        action.add_argument("--reason", default="", help="why; kept in the audit log")
    change.add_argument("--name", help="what the key is for")
    change.add_argument("--role", choices=ROLES, help="of an admin or operator key")
    for action in (create, change):
        for name, text in _LIMITS.items():
            action.add_argument(f"--{name}", metavar="A,B", help=f"{text}; {_NO_LIMIT}: any")
        action.add_argument("--expires", metavar="WHEN", help="30d, or 2027-01-01 (UTC), or none")
    rotate.add_argument(
        "--overlap",
        metavar="WHEN",
        default=_DEFAULT_OVERLAP,
        help="until when the present secret works too: 24h, 2027-01-01, or 0s for no longer; default: %(default)s",
    )
    for action in (create, change, rotate, revoke):
        action.add_dry_run()
    for action in (create, rotate, change):
        add_second_operator(action)
    listing = parser.add_action("list", "keys by tenant and project, without secrets", list_keys)
    listing.add_argument("--tenant", help="of one tenant alone")
    listing.add_format("json")


@admin_command
async def create_key(admin: AdminServices, arguments: argparse.Namespace) -> None:
    """`turnpike keys create`: the key alone on stdout."""
    from tenancy.rights.delegation import KeyGrant

    _check_kind(arguments)
    limits, expires_at = _limits(arguments), _when(arguments.expires, "--expires")
    role: Role = arguments.role or "owner"
    kind: KeyKind = "operator" if arguments.operator else "project" if arguments.project else "admin"
    KeyGrant(kind, role=role).check_scopes(_scopes(arguments))
    if arguments.operator:
        # Without a second operator's key, one person could become two by a key of another name.
        await check_second_operator(admin, arguments)
        user_id = (await admin.users.accounts.find(arguments.user)).id if arguments.user else None
        if arguments.dry_run:
            return _print_grant(KeyGrant("operator", role=role, limits=limits, expires_at=expires_at))
        making = admin.tenancy.create_operator_key(
            arguments.name, expires_at=expires_at, role=role, limits=limits, user_id=user_id
        )
        print((await making).key)
        return None
    tenant = await admin.tenancy.tenant(arguments.tenant)
    if arguments.dry_run:
        return _print_grant(KeyGrant(kind, tenant.id, None, role, limits, expires_at))
    project = await _project(admin, tenant.id, arguments) if arguments.project else None
    project_id = project.id if project else None
    making = admin.tenancy.create_key(
        tenant.id, project_id, arguments.name, expires_at=expires_at, role=role, limits=limits
    )
    print((await making).key)
    return None


def _check_kind(arguments: argparse.Namespace) -> None:
    if [bool(arguments.project), arguments.admin, arguments.operator].count(True) != 1:
        raise CommandError("say one of --project NAME (for inference), --admin (for the tenant's reports), --operator")
    if arguments.operator == bool(arguments.tenant):
        needed = "--operator is for a key of no tenant" if arguments.operator else "say --tenant NAME: whose key it is"
        raise CommandError(needed)
    if arguments.operator and not arguments.name.strip():
        raise CommandError("say --name WHO: operators are told apart by it")
    if arguments.user and not arguments.operator:
        raise CommandError("--user is for --operator: which user the operator is")
    if arguments.project and arguments.role:
        raise CommandError("--role is for --admin and --operator: the key of a project has none")
    if arguments.operator and (arguments.models or arguments.lanes):
        raise CommandError("--models and --lanes are for inference, which an operator's key is not for")


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
async def change_key(admin: AdminServices, arguments: argparse.Namespace) -> None:
    """`turnpike keys change KEY`."""
    from tenancy.administration.operators import check_two_remain
    from tenancy.repositories import KeyChange, grant_of

    found = await admin.tenancy.key(_public_id(arguments.key))
    await _check_operators_of(admin, arguments, found)
    given = [name for name in _LIMITS if getattr(arguments, name) is not None]
    read, before = _limits(arguments), grant_of(found).limits
    fields = ["permissions" if name == "scopes" else name for name in given]
    limits = msgspec.structs.replace(before, **{name: getattr(read, name) for name in fields})
    change = KeyChange(
        name=msgspec.UNSET if arguments.name is None else arguments.name,
        role=msgspec.UNSET if arguments.role is None else arguments.role,
        limits=limits if given else msgspec.UNSET,
        expires_at=msgspec.UNSET if arguments.expires is None else _when(arguments.expires, "--expires"),
    )
    after = msgspec.structs.replace(
        grant_of(found),
        limits=limits,
        role=arguments.role or grant_of(found).role,
        expires_at=grant_of(found).expires_at if change.expires_at is msgspec.UNSET else change.expires_at,
    )
    after.check_scopes(_scopes(arguments))
    guard = None
    if found.kind == "operator" and await approvals_are_on(admin):
        guard = partial(check_two_remain, public_id=found.public_id, after=after)
        guard(await admin.tenancy.list_operator_keys())
    if all(value is msgspec.UNSET for value in msgspec.structs.astuple(change)):
        raise CommandError("nothing to change: say --name, --role, --expires or a limit")
    if arguments.dry_run:
        return _print_grant(after)
    await admin.tenancy.change_key(found.public_id, change, reason=arguments.reason, guard=guard)
    print(f"changed {found.public_id}")
    return None


@admin_command
async def rotate_key(admin: AdminServices, arguments: argparse.Namespace) -> None:
    """`turnpike keys rotate KEY`: the key with its new secret alone on stdout."""
    found = await admin.tenancy.key(_public_id(arguments.key))
    await _check_operators_of(admin, arguments, found)
    until = _when(arguments.overlap, "--overlap")
    if until is None:
        raise CommandError("--overlap: the present secret has to end; say when, such as 24h")
    ends = datetime.fromtimestamp(until // 1_000_000, UTC)
    if arguments.dry_run:
        print(f"would give {found.public_id} a new secret; the present one until {ends:%Y-%m-%d %H:%M:%S} UTC")
        return
    issued, _ = await admin.tenancy.rotate_key(found.public_id, until=until, reason=arguments.reason)
    print(f"the earlier secret of {found.public_id} works until {ends:%Y-%m-%d %H:%M:%S} UTC", file=sys.stderr)
    print(issued.key)


@admin_command
async def revoke_key(admin: AdminServices, arguments: argparse.Namespace) -> None:
    """`turnpike keys revoke KEY`."""
    from tenancy.administration.operators import check_two_remain

    public_id = _public_id(arguments.key)
    guard = partial(check_two_remain, public_id=public_id) if await approvals_are_on(admin) else None
    if guard is not None:
        guard(await admin.tenancy.list_operator_keys())
    if arguments.dry_run:
        found = await admin.tenancy.key(public_id)
        print(f"would revoke {public_id} ({found.kind}, {found.name or 'without a name'})")
        return
    at_once = await admin.tenancy.revoke(public_id, reason=arguments.reason, guard=guard)
    print(f"revoked {public_id}" + ("" if at_once else "; Redis is away, so within 30 s"))


async def _check_operators_of(admin: AdminServices, arguments: argparse.Namespace, key: ApiKey) -> None:
    """While approvals are on, changing another operator's key takes two: its secret would make one person two."""
    from tenancy.administration.operators import holder_of

    if key.kind == "operator" and await approvals_are_on(admin) and not await is_own_person(admin, holder_of(key)):
        await check_operators(admin, arguments)


@admin_command
async def list_keys(admin: AdminServices, arguments: argparse.Namespace) -> None:
    """`turnpike keys list`."""
    tenants = [await admin.tenancy.tenant(arguments.tenant)] if arguments.tenant else await admin.tenancy.list_tenants()
    rows = []
    for tenant in tenants:
        projects = {project.id: project.name for project in await admin.tenancy.list_projects(tenant.id)}
        keys = await admin.tenancy.list_keys(tenant.id)
        rows += [(key, tenant.name, projects[key.project_id] if key.project_id else "(admin)") for key in keys]
    if not arguments.tenant:
        rows += [(key, "-", "(operator)") for key in await admin.tenancy.list_operator_keys()]
    if arguments.format == "json":
        described = [{"key": key.public_id, "tenant": tenant, "project": of, **_facts(key)} for key, tenant, of in rows]
        print(msgspec.json.format(msgspec.json.encode(described)).decode())
        return
    header = ("key", "tenant", "project", "role", "state", "made", "last used", "limits", "name")
    print_table(header, [_row(key, tenant, project) for key, tenant, project in rows])


def _row(key: ApiKey, tenant: str, project: str) -> tuple[str, ...]:
    from tenancy.repositories import grant_of

    used = f"{key.last_used_at:%Y-%m-%d %H:%M}" if key.last_used_at else "never"
    role = "-" if key.kind == "project" else grant_of(key).role
    limited = ", ".join(_limit_texts(grant_of(key).limits)) or "-"
    made = f"{key.created_at:%Y-%m-%d}"
    return key.public_id, tenant, project, role, _state_until(key), made, used, limited, key.name


def _facts(key: ApiKey) -> dict[str, object]:
    from tenancy.repositories import grant_of

    grant = grant_of(key)
    return {
        "kind": key.kind,
        "name": key.name,
        "role": None if key.kind == "project" else grant.role,
        "state": _state(key),
        "permissions": sorted(grant.permissions()),
        "limits": grant.limits,
        "created_at": key.created_at,
        "expires_at": key.expires_at,
        "last_used_at": key.last_used_at,
        "rotated_at": key.rotated_at,
        "old_secret_until": key.previous_until,
        "old_secret_used_at": key.previous_used_at,
    }


def _state(key: ApiKey) -> str:
    now = datetime.now(UTC)
    if key.revoked_at:
        return "revoked"
    if key.expires_at is not None and key.expires_at <= now:
        return "expired"
    return "two secrets" if key.previous_until is not None and key.previous_until > now else "active"


def _state_until(key: ApiKey) -> str:
    """The state, and when it ends by itself."""
    state = _state(key)
    ends = {"two secrets": key.previous_until, "active": key.expires_at}.get(state)
    return state if ends is None else f"{state} until {ends:%Y-%m-%d %H:%M}"


def _limit_texts(limits: KeyLimits) -> list[str]:
    fields = ("permissions", "networks", "models", "lanes")
    return [f"{name} {' '.join(value)}" for name in fields if (value := getattr(limits, name)) is not None]


def _print_grant(grant: KeyGrant) -> None:
    print(f"checked, nothing written; it would allow: {', '.join(sorted(grant.permissions()))}")
    for text in _limit_texts(grant.limits)[1 if grant.limits.permissions is not None else 0 :]:
        print(f"limited to {text}")


def _limits(arguments: argparse.Namespace) -> KeyLimits:
    """What the flags limit a key to. Raises InvalidLimit, CommandError."""
    from protocol.requests import LANES
    from tenancy.rights.key_limits import key_limits

    lists = {name: _listed(getattr(arguments, name)) for name in _LIMITS}
    for lane in lists["lanes"] or ():
        if lane not in LANES:
            raise CommandError(f"--lanes: {lane!r} is not one of {', '.join(LANES)}")
    return key_limits(**lists)


def _listed(text: str | None) -> list[str] | None:
    return None if text in (None, _NO_LIMIT) else [part.strip() for part in str(text).split(",") if part.strip()]


def _scopes(arguments: argparse.Namespace) -> list[str]:
    return _listed(arguments.scopes) or []


def _when(text: str | None, flag: str) -> int | None:
    """The instant that a duration from now or a day says, in microseconds since the Unix epoch; None for none.

    Raises CommandError, also for a day that has passed.
    """
    from billing.calendar import InvalidInstant, parse_instant

    if text in (None, _NO_LIMIT):
        return None
    assert text is not None
    now = time.time_ns() // 1000
    if match := _DURATION.fullmatch(text):
        if not int(match[1]) and flag == "--expires":
            raise CommandError(f"{flag}: {text!r} is an end at once; `turnpike keys revoke KEY` stops a key")
        return now + int(match[1]) * _SECONDS[match[2]] * 1_000_000
    try:
        moment = None if text.isdecimal() else parse_instant(text)  # 30 is a mistake for 30d, no instant
    except InvalidInstant:
        moment = None
    if moment is None:
        raise CommandError(f"{flag}: {text!r} is neither a duration such as 30d nor a day such as 2027-01-01")
    if moment <= now:
        raise CommandError(f"{flag}: {text!r} has passed")
    return moment


def _public_id(whole_key_or_id: str) -> str:
    from tenancy.keys import PREFIX

    return whole_key_or_id.removeprefix(PREFIX + "_").split("_")[0]
