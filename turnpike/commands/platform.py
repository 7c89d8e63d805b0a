"""`turnpike platform`: show and change the settings of the whole platform."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

import msgspec

from turnpike.api.actions import Object, add_work, print_json, print_objects
from turnpike.api.client import Api
from turnpike.command_context import admin_command, print_table, with_admin_services
from turnpike.command_line import CommandError, CommandParser
from turnpike.operator_identity import add_second_operator, approvals_are_on, check_operators, own_operator
from turnpike.settings.settings import Settings

if TYPE_CHECKING:
    from turnpike.admin_services import AdminServices


def add_arguments(parser: CommandParser) -> None:
    """Declare `turnpike platform …`."""
    add_work(parser, "show", "the settings, and who set them", _show, show_platform)
    put = add_work(parser, "set", "change a setting", _set, set_platform)
    put.add_argument(
        "name",
        metavar="NAME",
        help="approvals: whether prices, terms, grants, credit notes and these settings take two operators; "
        "grant_approval_over: from which amount on grants do",
    )
    put.add_argument("value", metavar="VALUE", help="on or off; an amount such as 100.00")
    put.add_argument("--reason", default="", help="why; kept in the log")
    add_second_operator(put)


async def _show(api: Api, parsed: argparse.Namespace) -> None:
    """`turnpike platform show` at a gateway elsewhere, which does not say whether two operators remain."""
    settings = await api.call("list_settings")
    if print_json(parsed, settings):
        return
    print_objects(settings["data"], {"setting": "name", "value": "value"})
    for change in reversed(await api.list("list_changes")):
        _print_change(change)


async def _set(api: Api, parsed: argparse.Namespace) -> None:
    """`turnpike platform set` at a gateway elsewhere: with one operator's key."""
    setting = await api.call("change_setting", name=parsed.name, value=parsed.value, reason=parsed.reason)
    print(f"{setting['name']}: {setting['value']}")


def _print_change(change: Object) -> None:
    why = f": {change['reason']}" if change["reason"] else ""
    print(f"{change['at']}  {change['name']} {change['value']} by {change['actor']} ({change['via']}){why}")


@admin_command
async def show_platform(admin: AdminServices, _arguments: argparse.Namespace) -> None:
    """`turnpike platform show`."""
    from billing.calendar import format_instant
    from billing.platform_settings import NAMES
    from tenancy.administration.operators import two_decide

    print_table(("setting", "value"), [(name, await admin.platform.value(name)) for name in NAMES])
    for change in await admin.platform.history():
        _print_change(msgspec.structs.asdict(change) | {"at": format_instant(change.at)})
    if await approvals_are_on(admin) and not two_decide(await admin.tenancy.list_operator_keys()):
        print(
            "approvals are on, and fewer than two operators have an owner's key that does not expire: without two, "
            "nobody can approve anything or turn approvals off (`turnpike keys change KEY --expires none`)"
        )


def set_platform(settings: Settings, arguments: argparse.Namespace) -> int:
    """`turnpike platform set NAME VALUE`."""
    from billing.approvals.kinds import SettingArguments
    from billing.pending_changes import propose
    from billing.platform_settings import APPROVALS, check_platform_setting
    from tenancy.administration.operators import two_decide
    from turnpike.admin_services import system_user

    check_platform_setting(arguments.name, arguments.value)

    async def work(admin: AdminServices) -> None:
        turns_on = arguments.name == APPROVALS and arguments.value == "on"
        if turns_on and not two_decide(await admin.tenancy.list_operator_keys()):
            raise CommandError(
                "approvals take two operators, each with an owner's key that does not expire: `turnpike keys create "
                "--operator --name WHO`; the keys of both name a user (--user), or neither's"
            )
        if await approvals_are_on(admin) and not arguments.second_operator_key_file:
            await own_operator(admin, "platform.write")
            change = SettingArguments(arguments.name, arguments.value)
            summary = f"{arguments.name}: {arguments.value}"
            await propose(admin.database, "platform_setting.set", change, summary, reason=arguments.reason)
        by = " and ".join(await check_operators(admin, arguments))
        via = f"operator keys, {system_user()}"
        await admin.platform.set(arguments.name, arguments.value, by=by, via=via, reason=arguments.reason)
        print(f"{arguments.name}: {arguments.value}")

    return with_admin_services(settings, work)
