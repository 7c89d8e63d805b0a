"""`turnpike terms …`: what tenants' contracts change about the list prices."""

from __future__ import annotations

import argparse
import json
import time
import tomllib
from pathlib import Path

import msgspec

from billing.money import format_pico
from billing.rating.terms import ContractTerms, parse_terms
from turnpike.admin_services import AdminServices
from turnpike.commands.price_author import author
from turnpike.commands.running import table, with_admin_services
from turnpike.failures import CommandError
from turnpike.settings.settings import Settings


def set_terms(settings: Settings, arguments: argparse.Namespace) -> int:
    """`turnpike terms set`."""
    path = Path(arguments.file)
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise CommandError(f"cannot read {path}: {error.strerror}") from error
    except ValueError as error:
        raise CommandError(f"{path} is not TOML: {error}") from error
    terms = parse_terms(content)
    period = arguments.from_period or time.strftime("%Y-%m", time.gmtime())

    async def work(admin: AdminServices) -> int:
        tenant = await admin.tenancy.tenant(arguments.tenant)
        if arguments.dry_run:
            await admin.contracts.check(tenant.id, terms, period)
            print(f"{tenant.name}: checked, nothing written")
            return 0
        who = await author(admin, settings, arguments)
        number = await admin.contracts.put(tenant.id, terms, period, who.name, arguments.reason)
        print(f"{tenant.name}: terms {number}, from {period} on")
        return 0

    return with_admin_services(settings, work)


def list_terms(settings: Settings, arguments: argparse.Namespace) -> int:
    """`turnpike terms list`."""

    async def work(admin: AdminServices) -> int:
        names = {tenant.id: tenant.name for tenant in await admin.tenancy.list_tenants()}
        wanted = (await admin.tenancy.tenant(arguments.tenant)).id if arguments.tenant else None
        found = await admin.contracts.list(wanted)
        if arguments.format == "json":
            rows = [msgspec.to_builtins(each) | {"tenant": names[each.tenant_id]} for each in found]
            print(json.dumps(rows, indent=2, default=str))
            return 0
        table(
            ("terms", "tenant", "from", "says", "who", "why"),
            [
                (each.id, names[each.tenant_id], each.from_period, _says(each.terms), each.author, each.reason)
                for each in found
            ],
        )
        return 0

    return with_admin_services(settings, work)


def _says(terms: ContractTerms) -> str:
    parts = [f"{tiers.kind} {tiers.meter} of {tiers.model}" for tiers in terms.tiers]
    for discount in terms.discounts:
        percent = f"{discount.basis_points // 100}.{discount.basis_points % 100:02d}"
        parts.append(f"{percent} % off {', '.join(discount.models) or 'all'}")
    if terms.minimum is not None:
        parts.append(f"at least {_money(terms.minimum.amount_pico)}")
    if terms.commitment is not None:
        of = terms.commitment
        parts.append(f"{_money(of.amount_pico)} committed for {of.first} to {of.last}")
    return "; ".join(parts) or "list prices"


def _money(pico: int) -> str:
    return format_pico(pico).rstrip("0").rstrip(".")
