"""Who changes prices and contracts by a command: an operator, by the key presented, or whoever somebody says it is."""

from __future__ import annotations

import argparse
from pathlib import Path

import msgspec

from billing.prices.approval import PriceSheets
from gateway.tenancy.authenticator import AuthenticationFailed
from turnpike.failures import CommandError
from turnpike.office import Office, system_user
from turnpike.settings import Settings

FLAG = "--operator-key-file"


class Author(msgspec.Struct, frozen=True):
    """Who it is, and the sheets on which their changes are noted down with how that is known."""

    name: str
    sheets: PriceSheets


async def author(office: Office, settings: Settings, arguments: argparse.Namespace) -> Author:
    """Who runs this command.

    Where it takes two people and operators have keys, a key is the only way to say so. Raises CommandError.
    """
    if settings.operator_key_file:
        name = await _operator(office, Path(settings.operator_key_file))
        if arguments.by not in (None, name):
            raise CommandError(f"--by: the key in {settings.operator_key_file} is {name}'s; leave --by out")
        via = f"operator key, {system_user()}"
        return Author(name, PriceSheets(office.database, settings.price_approvals, via=via))
    if settings.price_approvals > 1 and any(not key.revoked_at for key in await office.tenancy.list_operator_keys()):
        raise CommandError(
            "changing prices takes two people (TURNPIKE_PRICE_APPROVALS), and operators have keys: say who you are by "
            f"yours, {FLAG} FILE"
        )
    return Author(system_user() if arguments.by is None else str(arguments.by), office.sheets)


async def _operator(office: Office, path: Path) -> str:
    try:
        return (await office.authenticator.authenticate_operator(_key_in(path))).name
    except AuthenticationFailed as error:
        make = "turnpike keys create --operator --name WHO"
        raise CommandError(f"{FLAG}: {path} holds no operator's key that is valid: {make}") from error


def _key_in(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise CommandError(f"{FLAG}: cannot read {path}: {error}") from error
