"""`turnpike terms`: set and list contracts that change the list prices."""

from __future__ import annotations

import argparse
import json
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from turnpike.command_context import admin_command, print_table, tenant_id_of, this_month, with_admin_services
from turnpike.command_line import CommandError, CommandParser
from turnpike.operator_identity import add_author, find_author
from turnpike.settings.settings import Settings

if TYPE_CHECKING:
    from billing.rating.commitments import CommitmentMonth
    from billing.rating.terms import ContractTerms
    from turnpike.admin_services import AdminServices


def add_arguments(parser: CommandParser) -> None:
    """Declare `turnpike terms …`."""
    put = parser.add_action("set", "all terms of a tenant, from a period on; see docs/prices.md", set_terms)
    put.add_tenant_first()
    put.add_argument("file", metavar="FILE", help="TOML with tiers, discounts, minimum, commitment; empty: list prices")
    put.add_argument("--from", dest="from_period", metavar="YYYY-MM", help="the first period; default: this one")
    put.add_dry_run()
    add_author(put)
    listing = parser.add_action("list", "terms by tenant and period", list_terms)
    listing.add_tenant_first(optional=True)
    listing.add_format("json")


def set_terms(settings: Settings, arguments: argparse.Namespace) -> int:
    """`turnpike terms set`."""
    from billing.rating.rated_lines import preview_commitment
    from billing.rating.terms import parse_terms

    path = Path(arguments.file)
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise CommandError(f"cannot read {path}: {error.strerror}") from error
    except ValueError as error:
        raise CommandError(f"{path} is not TOML: {error}") from error
    terms = parse_terms(content)
    period = arguments.from_period or this_month()

    async def work(admin: AdminServices) -> None:
        tenant = await admin.tenancy.tenant(arguments.tenant)
        await admin.contracts.check(tenant.id, terms, period)
        _print_months(await preview_commitment(admin.database, admin.prices, tenant.id, terms, period))
        if arguments.dry_run:
            print(f"{tenant.name}: checked, nothing written")
            return
        author = await find_author(admin, arguments, "terms.write")
        number = await admin.contracts.put(tenant.id, terms, period, author.name, arguments.reason)
        print(f"{tenant.name}: terms {number}, from {period} on")

    return with_admin_services(settings, work)


@admin_command
async def list_terms(admin: AdminServices, arguments: argparse.Namespace) -> None:
    """`turnpike terms list`."""
    names = await admin.tenant_names()
    contracts = await admin.contracts.list(await tenant_id_of(admin, arguments.tenant))
    if arguments.format == "json":
        rows = [msgspec.to_builtins(entry) | {"tenant": names[entry.tenant_id]} for entry in contracts]
        print(json.dumps(rows, indent=2, default=str))
        return
    print_table(
        ("terms", "tenant", "from", "says", "who", "why"),
        [
            (entry.id, names[entry.tenant_id], entry.from_period, _summary(entry.terms), entry.author, entry.reason)
            for entry in contracts
        ],
    )


def _print_months(months: list[CommitmentMonth]) -> None:
    """What each month of a commitment asks for and draws; nothing for terms without one."""
    from billing.rating.lines import money_text

    if not months:
        return
    rows = []
    for month in months:
        drawn = "–" if month.drawn is None else money_text(month.drawn)
        asked = money_text(month.asked) if month.asked else "–"
        rows.append((month.period, asked, money_text(month.funded), drawn, money_text(month.left)))
    print_table(("month", "invoiced", "funded", "drawn", "left"), rows)


def _summary(terms: ContractTerms) -> str:
    from billing.rating.lines import money_text

    parts = [f"{tiers.kind} {tiers.meter} of {tiers.model}" for tiers in terms.tiers]
    for discount in terms.discounts:
        percent = f"{discount.basis_points // 100}.{discount.basis_points % 100:02d}"
        parts.append(f"{percent} % off {', '.join(discount.models) or 'all'}")
    if terms.minimum is not None:
        least = terms.minimum
        span = (f" from {least.first}" if least.first else "") + (f" to {least.last}" if least.last else "")
        parts.append(
            f"at least {money_text(least.amount_pico)} a month{span}{'' if least.prorated else ', not prorated'}"
        )
    if terms.commitment is not None:
        committed = terms.commitment
        how = "invoiced" if committed.invoiced else "not invoiced"
        paid = f", {money_text(committed.paid_pico)} of it paid otherwise" if committed.payments else ""
        amount, first, last = money_text(committed.amount_pico), committed.first, committed.last
        parts.append(f"{amount} committed for {first} to {last}, {how}{paid}")
    return "; ".join(parts) or "list prices"
