"""Documents of every tax category in three currencies, each invoiced and credited by the calls of production.

`make golden` writes their XML anew; read what differs before you commit it.
"""

from __future__ import annotations

import asyncio
import itertools
import tempfile
from datetime import date
from pathlib import Path

import msgspec

from audit_log.actors import Actor, become
from billing.accounts.balances import Balances
from billing.invoices.credit_notes import credit
from billing.invoices.drafting import draft
from billing.invoices.electronic.store import EInvoices
from billing.invoices.electronic.syntaxes import SYNTAXES
from billing.invoices.finalizing import finalize
from billing.invoices.parties.parties import Buyer, Seller
from billing.invoices.parties.store import Parties
from billing.invoices.store import InvoiceRecord, Invoices
from billing.periods.periods import Periods
from billing.prices import PriceCatalog, PriceVersion
from billing.prices.price_books import PriceBooks
from billing.reservation.hold_service import HoldService
from billing.settlement.settlement import settle
from billing.usage import Usage
from storage.database import migrate
from storage.database.base import new_id
from storage.database.database import Database
from tests.billing.invoices.customers import set_clock
from tests.billing.invoices.documents import BUYER, SELLER
from tests.billing.money import Tenant, event, priced_in

FOLDER = Path(__file__).parent / "golden"
PERIOD = "2026-10"
CURRENCIES = ("EUR", "USD", "JPY")
GERMAN = Seller(
    **{
        **msgspec.structs.asdict(SELLER),
        "contact": "Petra Muster",
        "phone": "+49 89 1234567",
        "iban": "DE89370400440532013000",
        "bic": "COBADEFFXXX",
        "endpoint": "9930:DE136695976",
        "endpoint_scheme": "9930",
    }
)
_DOMESTIC = {"name": "Werk & Söhne <Hamburg> GmbH", "city": "Hamburg", "postal_code": "20457", "country": "DE"}
_OVERSEAS = {"name": "Prairie Compute Inc.", "city": "Omaha", "postal_code": "68102", "country": "US", "vat_id": ""}


def _buyer(**changes: object) -> Buyer:
    return msgspec.structs.replace(BUYER, **changes)


BUYERS: dict[str, Buyer] = {
    "S": _buyer(**_DOMESTIC, vat_id="DE129273398", treatment="standard"),
    "Z": _buyer(**_DOMESTIC, vat_id="DE129273398", treatment="zero", exemption="Zero rated by a ruling"),
    "E": _buyer(**_DOMESTIC, vat_id="DE129273398", treatment="exempt", exemption="Exempt by a ruling"),
    "AE": _buyer(),
    "K": _buyer(treatment="intra_community"),
    "G": _buyer(**_OVERSEAS, treatment="export"),
    "O": _buyer(**_OVERSEAS),
}
"""A buyer of each category that the tax rules know."""
PROFILED: dict[str, Buyer] = {
    "xrechnung": _buyer(
        **_DOMESTIC,
        vat_id="DE129273398",
        einvoice="xrechnung",
        buyer_reference="04011000-1234512345-35",
        endpoint="04011000-1234512345-35",
        endpoint_scheme="0204",
    ),
    "peppol": _buyer(einvoice="peppol", endpoint="40303265000017", endpoint_scheme="0009"),
}
"""Buyers who want a profile, in euros."""


async def make_documents(database: Database) -> dict[str, InvoiceRecord]:
    """Every document, by its name: the category or profile, the currency, and `credit` for a credit note."""
    set_clock(database, "2026-09-15")
    await Parties(database).set_seller(GERMAN)
    versions = {currency: await priced_in(database, currency, "tiny") for currency in CURRENCIES}
    buyers = {f"{name}-{currency}": (buyer, currency) for (name, buyer), currency in _all_buyers()}
    tenants = {name: await _used(database, buyer, versions[currency]) for name, (buyer, currency) in buyers.items()}
    set_clock(database, "2026-11-02")
    await Periods(database).close(PERIOD)
    records = {}
    for name, tenant in tenants.items():
        await draft(database, PriceCatalog(database), tenant.id, PERIOD)
        invoice = await finalize(database, PriceCatalog(database), tenant.id, PERIOD, date(2026, 11, 1))
        note, _ = await credit(database, invoice, "Answers were cut short", request=name, amounts={1: 7, 2: None})
        assert note is not None
        records |= {name: await Invoices(database).of_tenant(tenant.id, invoice.id), f"{name}-credit": note}
    return records


def _all_buyers() -> list[tuple[tuple[str, Buyer], str]]:
    return [
        *itertools.product(BUYERS.items(), CURRENCIES),
        *itertools.product(PROFILED.items(), ("EUR",)),
    ]


async def _used(database: Database, buyer: Buyer, version: PriceVersion) -> Tenant:
    """A tenant whose usage was paid in part by promotional, in part by paid credit, and the rest is owed."""
    tenant = Tenant(database, version, new_id(), new_id(), new_id())
    await PriceBooks(database).create_for(tenant.id, f"of {tenant.id}", f"in {version.currency}")
    balances, unit = Balances(database), 10**12 * (100 if version.currency == "JPY" else 1)
    await balances.grant(tenant.id, unit, version.currency)
    await balances.grant(tenant.id, unit // 2, version.currency, kind="promo", reason="welcome")
    await balances.set_credit_line(tenant.id, 10**15, version.currency)
    await Parties(database).set_buyer(tenant.id, buyer)
    set_clock(database, "2026-10-05")
    usage = Usage(uncached=123_456_789, write={"5m": 1_000_003}, output=7_654_321)
    hold = await HoldService(database).reserve(tenant.request(0))
    settled = await settle(database, PriceCatalog(database), [event(hold, version, usage)])
    assert settled.refused == 0
    set_clock(database, "2026-09-15")
    return tenant


async def xml_files(database: Database) -> dict[str, bytes]:
    """Every document as XML in both syntaxes, by the name of the file."""
    einvoices, records = EInvoices(database), await make_documents(database)
    return {
        f"{name}.{syntax}.xml": (await einvoices.of(record, syntax)).content.encode()
        for name, record in records.items()
        for syntax in SYNTAXES
    }


def golden() -> dict[str, bytes]:
    """The files in the tree."""
    return {path.name: path.read_bytes() for path in sorted(FOLDER.glob("*.xml"))}


async def _write() -> None:
    with tempfile.TemporaryDirectory() as folder:
        url = f"sqlite:///{folder}/golden.sqlite"
        await migrate.upgrade(url)
        database = await Database.open(url)
        files = await xml_files(database)
        await database.close()
    FOLDER.mkdir(exist_ok=True)
    for name in golden().keys() - files.keys():
        (FOLDER / name).unlink()
    for name, content in files.items():
        (FOLDER / name).write_bytes(content)


if __name__ == "__main__":
    become(Actor("system", "tests", "tests"))
    asyncio.run(_write())
