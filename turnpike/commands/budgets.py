"""`turnpike budgets …`: what a tenant, its projects, keys and tags may use in a month, in a day or in all."""

from __future__ import annotations

import argparse
from uuid import UUID

from billing.accounts.budgets import InvalidBudget
from billing.budgets.windows import BudgetScope, resets
from billing.money import format_pico, parse_amount
from storage.free_text import counted
from tenancy.repositories import NoSuchRecord
from turnpike.admin_services import AdminServices
from turnpike.commands.running import currency_of, table, with_admin_services
from turnpike.failures import CommandError
from turnpike.settings.settings import Settings


def set_budget(settings: Settings, arguments: argparse.Namespace) -> int:
    """`turnpike budgets set TENANT LIMIT`."""
    if sum(given is not None for given in (arguments.project, arguments.key, arguments.tag)) > 1:
        raise CommandError("a budget is for one of --project, --key and --tag, or without them for the tenant")

    async def work(admin: AdminServices) -> int:
        tenant = await admin.tenancy.tenant(arguments.tenant)
        scope, subject = await _subject(admin, tenant.id, arguments)
        name = arguments.project or arguments.key or arguments.tag
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
        )
        done = "would set" if arguments.dry_run else f"set budget {identity}:"
        whose = f"the {scope} {name}" if name else tenant.name
        print(f"{done} {format_pico(limit)} {currency} for {whose}, window {arguments.window}, {arguments.action}")
        return 0

    return with_admin_services(settings, work)


def list_budgets(settings: Settings, arguments: argparse.Namespace) -> int:
    """`turnpike budgets list TENANT`."""

    async def work(admin: AdminServices) -> int:
        tenant = await admin.tenancy.tenant(arguments.tenant)
        projects = {str(project.id): project.name for project in await admin.tenancy.list_projects(tenant.id)}
        keys = {str(key.id): key.public_id for key in await admin.tenancy.list_keys(tenant.id)}
        rows = []
        for window in await admin.budgets.list(tenant.id):
            end = resets(window)
            money = (format_pico(pico) for pico in (window.limit_pico, window.spent, window.held))
            whose = projects.get(window.subject) or keys.get(window.subject) or window.subject
            until = f"{end:%Y-%m-%d}" if end else "never"
            rows.append((window.budget_id, window.scope, whose, window.span, *money, window.action, until))
        table(("budget", "scope", "subject", "window", "limit", "spent", "held", "action", "resets"), rows)
        return 0

    return with_admin_services(settings, work)


def remove_budget(settings: Settings, arguments: argparse.Namespace) -> int:
    """`turnpike budgets remove TENANT BUDGET`."""

    async def work(admin: AdminServices) -> int:
        tenant = await admin.tenancy.tenant(arguments.tenant)
        try:
            identity = UUID(arguments.budget)
        except ValueError as error:
            raise CommandError(
                f"{arguments.budget!r} is no budget's id: see `turnpike budgets list {tenant.name}`"
            ) from error
        if arguments.dry_run:
            found = [window for window in await admin.budgets.list(tenant.id) if window.budget_id == identity]
            print(f"would remove {counted(len(found), 'budget')}")
            return 0
        await admin.budgets.remove(tenant.id, identity)
        print(f"removed {identity}")
        return 0

    return with_admin_services(settings, work)


async def _subject(admin: AdminServices, tenant_id: UUID, arguments: argparse.Namespace) -> tuple[BudgetScope, str]:
    if arguments.project is not None:
        return "project", str((await admin.tenancy.project(tenant_id, arguments.project)).id)
    if arguments.key is not None:
        found = [key for key in await admin.tenancy.list_keys(tenant_id) if key.public_id == arguments.key]
        if not found:
            raise NoSuchRecord(f"the tenant has no key {arguments.key}")
        return "key", str(found[0].id)
    return ("tenant", "") if arguments.tag is None else ("tag", arguments.tag)


def _thresholds(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(percent) for percent in text.split(","))
    except ValueError as error:
        raise InvalidBudget(f"thresholds are whole percentages such as 50,80,100, not {text!r}") from error
