"""`turnpike tenants`: make and list tenants, and change what money they have."""

from __future__ import annotations

import argparse
import re
from datetime import UTC, datetime
from typing import TYPE_CHECKING
from uuid import UUID

import msgspec

from billing.money import format_pico, parse_amount
from turnpike.command_context import (
    admin_command,
    currency_of,
    print_table,
    with_admin_services,
)
from turnpike.command_line import CommandError, CommandParser
from turnpike.settings.settings import Settings

if TYPE_CHECKING:
    from tenancy.tables import Tenant
    from turnpike.admin_services import AdminServices

_AMOUNTS = ("amount_pico", "balance_pico", "invoiced_pico", "carry_pico")
_RESPONSE_ID = re.compile(r"^[a-z]+[-_]([0-9a-f]{32})$")
"""A request's id in its response, such as chatcmpl-… or msg_…"""


def add_arguments(parser: CommandParser) -> None:
    """Declare `turnpike tenants …`."""
    parser.add_action("create", "make a tenant", create_tenant).add_tenant_first()
    credit = parser.add_action("credit", "record money that a tenant paid", credit_tenant)
    grant = parser.add_action("grant", "give a tenant money that it did not pay", grant_tenant)
    refund = parser.add_action("refund", "record that unused paid money was paid back", refund_tenant)
    adjust = parser.add_action("adjust", "correct one request's usage by a new event", adjust_usage)
    statement = parser.add_action("statement", "what changed the balance, with the balance after each", show_statement)
    line = parser.add_action("credit-line", "how much may be used before it is paid; 0: prepaid", set_credit_line)
    parser.add_action("list", "tenants with their balances", list_tenants)
    suspend = parser.add_action("suspend", "refuse all its requests, everywhere within a second", suspend_tenant)
    resume = parser.add_action("resume", "admit its requests again", resume_tenant)
    for action in (credit, grant, refund, adjust, statement, line, suspend, resume):
        action.add_tenant_first()
    for action in (suspend, resume):
        action.add_argument("--project", help="of this project alone")
        action.add_argument("--reason", default="", help="why; kept in the audit log")
        action.add_dry_run()
    suspend.add_argument(
        "--running",
        choices=["finish", "end"],
        default="finish",
        help="what runs now finishes, or ends, billed for what was delivered; default: %(default)s",
    )
    for action in (credit, grant, refund, line):
        action.add_argument("amount", help="in the currency's units, such as 25.00")
    for action in (credit, grant, refund):
        action.add_argument("--currency", help="such as EUR; default: the balance's, else that of its prices")
    for action in (credit, grant):
        action.add_argument("--priority", type=int, help="lowest is used first; default: 50 if given, 100 if paid")
        action.add_argument("--expires", metavar="DAY", help="unused money is lost then, such as 2027-01-01 (UTC)")
    grant.add_argument("--for-model", help="for requests to this model only")
    grant.add_argument("--for-project", help="for requests of this project only")
    adjust.add_argument("event", help="the id of the usage event: the request's id")
    adjust.add_argument("units", nargs="+", metavar="METER=UNITS", help="what to add, such as output=-120")
    reasons = {"manual payment": credit, "goodwill": grant, "refund": refund, "correction": adjust}
    for reason, action in reasons.items():
        action.add_argument("--reason", default=reason, help="what the statement says; default: %(default)s")
        action.add_argument("--id", help="an id of your own (a UUIDv7); used again, the same money counts once")
    for action in (*reasons.values(), line):
        action.add_dry_run()
    statement.add_argument("--since", help="the first day, such as 2026-11-01 (UTC)")
    statement.add_argument("--until", help="the day after the last")
    statement.add_argument("--every", action="store_true", help="each posting of usage; default: a day's usage is one")
    statement.add_format("json")


@admin_command
async def create_tenant(admin: AdminServices, arguments: argparse.Namespace) -> None:
    """`turnpike tenants create NAME`."""
    tenant, project = await admin.tenancy.open_tenant(arguments.tenant)
    print(
        f"made tenant {tenant.name} with project {project.name}; it has no money yet: "
        f"`turnpike tenants credit {tenant.name} AMOUNT`"
    )


@admin_command
async def list_tenants(admin: AdminServices, _arguments: argparse.Namespace) -> None:
    """`turnpike tenants list`."""
    rows = []
    names = ("available", "held", "restricted", "credit_line")
    for tenant in await admin.tenancy.list_tenants():
        balance = await admin.balances.get_or_empty(tenant.id)
        money = [format_pico(getattr(balance, name)) for name in names]
        projects = ", ".join(project.name for project in await admin.tenancy.list_projects(tenant.id))
        state = "suspended" if tenant.suspended_at else "active"
        rows.append((tenant.name, state, *money, balance.currency, projects))
    print_table(("tenant", "state", "available", "held", "restricted", "credit line", "currency", "projects"), rows)


@admin_command
async def suspend_tenant(admin: AdminServices, arguments: argparse.Namespace) -> None:
    """`turnpike tenants suspend NAME`."""
    from tenancy.administration.suspension import Suspensions

    tenant_id, project_id, name = await _suspendable(admin, arguments)
    if arguments.dry_run:
        print(f"would suspend {name}; what runs would {arguments.running}; nothing was written")
        return
    suspensions = Suspensions(admin.database, admin.bus)
    at_once = await suspensions.suspend(tenant_id, project_id, running=arguments.running, reason=arguments.reason)
    print(f"suspended {name}" + ("" if at_once else "; Redis is away, so within some seconds"))


