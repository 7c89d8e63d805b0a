"""`turnpike budgets`: limit what a tenant, project, key or tag may use."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING
from uuid import UUID

from billing.money import format_pico, parse_amount
from storage.database.public_ids import PREFIXES, public_id
from storage.free_text import counted
from turnpike.command_context import admin_command, currency_of, print_table, with_admin_services
from turnpike.command_line import CommandError, CommandParser
from turnpike.settings.settings import Settings

if TYPE_CHECKING:
    from billing.budgets.windows import BudgetScope
    from turnpike.admin_services import AdminServices


def add_arguments(parser: CommandParser) -> None:
    """Declare `turnpike budgets …`."""
    put = parser.add_action("set", "set a budget, or change it; it counts from now on", set_budget)
    put.add_tenant_first()
    put.add_argument("limit", help="in the currency's units, such as 25.00")
    put.add_argument("--project", help="for this project alone")
    put.add_argument("--key", help="for this key alone: its public id")
    put.add_argument("--tag", help="for requests whose metadata.tag is this")
    put.add_argument("--window", choices=["month", "day", "total"], default="month", help="in UTC; default: month")
    put.add_argument("--action", choices=["block", "notify"], default="block", help="at the limit; default: block")
    put.add_argument(
        "--thresholds",
        default="50,80,100",
        metavar="PERCENT",
        help="parts of the limit at which webhooks are sent; default: %(default)s",
    )
    put.add_dry_run()
    parser.add_action("list", "budgets with what was used of them", list_budgets).add_tenant_first()
    remove = parser.add_action("remove", "end a budget", remove_budget)
    remove.add_tenant_first()
    remove.add_argument("budget", help="its id, from the list")
    remove.add_dry_run()


def set_budget(settings: Settings, arguments: argparse.Namespace) -> int:
    """`turnpike budgets set TENANT LIMIT`."""
    subjects = [name for name in (arguments.project, arguments.key, arguments.tag) if name is not None]
    if len(subjects) > 1:
        raise CommandError("a budget is for one of --project, --key and --tag, or without them for the tenant")

    async def work(admin: AdminServices) -> None:
        tenant = await admin.tenancy.tenant(arguments.tenant)
        scope, subject = await _subject(admin, tenant.id, arguments)
        limit = parse_amount(arguments.limit)
        currency = await currency_of(admin, tenant.id)
        identity = await admin.budgets.set(
            tenant.id,
            scope,
            subject,
            arguments.window,
            limit_pico=limit,
            currency=currency,
            action=arguments.action,
            thresholds=_thresholds(arguments.thresholds),
            dry_run=arguments.dry_run,
            key=arguments.key or "",
        )
        done = "would set" if arguments.dry_run else f"set budget {public_id('budget', identity)}:"
        whose = f"the {scope} {subjects[0]}" if subjects else tenant.name
        print(f"{done} {format_pico(limit)} {currency} for {whose}, window {arguments.window}, {arguments.action}")

    return with_admin_services(settings, work)


@admin_command
async def list_budgets(admin: AdminServices, arguments: argparse.Namespace) -> None:
    """`turnpike budgets list TENANT`."""
    from billing.budgets.windows import resets

    tenant = await admin.tenancy.tenant(arguments.tenant)
    projects = {str(project.id): project.name for project in await admin.tenancy.list_projects(tenant.id)}
    keys = {str(key.id): key.public_id for key in await admin.tenancy.list_keys(tenant.id)}
    rows = []
    for window in await admin.budgets.list(tenant.id):
        end = resets(window)
        money = (format_pico(pico) for pico in (window.limit_pico, window.spent, window.held))
        whose = projects.get(window.subject) or keys.get(window.subject) or window.subject
        until = f"{end:%Y-%m-%d}" if end else "never"
        name = public_id("budget", window.budget_id)
        rows.append((name, window.scope, whose, window.span, *money, window.action, until))
    print_table(("budget", "scope", "subject", "window", "limit", "spent", "held", "action", "resets"), rows)


@admin_command
async def remove_budget(admin: AdminServices, arguments: argparse.Namespace) -> None:
    """`turnpike budgets remove TENANT BUDGET`."""
    tenant = await admin.tenancy.tenant(arguments.tenant)
    try:
        identity = UUID(arguments.budget.removeprefix(PREFIXES["budget"]))
    except ValueError as error:
        raise CommandError(
            f"{arguments.budget!r} is no budget's id: see `turnpike budgets list {tenant.name}`"
        ) from error
    if arguments.dry_run:
        number = sum(window.budget_id == identity for window in await admin.budgets.list(tenant.id))
        print(f"would remove {counted(number, 'budget')}")
    else:
        keys = {str(key.id): key.public_id for key in await admin.tenancy.list_keys(tenant.id)}
        subjects = {window.budget_id: window.subject for window in await admin.budgets.list(tenant.id)}
        await admin.budgets.remove(tenant.id, identity, key=keys.get(subjects.get(identity, ""), ""))
        print(f"removed {public_id('budget', identity)}")


async def _subject(admin: AdminServices, tenant_id: UUID, arguments: argparse.Namespace) -> tuple[BudgetScope, str]:
    """What the budget is for: its scope, and the id of the project or key, or the tag."""
    if arguments.project is not None:
        return "project", str((await admin.tenancy.project(tenant_id, arguments.project)).id)
    if arguments.key is not None:
        for key in await admin.tenancy.list_keys(tenant_id):
            if key.public_id == arguments.key:
                return "key", str(key.id)
        raise CommandError(f"the tenant has no key {arguments.key}")
    return ("tenant", "") if arguments.tag is None else ("tag", arguments.tag)


def _thresholds(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(percent) for percent in text.split(","))
    except ValueError as error:
        raise CommandError(f"thresholds are whole percentages such as 50,80,100, not {text!r}") from error
