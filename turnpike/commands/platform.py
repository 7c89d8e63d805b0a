"""`turnpike platform …`: what holds for the whole platform, kept in its database."""

from __future__ import annotations

import argparse

from billing.calendar import format_instant
from billing.platform_settings import APPROVALS, VALUES, check_platform_setting
from turnpike.admin_services import AdminServices, system_user
from turnpike.commands.price_author import two_operators
from turnpike.commands.running import table, with_admin_services
from turnpike.failures import CommandError
from turnpike.settings.settings import Settings


def show_platform(settings: Settings, _arguments: argparse.Namespace) -> int:
    """`turnpike platform show`."""

    async def work(admin: AdminServices) -> int:
        table(("setting", "value"), [(name, await admin.platform.value(name)) for name in VALUES])
        for change in await admin.platform.history():
            why = f": {change.reason}" if change.reason else ""
            when = format_instant(change.at)
            print(f"{when}  {change.name} {change.value} by {change.actor} ({change.via}){why}")
        return 0

    return with_admin_services(settings, work)


def set_platform(settings: Settings, arguments: argparse.Namespace) -> int:
    """`turnpike platform set NAME VALUE`."""
    check_platform_setting(arguments.name, arguments.value)

    async def work(admin: AdminServices) -> int:
        if arguments.name == APPROVALS and arguments.value == "on":
            operators = {key.name.casefold() for key in await admin.tenancy.list_operator_keys() if not key.revoked_at}
            if len(operators) < 2:
                raise CommandError(
                    "approvals take two operators, each with a key: `turnpike keys create --operator --name WHO`"
                )
        who = await two_operators(admin, settings, arguments)
        via = f"operator keys, {system_user()}"
        await admin.platform.set(
            arguments.name, arguments.value, by=" and ".join(who), via=via, reason=arguments.reason
        )
        print(f"{arguments.name}: {arguments.value}")
        return 0

    return with_admin_services(settings, work)
