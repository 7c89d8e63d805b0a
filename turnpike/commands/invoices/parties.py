"""`turnpike invoices seller` and `turnpike invoices buyer`: who invoices are from, and who they are for."""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Mapping
from datetime import date
from typing import TYPE_CHECKING, Any

import msgspec

from billing.invoices.errors import NoProfile
from billing.invoices.parties.dated import DatedParty, facts_of
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
from turnpike.api.actions import add_work
from turnpike.command_context import admin_command, tenant_id_of
from turnpike.command_line import CommandError, CommandParser
from turnpike.commands.invoices import elsewhere
from turnpike.commands.invoices.records import parse_day

if TYPE_CHECKING:
    from turnpike.admin_services import AdminServices


def add_arguments(parser: CommandParser) -> None:
    """Declare `turnpike invoices seller …` and `turnpike invoices buyer …`."""
    sellers = parser.add_action("seller", "legal entities that sell")
    seller = add_work(
        sellers,
        "set",
        "make a legal entity, or change the fields that are given",
        elsewhere.set_seller,
        set_seller,
    )
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
    seller.add_argument("--contact", help="whom to ask about an invoice")
    seller.add_argument("--phone", help="at which number")
    seller.add_argument("--iban", help="the account for credit transfers")
    seller.add_argument("--bic", help="of the account's bank")
    seller.add_argument(
        "--prepayment",
        choices=["advance", "multi_purpose"],
        help="when VAT on credit is due: when it is paid (default of a new one), or when it is used",
    )
    _add_day(seller, "country, VAT id and rates", "why; needed where the seller exists")
    show = add_work(sellers, "show", "the legal entities", elsewhere.show_sellers, show_sellers)
    show.add_argument("id", nargs="?", metavar="ID", help="one alone")

    buyers = parser.add_action("buyer", "billing profiles of tenants")
    buyer = add_work(
        buyers,
        "set",
        "make a tenant's billing profile, or change the fields that are given",
        elsewhere.set_buyer,
        set_buyer,
    )
    buyer.add_tenant_first()
    buyer.add_argument("--seller", help="who sells to it; may be left out while there is one seller")
    _add_address(buyer)
    buyer.add_argument("--purchase-order", help="the customer's number of its order")
    buyer.add_argument("--payment-days", type=int, metavar="DAYS", help="until an invoice is due; default 30")
    treatments = ["auto", "standard", "zero", "exempt", "reverse_charge", "intra_community", "export", "outside"]
    buyer.add_argument("--treatment", choices=treatments, help="of tax; default auto: by countries and VAT ids")
    buyer.add_argument("--exemption", metavar="TEXT", help="the reason that invoices shall state")
    buyer.add_argument("--detail", choices=["model", "project"], help="what has lines of its own; default model")
    buyer.add_argument("--buyer-reference", help="what its e-invoices are routed by, such as a Leitweg-ID")
    profiles = ["", "en16931", "xrechnung", "peppol"]
    text = "of its e-invoices: en16931 (the same as empty), xrechnung or peppol"
    buyer.add_argument("--einvoice", choices=profiles, metavar="PROFILE", help=text)
    _add_day(buyer, "country, VAT id, seller, treatment and exemption", "why")
    show = add_work(buyers, "show", "billing profiles", elsewhere.show_buyers, show_buyers)
    show.add_tenant_first(optional=True)


def _add_day(parser: CommandParser, facts: str, reason: str) -> None:
    text = f"the first day of what changes of {facts}; default today (UTC). All else changes at once"
    parser.add_argument("--from", dest="valid_from", metavar="DATE", help=text)
    parser.add_argument("--reason", default="", metavar="TEXT", help=reason)


def _add_address(parser: CommandParser) -> None:
    parser.add_argument("--name", help="full legal name")
    parser.add_argument("--address", action="append", metavar="LINE", help="a line above the town; may be repeated")
    parser.add_argument("--postal-code", help="before the town")
    parser.add_argument("--city", help="town")
    parser.add_argument("--country", help="by ISO 3166, such as DE")
    parser.add_argument("--vat-id", help="with its country in front, such as DE136695976")
    parser.add_argument("--email", help="for invoices")
    parser.add_argument("--endpoint", metavar="ADDRESS", help="the electronic address for e-invoices")
    parser.add_argument(
        "--endpoint-scheme", metavar="CODE", help="its scheme by the list EAS, such as 0204 for a Leitweg-ID"
    )


