"""`turnpike invoices seller …` and `turnpike invoices buyer …`: who invoices are from, and for whom."""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Mapping
from typing import Any

import msgspec

from billing.invoices.errors import NoProfile
from billing.invoices.parties import Buyer, InvalidParty, Party, Role, Seller, format_rate, parse_rate, vat_warning
from billing.invoices.party_store import Parties
from billing.invoices.vat_ids import compact
from turnpike.admin_services import AdminServices
from turnpike.commands.running import with_admin_services
from turnpike.failures import CommandError
from turnpike.settings.settings import Settings

_NEEDED = ("name", "address", "city", "country")


def set_seller(settings: Settings, arguments: argparse.Namespace) -> int:
    """`turnpike invoices seller set ID`."""

    async def work(admin: AdminServices) -> int:
        parties = Parties(admin.database)
        given = _given(Seller, arguments)
        before = next((seller for seller in await parties.sellers() if seller.id == arguments.id), None)
        if arguments.rate or arguments.remove_rate:
            given["rates"] = _rates(before.rates if before else {}, arguments)
        seller = msgspec.structs.replace(before, **given) if before else _made(Seller, given)
        await parties.set_seller(seller)
        _show(seller.id, seller)
        _warn("seller", seller)
        return 0

    return with_admin_services(settings, work)


def show_sellers(settings: Settings, arguments: argparse.Namespace) -> int:
    """`turnpike invoices seller show`."""

    async def work(admin: AdminServices) -> int:
        sellers = await Parties(admin.database).sellers()
        chosen = [seller for seller in sellers if arguments.id in (None, seller.id)]
        if not chosen:
            raise CommandError("there is no such seller; make one: `turnpike invoices seller set ID …`")
        for seller in chosen:
            _show(seller.id, seller)
        return 0

    return with_admin_services(settings, work)


def set_buyer(settings: Settings, arguments: argparse.Namespace) -> int:
    """`turnpike invoices buyer set TENANT`."""

    async def work(admin: AdminServices) -> int:
        parties = Parties(admin.database)
        tenant = await admin.tenancy.tenant(arguments.tenant)
        given = _given(Buyer, arguments)
        before = (await parties.buyers()).get(tenant.id)
        if before is None and "seller" not in given:
            sellers = await parties.sellers()
            if len(sellers) != 1:
                raise CommandError("say who sells to it with --seller: `turnpike invoices seller show` names them")
            given["seller"] = sellers[0].id
        buyer = msgspec.structs.replace(before, **given) if before else _made(Buyer, given)
        await parties.set_buyer(tenant.id, buyer)
        _show(tenant.name, buyer)
        _warn("buyer", buyer)
        return 0

    return with_admin_services(settings, work)


def show_buyers(settings: Settings, arguments: argparse.Namespace) -> int:
    """`turnpike invoices buyer show`."""

    async def work(admin: AdminServices) -> int:
        names = {tenant.id: tenant.name for tenant in await admin.tenancy.list_tenants()}
        wanted = (await admin.tenancy.tenant(arguments.tenant)).id if arguments.tenant else None
        buyers = await Parties(admin.database).buyers()
        chosen = {tenant: buyer for tenant, buyer in buyers.items() if wanted in (None, tenant)}
        if not chosen:
            raise NoProfile("there is no billing profile; make one: `turnpike invoices buyer set TENANT …`")
        for tenant in sorted(chosen, key=lambda tenant: names[tenant]):
            _show(names[tenant], chosen[tenant])
        return 0

    return with_admin_services(settings, work)


def _given(kind: type[Party], arguments: argparse.Namespace) -> dict[str, Any]:
    """The fields that the command line names."""
    values = {name: getattr(arguments, name, None) for name in kind.__struct_fields__}
    given = {name: value for name, value in values.items() if value is not None}
    return given | ({"vat_id": compact(given["vat_id"])} if "vat_id" in given else {})


def _made(kind: type[Any], given: dict[str, Any]) -> Any:
    for name in _NEEDED:
        if name not in given:
            raise InvalidParty(name, f"missing: --{name}")
    return kind(**given)


def _rates(before: Mapping[str, int], arguments: argparse.Namespace) -> dict[str, int]:
    """The rates that there were, with those that are given, without those that are taken away."""
    given = [_rate(text) for text in arguments.rate or []]
    removed = arguments.remove_rate or []
    for country, times in Counter(country for country, _ in given).items():
        if times > 1:
            raise InvalidParty("rates", f"--rate gives {country} {times} times: give one rate for each country")
        if country in removed:
            raise InvalidParty("rates", f"--rate sets a rate for {country} and --remove-rate removes it: give one")
    rates = {**before, **dict(given)}
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
