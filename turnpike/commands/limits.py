"""`turnpike limits`: how much a project or key may use a minute, and at once."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from turnpike.command_context import DEFAULT_PROJECT, admin_command, print_table
from turnpike.command_line import CommandError, CommandParser

if TYPE_CHECKING:
    from tenancy.rate_limits import LimitSubject
    from turnpike.admin_services import AdminServices

_FLAGS = {
    "requests": ("requests_per_minute", "requests a minute"),
    "input-tokens": ("input_tokens_per_minute", "input tokens a minute that are not read from the cache"),
    "output-tokens": ("output_tokens_per_minute", "output tokens a minute"),
    "concurrent": ("concurrent_requests", "requests that run at once"),
}
"""Flag → the limit that it sets, and what that is."""
_NONE = "none"


def add_arguments(parser: CommandParser) -> None:
    """Declare `turnpike limits …`."""
    put = parser.add_action("set", "set limits of a project or key; those not named stay", set_limits)
    _add_subject(put)
    for flag, (name, text) in _FLAGS.items():
        put.add_argument(f"--{flag}", dest=name, metavar="NUMBER", help=f"{text}; {_NONE}: no limit")
    put.add_argument("--reason", default="", help="is recorded")
    listing = parser.add_action("list", "limits by tenant and project", list_limits)
    listing.add_tenant_first(optional=True)
    remove = parser.add_action("remove", "remove all limits of a project or key", remove_limits)
    _add_subject(remove)
    remove.add_argument("--reason", default="", help="is recorded")


def _add_subject(action: CommandParser) -> None:
    action.add_tenant_first()
    action.add_argument("--project", help=f"the project; default: {DEFAULT_PROJECT}")
    action.add_argument("--key", help="one key instead: its public id")


@admin_command
async def set_limits(admin: AdminServices, arguments: argparse.Namespace) -> None:
    """`turnpike limits set TENANT`."""
    from msgspec.structs import asdict

    from tenancy.rate_limits import Limits

    named = {name: getattr(arguments, name) for name, _ in _FLAGS.values() if getattr(arguments, name) is not None}
    if not named:
        raise CommandError(f"say at least one of {', '.join(f'--{flag} NUMBER' for flag in _FLAGS)}")
    subject = await _subject(admin, arguments)
    found = await admin.limits.get(subject)
    before = asdict(found.limits if found else Limits())
    limits = Limits(**before | {name: _number(name, text) for name, text in named.items()})
    with _command_acts():
        await admin.limits.set(subject, limits, arguments.reason)
    said = ", ".join(f"{_shown(getattr(limits, name))} {text}" for name, text in _FLAGS.values())
    print(f"set: {said}")


@admin_command
async def list_limits(admin: AdminServices, arguments: argparse.Namespace) -> None:
    """`turnpike limits list`."""
    tenant = await admin.tenancy.tenant(arguments.tenant) if arguments.tenant else None
    rows = [
        (
            one.tenant,
            one.project,
            one.key or "(project)",
            *(_shown(getattr(one.limits, name)) for name, _ in _FLAGS.values()),
        )
        for one in await admin.limits.list(tenant_id=tenant.id if tenant else None)
    ]
    print_table(("tenant", "project", "key", *(flag.replace("-", " ") for flag in _FLAGS)), rows)


@admin_command
async def remove_limits(admin: AdminServices, arguments: argparse.Namespace) -> None:
    """`turnpike limits remove TENANT`."""
    subject = await _subject(admin, arguments)
    with _command_acts():
        removed = await admin.limits.remove(subject, arguments.reason)
    if removed is None:
        raise CommandError("no limits are set there: see `turnpike limits list`")
    print("removed")


@contextmanager
def _command_acts() -> Iterator[None]:
    """Changes are this command's, unless it is known already who runs it."""
    from audit_log.actors import Actor, NoActor, acting_as, current_actor
    from turnpike.admin_services import system_user

    try:
        current_actor()
    except NoActor:
        user = system_user()
        with acting_as(Actor("command", user, user)):
            yield
    else:
        yield


async def _subject(admin: AdminServices, arguments: argparse.Namespace) -> LimitSubject:
    """The project or key that is meant. Raises CommandError, NoSuchRecord."""
    tenant = await admin.tenancy.tenant(arguments.tenant)
    if arguments.key is None:
        project = await admin.tenancy.project(tenant.id, arguments.project or DEFAULT_PROJECT)
        return await admin.limits.subject_of_project(project.id)
    if arguments.project is not None:
        raise CommandError("limits are of --project or of --key, not of both")
    subject = await admin.limits.subject_of_key(arguments.key)
    if subject.tenant_id != tenant.id:
        raise CommandError(f"tenant {tenant.name} has no key {arguments.key}")
    return subject


def _number(name: str, text: str) -> int | None:
    if text == _NONE:
        return None
    if not (text.isascii() and text.isdigit()):
        raise CommandError(f"{name}: a whole number or {_NONE}, not {text!r}")
    return int(text[:20])


def _shown(limit: int | None) -> str:
    return "-" if limit is None else str(limit)
