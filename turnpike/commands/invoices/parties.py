"""`turnpike invoices seller` and `turnpike invoices buyer`: who invoices are from, and who they are for."""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from billing.invoices.errors import NoProfile
from billing.invoices.parties.parties import (
    Buyer,
    InvalidParty,
    Party,
    Role,
    Seller,
    format_rate,
    parse_rate,
    vat_warning,
)
from turnpike.command_context import admin_command, tenant_id_of
from turnpike.command_line import CommandError, CommandParser

if TYPE_CHECKING:
    from turnpike.admin_services import AdminServices


def add_arguments(parser: CommandParser) -> None:
    """Declare `turnpike invoices seller …` and `turnpike invoices buyer …`."""
    sellers = parser.add_action("seller", "legal entities that sell")
    seller = sellers.add_action("set", "make a legal entity, or change the fields that are given", set_seller)
    seller.add_argument("id", metavar="ID", help="a short name, such as acme-eu")
    _add_address(seller)
    seller.add_argument("--registration", help="register and number")
    seller.add_argument("--payment", action="append", metavar="LINE", help="how to pay; may be repeated")
    seller.add_argument("--currency", help="where a tenant has no balance yet; default USD")
    seller.add_argument("--series", help="series of invoices; default INV")
    seller.add_argument("--credit-series", help="series of credit notes; default CN")
    seller.add_argument("--number-format", help="default {series}-{year}-{n:06}")
    seller.add_argument(
        "--rate",
        action="append",
        metavar="COUNTRY=PERCENT",
        help="VAT charged there, such as DE=19; may be repeated; other countries' rates stay",
    )
    text = "charge no VAT there any more; may be repeated"
    seller.add_argument("--remove-rate", action="append", metavar="COUNTRY", help=text)
    show = sellers.add_action("show", "the legal entities", show_sellers)
    show.add_argument("id", nargs="?", metavar="ID", help="one alone")

    buyers = parser.add_action("buyer", "billing profiles of tenants")
    buyer = buyers.add_action("set", "make a tenant's billing profile, or change the fields that are given", set_buyer)
    buyer.add_tenant_first()
    buyer.add_argument("--seller", help="who sells to it; may be left out while there is one seller")
    _add_address(buyer)
    buyer.add_argument("--purchase-order", help="the customer's number of its order")
    buyer.add_argument("--payment-days", type=int, metavar="DAYS", help="until an invoice is due; default 30")
    treatments = ["auto", "standard", "zero", "exempt", "reverse_charge", "intra_community", "export", "outside"]
    buyer.add_argument("--treatment", choices=treatments, help="of tax; default auto: by countries and VAT ids")
    buyer.add_argument("--exemption", metavar="TEXT", help="the reason that invoices shall state")
    buyer.add_argument("--detail", choices=["model", "project"], help="what has lines of its own; default model")
    buyers.add_action("show", "billing profiles", show_buyers).add_tenant_first(optional=True)


def _add_address(parser: CommandParser) -> None:
    parser.add_argument("--name", help="full legal name")
    parser.add_argument("--address", action="append", metavar="LINE", help="a line above the town; may be repeated")
    parser.add_argument("--postal-code", help="before the town")
    parser.add_argument("--city", help="town")
    parser.add_argument("--country", help="by ISO 3166, such as DE")
    parser.add_argument("--vat-id", help="with its country in front, such as DE136695976")
    parser.add_argument("--email", help="for invoices")


@admin_command
async def set_seller(admin: AdminServices, arguments: argparse.Namespace) -> None:
    """`turnpike invoices seller set ID`."""
    from billing.invoices.parties.changing import changed_seller
    from billing.invoices.parties.store import Parties

    parties = Parties(admin.database)
    fields = _fields(Seller, arguments)
    if arguments.rate or arguments.remove_rate:
        before = next((seller for seller in await parties.sellers() if seller.id == arguments.id), None)
        fields["rates"] = _rates(before.rates if before else {}, arguments)
    seller = await changed_seller(parties, arguments.id, fields)
    await parties.set_seller(seller)
    _show(seller.id, seller)
    _warn("seller", seller)


@admin_command
async def show_sellers(admin: AdminServices, arguments: argparse.Namespace) -> None:
    """`turnpike invoices seller show`."""
    from billing.invoices.parties.store import Parties

    sellers = await Parties(admin.database).sellers()
    chosen = [seller for seller in sellers if arguments.id in (None, seller.id)]
    if not chosen:
        raise CommandError("there is no such seller; make one: `turnpike invoices seller set ID …`")
    for seller in chosen:
        _show(seller.id, seller)


@admin_command
async def set_buyer(admin: AdminServices, arguments: argparse.Namespace) -> None:
    """`turnpike invoices buyer set TENANT`."""
    from billing.invoices.parties.changing import changed_buyer
    from billing.invoices.parties.store import Parties

    parties = Parties(admin.database)
    tenant = await admin.tenancy.tenant(arguments.tenant)
    buyer = await changed_buyer(parties, tenant.id, _fields(Buyer, arguments))
    await parties.set_buyer(tenant.id, buyer)
    _show(tenant.name, buyer)
    _warn("buyer", buyer)


@admin_command
async def show_buyers(admin: AdminServices, arguments: argparse.Namespace) -> None:
    """`turnpike invoices buyer show`."""
    from billing.invoices.parties.store import Parties

    names = await admin.tenant_names()
    tenant_id = await tenant_id_of(admin, arguments.tenant)
    buyers = await Parties(admin.database).buyers()
    chosen = {tenant: buyer for tenant, buyer in buyers.items() if tenant_id in (None, tenant)}
    if not chosen:
        raise NoProfile("there is no billing profile; make one: `turnpike invoices buyer set TENANT …`")
    for tenant in sorted(chosen, key=lambda tenant: names[tenant]):
        _show(names[tenant], chosen[tenant])


def _fields(kind: type[Party], arguments: argparse.Namespace) -> dict[str, Any]:
    """The fields that the command line gives."""
    values = {name: getattr(arguments, name, None) for name in kind.__struct_fields__}
    return {name: value for name, value in values.items() if value is not None}


def _rates(before: Mapping[str, int], arguments: argparse.Namespace) -> dict[str, int]:
    """The rates before, with those of `--rate` and without those of `--remove-rate`. Raises InvalidParty."""
    added = [_rate(text) for text in arguments.rate or []]
    removed = arguments.remove_rate or []
    for country, times in Counter(country for country, _ in added).items():
        if times > 1:
            raise InvalidParty("rates", f"--rate gives {country} {times} times: give one rate for each country")
        if country in removed:
            raise InvalidParty("rates", f"--rate sets a rate for {country} and --remove-rate removes it: give one")
    rates = {**before, **dict(added)}
    for country in removed:
        if rates.pop(country, None) is None:
            raise InvalidParty("rates", f"there is no rate for {country} that could be removed")
    return rates


def _rate(text: str) -> tuple[str, int]:
    country, _, percent = text.partition("=")
    if not percent:
        raise InvalidParty("rates", f"{text!r} is not COUNTRY=PERCENT such as DE=19")
    return country, parse_rate(percent)


def _warn(role: Role, party: Party) -> None:
    if warning := vat_warning(role, party):
        print(warning, file=sys.stderr)


def _show(heading: str, party: Party) -> None:
    print(heading)
    for name, value in msgspec.to_builtins(party).items():
        if name == "rates":
            value = [f"{country} {format_rate(rate)} %" for country, rate in value.items()]  # noqa: PLW2901
        for line in value if isinstance(value, list) else [value]:
            if line != "":
                print(f"  {name.replace('_', ' '):16}{line}")
