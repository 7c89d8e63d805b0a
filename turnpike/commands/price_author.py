"""Who changes prices and contracts by a command: an operator, by the key presented, or whoever somebody says it is."""

from __future__ import annotations

import argparse
from pathlib import Path

import msgspec

from billing.platform_settings import APPROVALS
from billing.prices.approval import BY_KEY, PriceSheets
from tenancy.authenticator import AuthenticationFailed
from turnpike.admin_services import AdminServices, system_user
from turnpike.failures import CommandError
from turnpike.settings.settings import Settings

FLAG = "--operator-key-file"
SECOND_FLAG = "--second-operator-key-file"


class Author(msgspec.Struct, frozen=True):
    """Who it is, and the sheets on which their changes are noted down with how that is known."""

    name: str
    sheets: PriceSheets


async def author(admin: AdminServices, settings: Settings, arguments: argparse.Namespace) -> Author:
    """Who runs this command.

    Where it takes two operators, a key is the only way to say so. Raises CommandError.
    """
    if settings.operator_key_file:
        name = await _operator(admin, Path(settings.operator_key_file))
        if arguments.by not in (None, name):
            raise CommandError(f"--by: the key in {settings.operator_key_file} is {name}'s; leave --by out")
        return Author(name, PriceSheets(admin.database, via=f"{BY_KEY}, {system_user()}"))
    if await admin.platform.value(APPROVALS) == "on":
        raise CommandError(
            f"changing prices takes two operators (`turnpike platform show`): present your key, {FLAG} FILE"
        )
    return Author(system_user() if arguments.by is None else str(arguments.by), admin.sheets)


async def two_operators(admin: AdminServices, settings: Settings, arguments: argparse.Namespace) -> list[str]:
    """Who changes what guards the platform: one operator, or two while approvals are on, each by the key presented.

    Raises CommandError.
    """
    if not settings.operator_key_file:
        raise CommandError(f"present your operator's key: {FLAG} FILE")
    names = [await _operator(admin, Path(settings.operator_key_file))]
    if await admin.platform.value(APPROVALS) == "on":
        if not arguments.second_operator_key_file:
            raise CommandError(f"approvals are on, so this takes a second operator's key too: {SECOND_FLAG} FILE")
        names.append(await _operator(admin, Path(arguments.second_operator_key_file), SECOND_FLAG))
        if names[0].casefold() == names[1].casefold():
            raise CommandError(f"{SECOND_FLAG}: both keys are {names[0]}'s; it takes another operator's")
    return names


async def _operator(admin: AdminServices, path: Path, flag: str = FLAG) -> str:
    try:
        return (await admin.authenticator.authenticate_operator(_key_in(path, flag))).name
    except AuthenticationFailed as error:
        make = "`turnpike keys create --operator --name WHO`"
        raise CommandError(f"{flag}: {path} holds no operator's key that is valid: {make}") from error


def _key_in(path: Path, flag: str) -> str:
    try:
        return path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise CommandError(f"{flag}: cannot read {path}: {error}") from error
