"""`turnpike tenants credit|grant|refund|adjust|statement`: a tenant's money in and out."""

from __future__ import annotations

import argparse
import re
from datetime import UTC, datetime
from uuid import UUID

import msgspec

from billing.accounts.adjustments import adjust
from billing.accounts.statements import by_day, statement
from billing.money import format_pico, parse_amount
from storage.database.base import from_instant, to_instant
from turnpike.admin_services import AdminServices
from turnpike.commands.running import CURRENCY, currency_of, table, with_admin_services
from turnpike.failures import CommandError
from turnpike.settings.settings import Settings

_AMOUNTS = ("amount_pico", "balance_pico", "invoiced_pico", "carry_pico")
_ANSWERED = re.compile(r"^[a-z]+-([0-9a-f]{32})$")
"""A request's id as its answer has it, such as chatcmpl-…"""


def credit_tenant(settings: Settings, arguments: argparse.Namespace) -> int:
    """`turnpike tenants credit NAME AMOUNT`: money that was paid."""
    return _grant(settings, arguments, "paid")


def grant_tenant(settings: Settings, arguments: argparse.Namespace) -> int:
    """`turnpike tenants grant NAME AMOUNT`: money that is given."""
    return _grant(settings, arguments, "promo")


def _grant(settings: Settings, arguments: argparse.Namespace, kind: str) -> int:
    async def work(admin: AdminServices) -> int:
        tenant = await admin.tenancy.tenant(arguments.tenant)
        project, model = None, getattr(arguments, "for_model", None)
        if getattr(arguments, "for_project", None):
            found = {project.name: project.id for project in await admin.tenancy.list_projects(tenant.id)}
            if arguments.for_project not in found:
                raise CommandError(f"--for-project: tenant {tenant.name} has no project {arguments.for_project}")
            project = found[arguments.for_project]
        amount, identity = parse_amount(arguments.amount), _identity(arguments)
        repeated = identity is not None and await admin.balances.posted(identity)
        await admin.balances.grant(
            tenant.id,
            amount,
            arguments.currency or await currency_of(admin, tenant.id),
            kind=kind,
            reason=arguments.reason,
            grant_id=identity,
            priority=arguments.priority,
            expires_at=_expiry(arguments.expires),
            model=model,
            project_id=project,
            dry_run=arguments.dry_run,
        )
        everywhere = model is None and project is None  # what is for one thing only is not in what the tenant has
        return await _said(admin, tenant.id, tenant.name, arguments, amount if everywhere and not repeated else 0)

    return with_admin_services(settings, work)


def refund_tenant(settings: Settings, arguments: argparse.Namespace) -> int:
    """`turnpike tenants refund NAME AMOUNT`: paid money, unused and not reserved, that was paid back."""

    async def work(admin: AdminServices) -> int:
        tenant = await admin.tenancy.tenant(arguments.tenant)
        amount, identity = parse_amount(arguments.amount), _identity(arguments)
        repeated = identity is not None and await admin.balances.posted(identity)
        await admin.balances.refund(
            tenant.id,
            amount,
            arguments.currency or await currency_of(admin, tenant.id),
            reason=arguments.reason,
            refund_id=identity,
            dry_run=arguments.dry_run,
        )
        return await _said(admin, tenant.id, tenant.name, arguments, 0 if repeated else -amount)

    return with_admin_services(settings, work)


def adjust_usage(settings: Settings, arguments: argparse.Namespace) -> int:
    """`turnpike tenants adjust NAME EVENT METER=UNITS…`: a correction of one request's usage, as a new event."""
    units = dict(_units(part) for part in arguments.units)

    async def work(admin: AdminServices) -> int:
        tenant = await admin.tenancy.tenant(arguments.tenant)
        made = await adjust(
            admin.database,
            admin.prices,
            tenant.id,
            _uuid(_ANSWERED.sub(r"\1", arguments.event), "EVENT"),
            units,
            reason=arguments.reason,
            adjustment_id=_identity(arguments),
            dry_run=arguments.dry_run,
        )
        print(
            f"{'would be ' if arguments.dry_run else ''}{format_pico(made.cost_pico)} in {made.period}, event {made.id}"
        )
        return await _said(admin, tenant.id, tenant.name, arguments, None)

    return with_admin_services(settings, work)


def show_statement(settings: Settings, arguments: argparse.Namespace) -> int:
    """`turnpike tenants statement NAME`: what changed the balance, with the balance after each."""

    async def work(admin: AdminServices) -> int:
        tenant = await admin.tenancy.tenant(arguments.tenant)
        lines = await statement(admin.database, tenant.id, _day(arguments.since) or 0, _day(arguments.until) or 2**62)
        lines = lines if arguments.every else by_day(lines)
        if arguments.format == "json":
            rows = [
                msgspec.structs.asdict(line) | {name: format_pico(getattr(line, name)) for name in _AMOUNTS}
                for line in lines
            ]
            named = [{name.removesuffix("_pico"): value for name, value in row.items()} for row in rows]
            print(msgspec.json.format(msgspec.json.encode(named)).decode())
            return 0
        table(
            ("posted", "what", "period", "amount", "balance", "invoiced", "carried", "memo"),
            [
                (
                    from_instant(line.posted_at).strftime("%Y-%m-%d %H:%M:%S"),
                    line.kind,
                    line.period,
                    *(format_pico(getattr(line, name)) for name in _AMOUNTS),
                    line.memo,
                )
                for line in lines
            ],
        )
        if lines and (invoiced := lines[-1].invoiced_pico):
            print(
                f"The balance is less {format_pico(invoiced)} that invoices ask for beyond usage (VAT, fees, "
                "rounding); `turnpike tenants list` does not take that off."
            )
        return 0

    return with_admin_services(settings, work)


async def _said(
    admin: AdminServices, tenant_id: UUID, name: str, arguments: argparse.Namespace, change: int | None
) -> int:
    """Say what the tenant has; after a dry run, what it would have by a `change` that is known beforehand."""
    balance = await admin.balances.get(tenant_id)
    has = balance.available if balance else 0
    currency = balance.currency if balance else getattr(arguments, "currency", None) or CURRENCY
    if not arguments.dry_run:
        print(f"{name} has {format_pico(has)} {currency}")
    elif change is None:
        print(f"{name} has {format_pico(has)} {currency}, and nothing was written")
    else:
        print(f"{name} would have {format_pico(has + change)} {currency}; nothing was written")
    return 0


def _units(text: str) -> tuple[str, int]:
    meter, _, units = text.partition("=")
    try:
        return meter, int(units)
    except ValueError:
        raise CommandError(f"{text!r} is not METER=UNITS, such as output=-120") from None


def _uuid(text: str, name: str) -> UUID:
    try:
        return UUID(text)
    except ValueError:
        raise CommandError(f"{name}: {text!r} is not a UUID") from None


def _identity(arguments: argparse.Namespace) -> UUID | None:
    return None if arguments.id is None else _uuid(arguments.id, "--id")


def _day(text: str | None) -> int | None:
    if text is None:
        return None
    try:
        return to_instant(datetime.strptime(text, "%Y-%m-%d").replace(tzinfo=UTC))
    except ValueError:
        raise CommandError(f"{text!r} is not a day such as 2026-12-31") from None


_expiry = _day
