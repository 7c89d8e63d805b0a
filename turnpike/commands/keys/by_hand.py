"""`turnpike keys` on the data folder here, where what takes two operators can be done with both keys."""

from __future__ import annotations

import argparse
import sys
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from turnpike.command_context import admin_command
from turnpike.command_line import CommandError
from turnpike.commands.keys.typed import BATCHES, LIMITS, check_kind, listed, public_id, when
from turnpike.operator_identity import (
    approvals_are_on,
    check_appointment,
    may_change_own,
)

if TYPE_CHECKING:
    from uuid import UUID

    from tenancy.rights.delegation import KeyGrant, KeyKind
    from tenancy.rights.key_limits import KeyLimits
    from tenancy.rights.permissions import Role
    from tenancy.tables import ApiKey, Project
    from turnpike.admin_services import AdminServices


@admin_command
async def create_key(admin: AdminServices, arguments: argparse.Namespace) -> None:
    """`turnpike keys create`: the key alone on stdout."""
    from tenancy.rights.delegation import KeyGrant

    check_kind(arguments)
    limits, expires_at = _limits(arguments), when(arguments.expires, "--expires")
    role: Role = arguments.role or "owner"
    kind: KeyKind = "operator" if arguments.operator else "project" if arguments.project else "admin"
    KeyGrant(kind, role=role).check_scopes(_scopes(arguments))
    if arguments.operator:
        grant = KeyGrant("operator", role=role, limits=limits, expires_at=expires_at)
        # Without a second operator's key, one person could become two by a key of another name.
        await check_appointment(admin, arguments, grant)
        user_id = (await admin.users.accounts.find(arguments.user)).id if arguments.user else None
        if arguments.dry_run:
            return _print_grant(grant)
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

    found = await admin.tenancy.key(public_id(arguments.key))
    given = [name for name in LIMITS if getattr(arguments, name) is not None]
    read, before = _limits(arguments), grant_of(found).limits
    fields = ["permissions" if name == "scopes" else name for name in given]
    limits = msgspec.structs.replace(before, **{name: getattr(read, name) for name in fields})
    change = KeyChange(
        name=msgspec.UNSET if arguments.name is None else arguments.name,
        role=msgspec.UNSET if arguments.role is None else arguments.role,
        limits=limits if given else msgspec.UNSET,
        expires_at=msgspec.UNSET if arguments.expires is None else when(arguments.expires, "--expires"),
    )
    after = msgspec.structs.replace(
        grant_of(found),
        limits=limits,
        role=arguments.role or grant_of(found).role,
        expires_at=grant_of(found).expires_at if change.expires_at is msgspec.UNSET else change.expires_at,
    )
    after.check_scopes(_scopes(arguments))
    await _check_operators_of(admin, arguments, found, after)
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
    from tenancy.repositories import grant_of

    found = await admin.tenancy.key(public_id(arguments.key))
    await _check_operators_of(admin, arguments, found, grant_of(found))
    until = when(arguments.overlap, "--overlap")
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

    key_id = public_id(arguments.key)
    guard = partial(check_two_remain, public_id=key_id) if await approvals_are_on(admin) else None
    if guard is not None:
        guard(await admin.tenancy.list_operator_keys())
    if arguments.dry_run:
        found = await admin.tenancy.key(key_id)
        print(f"would revoke {key_id} ({found.kind}, {found.name or 'without a name'})")
        return
    leaked: bool = arguments.leaked
    at_once = await admin.tenancy.revoke(key_id, reason=arguments.reason, guard=guard, leaked=leaked)
    when = "" if at_once else "; Redis is away, so within 30 s"
    print(f"revoked {key_id}{when}{'' if leaked else BATCHES}")


async def _check_operators_of(
    admin: AdminServices, arguments: argparse.Namespace, key: ApiKey, after: KeyGrant
) -> None:
    """Who may change an operator's key, or get its new secret, so that it gives this: as for a new one, since the
    secret would make one person two. Operators change their own keys alone, as long as these give no more than they
    have."""
    from tenancy.administration.operators import holder_of

    if key.kind == "operator" and not await may_change_own(admin, holder_of(key), after):
        await check_appointment(admin, arguments, after)


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

    lists = {name: listed(getattr(arguments, name)) for name in LIMITS}
    for lane in lists["lanes"] or ():
        if lane not in LANES:
            raise CommandError(f"--lanes: {lane!r} is not one of {', '.join(LANES)}")
    return key_limits(**lists)


def _scopes(arguments: argparse.Namespace) -> list[str]:
    return listed(arguments.scopes) or []