@admin_command
async def resume_tenant(admin: AdminServices, arguments: argparse.Namespace) -> None:
    """`turnpike tenants resume NAME`."""
    from tenancy.administration.suspension import Suspensions

    tenant_id, project_id, name = await _suspendable(admin, arguments)
    if arguments.dry_run:
        print(f"would resume {name}; nothing was written")
        return
    at_once = await Suspensions(admin.database, admin.bus).resume(tenant_id, project_id, reason=arguments.reason)
    print(f"resumed {name}" + ("" if at_once else "; Redis is away, so within some seconds"))


async def _suspendable(admin: AdminServices, arguments: argparse.Namespace) -> tuple[UUID, UUID | None, str]:
    tenant = await admin.tenancy.tenant(arguments.tenant)
    if not arguments.project:
        return tenant.id, None, f"tenant {tenant.name}"
    project = await admin.tenancy.project(tenant.id, arguments.project)
    return tenant.id, project.id, f"project {project.name} of {tenant.name}"


@admin_command
async def set_credit_line(admin: AdminServices, arguments: argparse.Namespace) -> None:
    """`turnpike tenants credit-line NAME AMOUNT`."""
    amount = 0 if arguments.amount.strip("0.") == "" else parse_amount(arguments.amount)
    tenant = await admin.tenancy.tenant(arguments.tenant)
    before = await admin.balances.get_or_empty(tenant.id)
    if arguments.dry_run:
        change = f"from {format_pico(before.credit_line)} to {format_pico(amount)} {before.currency}"
        print(f"would change the credit line {change}")
        return
    after = await admin.balances.set_credit_line(tenant.id, amount, before.currency)
    print(f"{tenant.name} has {format_pico(after.available)} {after.currency}, of it on credit {format_pico(amount)}")


@admin_command
async def credit_tenant(admin: AdminServices, arguments: argparse.Namespace) -> None:
    """`turnpike tenants credit NAME AMOUNT`: money that was paid."""
    await _grant(admin, arguments, "paid")


@admin_command
async def grant_tenant(admin: AdminServices, arguments: argparse.Namespace) -> None:
    """`turnpike tenants grant NAME AMOUNT`: money that is given."""
    project_id = None
    if arguments.for_project:
        tenant = await admin.tenancy.tenant(arguments.tenant)
        ids = {project.name: project.id for project in await admin.tenancy.list_projects(tenant.id)}
        if arguments.for_project not in ids:
            raise CommandError(f"--for-project: tenant {tenant.name} has no project {arguments.for_project}")
        project_id = ids[arguments.for_project]
    await _grant(admin, arguments, "promo", arguments.for_model, project_id)


async def _grant(
    admin: AdminServices,
    arguments: argparse.Namespace,
    kind: str,
    model: str | None = None,
    project_id: UUID | None = None,
) -> None:
    tenant = await admin.tenancy.tenant(arguments.tenant)
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
        expires_at=_day(arguments.expires),
        model=model,
        project_id=project_id,
        dry_run=arguments.dry_run,
    )
    restricted = model is not None or project_id is not None  # such money is not part of what is available
    await _print_balance(admin, tenant, arguments, 0 if restricted or repeated else amount)


@admin_command
async def refund_tenant(admin: AdminServices, arguments: argparse.Namespace) -> None:
    """`turnpike tenants refund NAME AMOUNT`: paid money, unused and not reserved, that was paid back."""
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
    await _print_balance(admin, tenant, arguments, 0 if repeated else -amount)


def adjust_usage(settings: Settings, arguments: argparse.Namespace) -> int:
    """`turnpike tenants adjust NAME EVENT METER=UNITS…`: a correction of one request's usage, as a new event."""
    from billing.accounts.adjustments import adjust

    units = dict(_units(part) for part in arguments.units)

    async def work(admin: AdminServices) -> None:
        tenant = await admin.tenancy.tenant(arguments.tenant)
        event = await adjust(
            admin.database,
            admin.prices,
            tenant.id,
            _uuid(_RESPONSE_ID.sub(r"\1", arguments.event), "EVENT"),
            units,
            reason=arguments.reason,
            adjustment_id=_identity(arguments),
            dry_run=arguments.dry_run,
        )
        would_be = "would be " if arguments.dry_run else ""
        print(f"{would_be}{format_pico(event.cost_pico)} in {event.period}, event {event.id}")
        await _print_balance(admin, tenant, arguments, None)

    return with_admin_services(settings, work)


@admin_command
async def show_statement(admin: AdminServices, arguments: argparse.Namespace) -> None:
    """`turnpike tenants statement NAME`: what changed the balance, with the balance after each."""
    from billing.accounts.statements import by_day, statement
    from storage.database.base import from_instant

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
        return
    print_table(
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


async def _print_balance(
    admin: AdminServices, tenant: Tenant, arguments: argparse.Namespace, change: int | None
) -> None:
    """Print what the tenant has; after a dry run, what it would have by `change`, if that is known beforehand."""
    balance = await admin.balances.get_or_empty(tenant.id)
    available, currency = balance.available, getattr(arguments, "currency", None) or balance.currency
    if not arguments.dry_run:
        print(f"{tenant.name} has {format_pico(available)} {currency}")
    elif change is None:
        print(f"{tenant.name} has {format_pico(available)} {currency}, and nothing was written")
    else:
        print(f"{tenant.name} would have {format_pico(available + change)} {currency}; nothing was written")


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
    """The instant at which a day begins, in UTC. Raises CommandError."""
    from storage.database.base import to_instant

    if text is None:
        return None
    try:
        return to_instant(datetime.strptime(text, "%Y-%m-%d").replace(tzinfo=UTC))
    except ValueError:
        raise CommandError(f"{text!r} is not a day such as 2026-12-31") from None