@admin_command
async def set_seller(admin: AdminServices, arguments: argparse.Namespace) -> None:
    """`turnpike invoices seller set ID`."""
    from billing.invoices.parties.changing import changed_seller, seller_before
    from billing.invoices.parties.store import Parties

    parties, valid_from = Parties(admin.database), _first_day(arguments)
    fields = _fields(Seller, arguments)
    if arguments.rate or arguments.remove_rate:
        before = await seller_before(parties, arguments.id, valid_from)
        fields["rates"] = _rates(before.rates if before else {}, arguments)
    seller = await changed_seller(parties, arguments.id, fields, valid_from)
    await parties.set_seller(seller, valid_from=valid_from, reason=arguments.reason)
    _show(seller.id, await parties.dated_seller(seller.id))
    _warn("seller", seller)


@admin_command
async def show_sellers(admin: AdminServices, arguments: argparse.Namespace) -> None:
    """`turnpike invoices seller show`."""
    from billing.invoices.parties.store import Parties

    sellers = await Parties(admin.database).dated_sellers()
    chosen = [seller for seller in sellers if arguments.id in (None, seller.party.id)]
    if not chosen:
        raise CommandError("there is no such seller; make one: `turnpike invoices seller set ID …`")
    for seller in chosen:
        _show(seller.party.id, seller)


@admin_command
async def set_buyer(admin: AdminServices, arguments: argparse.Namespace) -> None:
    """`turnpike invoices buyer set TENANT`."""
    from billing.invoices.parties.changing import changed_buyer
    from billing.invoices.parties.store import Parties

    parties, valid_from = Parties(admin.database), _first_day(arguments)
    tenant = await admin.tenancy.tenant(arguments.tenant)
    try:
        buyer = await changed_buyer(parties, tenant.id, _fields(Buyer, arguments), valid_from)
    except InvalidParty as error:
        if error.field != "seller" or arguments.seller is not None:
            raise
        text = "say who sells to it with --seller: `turnpike invoices seller show` names them"
        raise CommandError(text) from error
    await parties.set_buyer(tenant.id, buyer, valid_from=valid_from, reason=arguments.reason)
    _show(tenant.name, await parties.dated_buyer(tenant.id))
    _warn("buyer", buyer)


@admin_command
async def show_buyers(admin: AdminServices, arguments: argparse.Namespace) -> None:
    """`turnpike invoices buyer show`."""
    from billing.invoices.parties.store import Parties

    names = await admin.tenant_names()
    tenant_id = await tenant_id_of(admin, arguments.tenant)
    parties = Parties(admin.database)
    buyers = await parties.buyers()
    chosen = {tenant: buyer for tenant, buyer in buyers.items() if tenant_id in (None, tenant)}
    if not chosen:
        raise NoProfile("there is no billing profile; make one: `turnpike invoices buyer set TENANT …`")
    for tenant in sorted(chosen, key=lambda tenant: names[tenant]):
        _show(names[tenant], await parties.dated_buyer(tenant))


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


def _first_day(arguments: argparse.Namespace) -> date | None:
    return parse_day(arguments.valid_from, "--from") if arguments.valid_from else None


def _show(heading: str, dated: DatedParty[Any]) -> None:
    """A party as of today, then what tax follows from, from which day on, if that ever changed."""
    print(heading)
    _show_fields("  ", msgspec.to_builtins(dated.party))
    for day, party in dated.versions():
        print(f"  from {day}:" if day else "  at first:")
        _show_fields("    ", facts_of(party))


def _show_fields(indent: str, fields: Mapping[str, Any]) -> None:
    for name, value in fields.items():
        if name == "rates":
            value = [f"{country} {format_rate(rate)} %" for country, rate in value.items()]  # noqa: PLW2901
        for line in value if isinstance(value, list) else [value]:
            if line != "":
                print(f"{indent}{name.replace('_', ' '):16}{line}")
