"""`turnpike terms`: set and list contracts that change the list prices."""

from __future__ import annotations

import argparse
import tomllib
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

from turnpike.api.actions import Flag, Object, add_fields, add_work, field_values, print_json, print_objects
from turnpike.api.client import Api
from turnpike.command_context import print_table
from turnpike.command_line import CommandError, CommandParser
from turnpike.operator_identity import add_author


def add_arguments(parser: CommandParser) -> None:
    """Declare `turnpike terms …`."""
    text = "TOML with tiers, discounts, minimum, commitment; empty: list prices"
    put = add_work(parser, "set", "all terms of a tenant, from a period on; see docs/prices.md", _set)
    first = Flag("the first period; default: this one", "from", metavar="YYYY-MM")
    add_fields(put, "set_terms", ("tenant", "terms"), {"terms": Flag(text, "file", _read), "from_period": first})
    add_author(put)
    listing = add_work(parser, "list", "terms by tenant and period", _list)
    listing.add_tenant_first(optional=True)
    listing.add_format("json")


def _read(file: str) -> dict[str, Any]:
    path = Path(file)
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise CommandError(f"cannot read {path}: {error.strerror}") from error
    except ValueError as error:
        raise CommandError(f"{path} is not TOML: {error}") from error
    return content


async def _set(api: Api, parsed: argparse.Namespace) -> None:
    """Print what each month of a commitment asks for and draws, then set the terms."""
    values = field_values(parsed, "set_terms")
    terms = await api.call("set_terms", **values | {"dry_run": True})
    _print_months(terms["schedule"] or [])
    if parsed.api_dry_run:
        print(f"{parsed.tenant}: checked, nothing written")
        return
    terms = await api.call("set_terms", **values)
    print(f"{parsed.tenant}: terms {terms['number']}, from {terms['from_period']} on")


def _print_months(months: list[Object]) -> None:
    rows = [
        (
            month["period"],
            _money(month["asked"]) if Decimal(month["asked"]) else "–",
            _money(month["funded"]),
            "–" if month["drawn"] is None else _money(month["drawn"]),
            _money(month["left"]),
        )
        for month in months
    ]
    if rows:
        print_table(("month", "invoiced", "funded", "drawn", "left"), rows)


async def _list(api: Api, parsed: argparse.Namespace) -> None:
    tenants = [parsed.tenant] if parsed.tenant else [one["name"] for one in await api.list("list_tenants")]
    contracts = [one | {"tenant": name} for name in tenants for one in await api.list("list_terms", tenant=name)]
    contracts.sort(key=lambda one: one["number"])
    if print_json(parsed, contracts):
        return
    columns = {"terms": "number", "tenant": "tenant", "from": "from_period"}
    print_objects(
        contracts, {**columns, "says": lambda one: "; ".join(_says(one["terms"])), "who": "author", "why": "reason"}
    )


def _says(terms: Object) -> Iterator[str]:
    if not any(terms.values()):
        yield "list prices"
    for tiers in terms["tiers"]:
        yield f"{tiers['kind']} {tiers['meter']} of {tiers['model']}"
    for discount in terms["discounts"]:
        yield f"{Decimal(discount['basis_points']) / 100:.2f} % off {', '.join(discount['models']) or 'all'}"
    if least := terms["minimum"]:
        span = (f" from {least['first']}" if least["first"] else "") + (f" to {least['last']}" if least["last"] else "")
        prorated = "" if least["prorated"] else ", not prorated"
        yield f"at least {_money(least['amount'])} a month{span}{prorated}"
    if committed := terms["commitment"]:
        how = "invoiced" if committed["invoiced"] else "not invoiced"
        otherwise = sum((Decimal(payment["amount"]) for payment in committed["payments"]), Decimal())
        paid = f", {_money(otherwise)} of it paid otherwise" if committed["payments"] else ""
        yield f"{_money(committed['amount'])} committed for {committed['first']} to {committed['last']}, {how}{paid}"


def _money(amount: str | Decimal) -> str:
    """An amount without zeros that say nothing, but with two decimal places."""
    text = f"{Decimal(amount):f}"
    whole, _, places = text.partition(".")
    return f"{whole}.{places.rstrip('0').ljust(2, '0')}"
