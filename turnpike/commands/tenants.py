"""`turnpike tenants …`: customers and what they have."""

from __future__ import annotations

import argparse

from billing.money import format_pico, parse_amount
from turnpike.admin_services import AdminServices
from turnpike.commands.running import CURRENCY, DEFAULT_PROJECT, table, with_admin_services
from turnpike.settings.settings import Settings


def create_tenant(settings: Settings, arguments: argparse.Namespace) -> int:
    """`turnpike tenants create NAME`."""

    async def work(admin: AdminServices) -> int:
        tenant = await admin.tenancy.create_tenant(arguments.tenant)
        await admin.tenancy.create_project(tenant.id, DEFAULT_PROJECT)
        print(
            f"made tenant {tenant.name} with project {DEFAULT_PROJECT}; it has no money yet: "
            f"`turnpike tenants credit {tenant.name} AMOUNT`"
        )
        return 0

    return with_admin_services(settings, work)


def set_credit_line(settings: Settings, arguments: argparse.Namespace) -> int:
    """`turnpike tenants credit-line NAME AMOUNT`."""
    amount = 0 if arguments.amount.strip("0.") == "" else parse_amount(arguments.amount)

    async def work(admin: AdminServices) -> int:
        tenant = await admin.tenancy.tenant(arguments.tenant)
        before = await admin.balances.get(tenant.id)
        currency = before.currency if before else CURRENCY
        if arguments.dry_run:
            line = before.credit_line if before else 0
            print(f"would change the credit line from {format_pico(line)} to {format_pico(amount)} {currency}")
            return 0
        after = await admin.balances.set_credit_line(tenant.id, amount, currency)
        print(
            f"{tenant.name} has {format_pico(after.available)} {after.currency}, of it on credit {format_pico(amount)}"
        )
        return 0

    return with_admin_services(settings, work)


def list_tenants(settings: Settings, arguments: argparse.Namespace) -> int:
    """`turnpike tenants list`."""

    async def work(admin: AdminServices) -> int:
        rows = []
        for tenant in await admin.tenancy.list_tenants():
            balance = await admin.balances.get(tenant.id)
            names = ("available", "held", "restricted", "credit_line")
            money = [format_pico(getattr(balance, name) if balance else 0) for name in names]
            projects = ", ".join(project.name for project in await admin.tenancy.list_projects(tenant.id))
            rows.append((tenant.name, *money, balance.currency if balance else CURRENCY, projects))
        table(("tenant", "available", "held", "restricted", "credit line", "currency", "projects"), rows)
        return 0

    return with_admin_services(settings, work)
