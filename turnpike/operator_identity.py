"""Who changes prices, contract terms and platform settings by a command: an operator, proven by a key."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from audit_log.actors import Actor, are_two_people, become, current_actor
from turnpike.command_line import CommandError, CommandParser

if TYPE_CHECKING:
    from billing.prices.approval import PriceSheets
    from tenancy.rights.delegation import KeyGrant
    from tenancy.rights.permissions import Permission
    from tenancy.rights.principals import Principal
    from turnpike.admin_services import AdminServices

FLAG = "--operator-key-file"
SECOND_FLAG = "--second-operator-key-file"


class Author(msgspec.Struct, frozen=True):
    """Who makes a change, and the price sheets that record with it how this is known."""

    name: str
    sheets: PriceSheets
    operator: Principal | None = None
    """Who that is, if a key proves it."""


def add_author(parser: CommandParser) -> None:
    """Take who makes a change, and why."""
    parser.add_argument(
        "--by",
        metavar="WHO",
        help="who does this; default: whose key --operator-key-file holds, else USER@HOST. Only the key proves it. The "
        "USER@HOST that ran the command is recorded too",
    )
    parser.add_argument("--reason", default="", help="why; kept in the log")


def add_second_operator(parser: CommandParser) -> None:
    """Take the key of a second operator."""
    parser.add_argument(
        SECOND_FLAG,
        metavar="FILE",
        help=f"key of a second operator, beside {FLAG}: needed while approvals are on",
    )


async def approvals_are_on(admin: AdminServices) -> bool:
    """Whether it takes two operators to change a price."""
    from billing.platform_settings import APPROVALS

    return await admin.platform.value(APPROVALS) == "on"


async def find_author(
    admin: AdminServices, arguments: argparse.Namespace, permission: Permission = "prices.propose"
) -> Author:
    """Who runs this command: the operator whose key is presented, else who `--by` names, else USER@HOST.

    A key has to allow `permission`. While approvals are on, only a key will do. Raises CommandError.
    """
    from billing.prices.approval import PriceSheets, via_of_sheets
    from turnpike.admin_services import system_user

    key_file = admin.settings.operator_key_file
    if key_file:
        operator = await _operator(admin, Path(key_file), permission)
        if arguments.by not in (None, operator.name):
            raise CommandError(f"--by: the key in {key_file} is {operator.name}'s; leave --by out")
        sheets = PriceSheets(admin.database, via=via_of_sheets(current_actor()))
        return Author(operator.name, sheets, operator)
    if await approvals_are_on(admin):
        raise CommandError(
            f"changing prices takes two operators (`turnpike platform show`): present your key, {FLAG} FILE"
        )
    return Author(act_for(arguments.by) or system_user(), admin.sheets)


def act_for(name: str | None) -> str | None:
    """Let the audit log have this name for who runs the command, if one is given; return it. It proves nothing, and
    what is known of who runs the command is recorded too."""
    if name is not None:
        become(msgspec.structs.replace(current_actor(), name=name))
    return name


async def find_caller(admin: AdminServices) -> tuple[Principal, Actor]:
    """Who gives this command: the operator whose key is in `--operator-key-file`, else USER@HOST, who may do
    everything. Raises CommandError for a key that is not valid."""
    from storage.database.base import new_id
    from tenancy.rights.principals import Membership, Principal
    from turnpike.admin_services import system_user

    user, key_file = system_user(), admin.settings.operator_key_file
    if not key_file:
        return Principal("command", new_id(), user, user, (Membership("owner"),)), Actor("command", user, user)
    operator = await _operator(admin, Path(key_file), None)
    return operator, Actor("operator_key", operator.public_id, operator.name, through=user, user=operator.user)


async def check_operators(admin: AdminServices, arguments: argparse.Namespace) -> list[str]:
    """The operators who change what guards the platform, each by the key presented: one, or two while approvals are on.

    Raises CommandError.
    """
    if not admin.settings.operator_key_file:
        raise CommandError(f"present your operator's key: {FLAG} FILE")
    operators = [await _operator(admin, Path(admin.settings.operator_key_file), "platform.write")]
    if await approvals_are_on(admin):
        if not arguments.second_operator_key_file:
            raise CommandError(f"approvals are on, so this takes a second operator's key too: {SECOND_FLAG} FILE")
        second = Path(arguments.second_operator_key_file)
        operators.append(await _operator(admin, second, "platform.write", SECOND_FLAG))
        if not are_two_people(operators[0].person, operators[1].person):
            raise CommandError(f"{SECOND_FLAG}: both keys are {operators[0].name}'s, or may be; it takes another's")
        actor = current_actor()
        become(msgspec.structs.replace(actor, through=f"{actor.through}, with the key of {operators[1].name}"))
    return [operator.name for operator in operators]


async def check_appointment(admin: AdminServices, arguments: argparse.Namespace, grant: KeyGrant | None = None) -> None:
    """Who may make, or take over, somebody who has a role at the platform: two operators while approvals are on; else
    one, as soon as an operator has a key for it. Before that, whoever has this machine.

    `grant`: what the key gives that is made or changed: not more than one operator has who does it alone. Raises
    CommandError, GivesTooMuch.
    """
    from tenancy.administration.operators import TO_APPOINT, anybody_appoints
    from tenancy.rights.delegation import check_delegation

    if await approvals_are_on(admin):
        await check_operators(admin, arguments)
    elif admin.settings.operator_key_file or anybody_appoints(await admin.tenancy.list_operator_keys()):
        if not admin.settings.operator_key_file:
            raise CommandError(
                f"operators have keys, so this takes one: {FLAG} FILE; keys that are lost: `turnpike keys revoke KEY`"
            )
        operator = await own_operator(admin, TO_APPOINT)
        if grant is not None:
            check_delegation(operator, grant)


async def own_operator(admin: AdminServices, permission: Permission) -> Principal:
    """The operator whose key is presented, which has to allow this. Raises CommandError."""
    key_file = admin.settings.operator_key_file
    if not key_file:
        raise CommandError(f"present your operator's key: {FLAG} FILE")
    return await _operator(admin, Path(key_file), permission)


async def may_change_own(admin: AdminServices, person: str, grant: KeyGrant) -> bool:
    """Whether the operator whose key is presented is this person (`Principal.person`), who has all that this gives.
    Raises CommandError."""
    from tenancy.rights.delegation import GivesTooMuch, check_delegation

    key_file = admin.settings.operator_key_file
    if not key_file or (operator := await _operator(admin, Path(key_file), None)).person != person:
        return False
    try:
        check_delegation(operator, grant)
    except GivesTooMuch:
        return False
    return True


async def _operator(admin: AdminServices, path: Path, permission: Permission | None, flag: str = FLAG) -> Principal:
    """The operator whose key the file holds; the key has to allow `permission`."""
    from tenancy.authenticator import AuthenticationFailed

    try:
        operator = await admin.authenticator.authenticate_operator(_read_key(path, flag))
    except AuthenticationFailed as error:
        make = "`turnpike keys create --operator --name WHO`"
        raise CommandError(f"{flag}: {path} holds no operator's key that is valid: {make}") from error
    if permission is not None and not operator.may(permission):
        raise CommandError(f"{flag}: the key of {operator.name} does not allow this ({permission})")
    return operator


def _read_key(path: Path, flag: str) -> str:
    try:
        return path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise CommandError(f"{flag}: cannot read {path}: {error}") from error
