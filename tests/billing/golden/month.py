"""The golden month: two customers' usage and prices written by hand, and what the documents and exports must say.

`make golden` writes the files anew; read what differs before you commit it.
Everything is made by the same calls as in production. The database's clock and the ids alone are the month's own: an id
is made of the clock and a count, so that the files say the same whenever and wherever they are made.
"""

from __future__ import annotations

import asyncio
import io
import itertools
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import date
from pathlib import Path
from typing import cast
from unittest.mock import patch
from uuid import UUID

import msgspec
import pytest
from pypdf import PdfReader
from sqlalchemy import BindParameter, select

from audit_log.actors import Actor, acting_as
from billing.accounts.adjustments import adjust
from billing.accounts.balances import Balances
from billing.accounts.budgets import BudgetSettings
from billing.exports.datasets import DisplayNames, ExportQuery
from billing.exports.files import ExportOrder, dataset_of, export
from billing.invoices.collection import pay
from billing.invoices.credit_notes import credit
from billing.invoices.document import Document
from billing.invoices.drafting import draft
from billing.invoices.finalizing import finalize
from billing.invoices.parties.parties import Buyer
from billing.invoices.parties.store import Parties
from billing.invoices.rendering.pdf import to_pdf
from billing.invoices.store import InvoiceRecord, Invoices, PaymentsAndCredits
from billing.money import parse_price
from billing.periods.periods import Periods
from billing.prices import PriceCatalog, PriceVersion, Rows
from billing.prices.approval import PriceSheets
from billing.prices.sheets import PriceProposal
from billing.reservation.decisions import InsufficientFunds
from billing.reservation.hold_service import HoldService
from billing.settlement.settlement import settle
from billing.tables.invoices import invoice
from billing.usage import Usage, UsageEvent
from storage.database import migrate
from storage.database.database import Database
from tests.billing.invoices.customers import set_clock
from tests.billing.invoices.documents import BUYER, SELLER
from tests.billing.money import Tenant, event

FOLDER = Path(__file__).parent
MONTHS = ("2026-10", "2026-11")
DATASETS = (
    *("usage", "costs", "invoices", "journal", "general-ledger", "datev", "revenue", "deferred", "ageing", "account"),
    *("focus", "focus-invoices", "focus-periods", "focus-commitments"),
)

CODES = {"clearing": "1200", "receivable": "10000", "prepaid": "1718", "revenue.S19": "8400", "revenue.AE": "8336"}
BATCH = "consultant=1001,client=7,year=01-01,key.AE=41"

EURO = 10**12
POSTPAID, PREPAID, CHAT, SEARCH, NOTES, KEY = (UUID(int=0x7000_8000_0000_0000_0000 | n) for n in range(1, 7))
NAMES = DisplayNames(
    {POSTPAID: "werk", PREPAID: "société"},
    {CHAT: "chat", SEARCH: "search", NOTES: "notes"},
)
OWNERS = {CHAT: POSTPAID, SEARCH: POSTPAID, NOTES: PREPAID}
WERK = Buyer(
    seller=SELLER.id,
    name="Werk & Söhne GmbH",
    address=["Hafenstraße 7"],
    postal_code="20457",
    city="Hamburg",
    country="DE",
    vat_id="DE129273398",
    purchase_order="PO-2026-118",
    payment_days=14,
    detail="project",
)

METERS = ("uncached", "read_automatic", "read_5m", "read_1h", "write_5m", "write_1h", "output")
PRICES = {
    "sage-70b": {
        "*": ("0.40", "0.04", "0.04", "0.04", "0.50", "0.80", "1.60"),
        "batch": ("0.20", "0.02", "0.02", "0.02", "0.25", "0.40", "0.80"),
    },
    "sage-8b": {"*": ("0.03", "0.003", "0.003", "0.003", "0.0375", "0.06", "0.125")},
}
"""Euros per million tokens, by model, lane and meter; lanes that are not named cost what `*` does."""

USED = {
    "2026-10-01T00:00": (CHAT, "sage-70b", "standard", Usage(uncached=1_500_000, write={"1h": 250_000}, output=80_000)),
    "2026-10-02T10:05": (NOTES, "sage-70b", "standard", Usage(write={"5m": 2_000_000}, output=3_000_000)),
    "2026-10-02T10:07": (NOTES, "sage-70b", "standard", Usage(uncached=11, read={"5m": 4_000_000}, output=900_001)),
    "2026-10-09T07:40": (CHAT, "sage-70b", "standard", Usage(write={"1h": 500_000}, output=1)),
    "2026-10-09T08:15": (
        CHAT, "sage-70b", "standard",
        Usage(uncached=12_345, read={"1h": 16_250_000, "automatic": 64}, output=1_234_567),
    ),
    "2026-10-09T08:58": (SEARCH, "sage-70b", "standard", Usage(uncached=7, write={"5m": 333_333}, output=1)),
    "2026-10-09T08:59": (SEARCH, "sage-70b", "standard", Usage(uncached=9, read={"5m": 999_999}, output=12)),
    "2026-10-20T17:00": (CHAT, "sage-8b", "standard", Usage(uncached=333, output=77)),
    "2026-10-20T17:01": (CHAT, "sage-8b", "batch", Usage(uncached=1_000_001, output=41)),
    # Clocks in Europe go back at 01:00 UTC: both hours have the name 02:00 there, and none is lost or doubled.
    "2026-10-25T00:30": (SEARCH, "sage-70b", "batch", Usage(uncached=2_000_001, output=3_000_003)),
    "2026-10-25T01:30": (SEARCH, "sage-70b", "batch", Usage(uncached=2_000_001, write={"1h": 80_000}, output=1_000)),
    "2026-10-31T23:59": (CHAT, "sage-70b", "standard", Usage(write={"1h": 40_000}, output=42)),
    "2026-11-03T09:00": (SEARCH, "sage-8b", "standard", Usage(uncached=900_000, output=100_000)),
    "2026-11-03T09:01": (SEARCH, "sage-70b", "standard", Usage(uncached=1_234, output=1_000_000)),
    "2026-11-04T09:00": (NOTES, "sage-8b", "standard", Usage(uncached=40_000_000, output=2_000_000)),
}  # fmt: skip
"""Requests by the moment of their admission: whose, of what, how."""
LATE = ("2026-10-30T12:00", SEARCH, "sage-70b", "standard", Usage(uncached=100_000, output=50_000))
"""One that is recorded when its period is closed."""
OVER_BUDGET = ("2026-10-25T02:00", SEARCH, "sage-70b", "standard", Usage(output=10_000_000))
"""One that its project's budget refuses: nothing of it may be anywhere."""


@contextmanager
def own_ids(database: Database) -> Iterator[None]:
    """Ids that say the same each time: UUIDv7 of the database's clock, as the month sets it, and a count."""
    counts: dict[int, Iterator[int]] = {}

    def made() -> UUID:
        milliseconds = cast("BindParameter[int]", database.clock).value // 1000  # as `set_clock` makes it
        count = next(counts.setdefault(milliseconds, itertools.count(1)))
        return UUID(int=milliseconds << 80 | 7 << 76 | 2 << 62 | count)

    with patch("uuid_utils.uuid7", made):
        yield


async def make_month(database: Database) -> None:
    """October with all its usage, billed; November with what came late, what was mended, and a credit note."""
    set_clock(database, "2026-09-15")
    with own_ids(database):
        await _Month(database, PriceCatalog(database)).run()


class _Month(msgspec.Struct):
    database: Database
    catalog: PriceCatalog
    versions: dict[str, PriceVersion] = {}

    async def run(self) -> None:
        await self._set_up()
        late = await self._admitted(*LATE)
        await HoldService(self.database).sweep(late.admitted_at + 3_600_000_000)
        made = {}
        for moment, request in USED.items():
            if moment > "2026-11":
                break
            made[moment] = await self._used(moment, *request)
        with pytest.raises(InsufficientFunds, match="project"):
            await self._admitted(*OVER_BUDGET)
        await self._adjust("2026-10-28T11:00", made["2026-10-09T08:59"], {"read_5m": -99_999, "uncached": 99_999})
        october = await self._billed("2026-10")
        set_clock(self.database, "2026-11-02T10:00")
        assert (await settle(self.database, self.catalog, [late])).refused == 0
        for moment, request in USED.items():
            if moment > "2026-11":
                await self._used(moment, *request)
        set_clock(self.database, "2026-11-05")
        await pay(self.database, october[POSTPAID], "bank 4711", 500)
        await Balances(self.database).grant(PREPAID, 10 * EURO, "EUR", reason="card")
        await self._adjust("2026-11-06", made["2026-10-25T00:30"], {"output": -1_000_000})
        set_clock(self.database, "2026-11-07")
        reason = "Answers of 9 October were cut short"
        await credit(self.database, october[POSTPAID], reason, request="golden", amounts={1: 10, 4: None})
        await credit(self.database, october[PREPAID], "Goodwill", request="golden", amounts={4: 100})
        set_clock(self.database, "2026-11-20")
        await Balances(self.database).refund(PREPAID, 2 * EURO, "EUR", reason="closes its account")
        await self._billed("2026-11")

    async def _set_up(self) -> None:
        for model, lanes in PRICES.items():
            rows: Rows = {
                (meter, lane, 0): parse_price(text)
                for lane, texts in lanes.items()
                for meter, text in zip(METERS, texts, strict=True)
            }
            await PriceSheets(self.database).put(PriceProposal(model=model, rows=rows, currency="EUR"), by="ann")
            self.catalog.forget()
            self.versions[model] = await self.catalog.current(model)
        parties, balances = Parties(self.database), Balances(self.database)
        await parties.set_seller(SELLER)
        await parties.set_buyer(POSTPAID, WERK)
        await parties.set_buyer(PREPAID, BUYER)
        await balances.set_credit_line(POSTPAID, 500 * EURO, "EUR")
        await balances.grant(PREPAID, 20 * EURO, "EUR", reason="bank transfer")
        set_clock(self.database, "2026-10-01")
        await balances.grant(PREPAID, EURO // 2, "EUR", kind="promo", reason="welcome")
        await BudgetSettings(self.database).set(
            POSTPAID, "project", str(SEARCH), "month", limit_pico=12 * EURO, currency="EUR"
        )

    async def _admitted(self, moment: str, project: UUID, model: str, lane: str, usage: Usage) -> UsageEvent:
        set_clock(self.database, moment)
        version = self.versions[model]
        asked = msgspec.structs.replace(
            Tenant(self.database, version, OWNERS[project], project, KEY).request(version.cost(usage, lane)), lane=lane
        )
        return event(await HoldService(self.database).reserve(asked), version, usage)

    async def _used(self, moment: str, project: UUID, model: str, lane: str, usage: Usage) -> UsageEvent:
        made = await self._admitted(moment, project, model, lane, usage)
        assert (await settle(self.database, self.catalog, [made])).refused == 0
        return made

    async def _adjust(self, moment: str, what: UsageEvent, units: dict[str, int]) -> None:
        set_clock(self.database, moment)
        await adjust(self.database, self.catalog, what.tenant_id, what.id, units, reason="miscounted")

    async def _billed(self, period: str) -> dict[UUID, InvoiceRecord]:
        """Close a period on the second day of the next, and bill both customers."""
        year, month = map(int, period.split("-"))
        set_clock(self.database, f"{year}-{month + 1:02d}-02")
        await Periods(self.database).close(period)
        sent = {}
        for tenant_id in (POSTPAID, PREPAID):
            await draft(self.database, self.catalog, tenant_id, period, NAMES.projects)
            sent[tenant_id] = await finalize(self.database, self.catalog, tenant_id, period, date(year, month + 1, 1))
        return sent


async def files(database: Database) -> dict[str, bytes]:
    """What the month says, by the name of the file: documents as JSON and as the PDF's text, and every export."""
    made = {}
    query = select(invoice.c.id, invoice.c.content)  # all tenants: the whole month
    async with database.reading() as session:
        contents = {row.id: row.content for row in await session.execute(query)}
    for record in sorted(await Invoices(database).list(), key=lambda record: (record.kind, record.number or "")):
        content, number = contents[record.id], record.number
        settled = await Invoices(database).settlements(record)
        made[f"{number}.json"] = msgspec.json.format(content, indent=1).encode() + b"\n"
        made[f"{number}.txt"] = _pdf_text(content, record.state, record.sha256 or "", settled).encode()
    with tempfile.TemporaryDirectory() as folder:
        for period, name in itertools.product(MONTHS, DATASETS):
            path = Path(folder, f"{name}.csv")
            asked = ExportQuery(period=period, names=NAMES, provider=SELLER.name)
            if name in ("general-ledger", "datev"):
                asked = msgspec.structs.replace(asked, seller=SELLER.id, account_codes=CODES, datev=BATCH)
            await export(database, PriceCatalog(database), ExportOrder(dataset_of(name), "csv", asked), path)
            made[f"{period}/{path.name}"] = _content(path)
    return made


def _content(path: Path) -> bytes:
    return path.read_bytes()


def kept() -> dict[str, bytes]:
    """What lies in the tree."""
    found = (path for kind in ("json", "txt", "csv") for path in FOLDER.rglob(f"*.{kind}"))
    return {path.relative_to(FOLDER).as_posix(): path.read_bytes() for path in found}


def _pdf_text(content: str, state: str, digest: str, settled: PaymentsAndCredits) -> str:
    pdf = to_pdf(msgspec.json.decode(content, type=Document), state, digest, settled)
    pages = PdfReader(io.BytesIO(pdf)).pages
    return "\n\f\n".join(page.extract_text() for page in pages) + "\n"


async def _write() -> None:
    with tempfile.TemporaryDirectory() as folder:
        url = f"sqlite:///{folder}/golden.sqlite"
        await migrate.upgrade(url)
        database = await Database.open(url)
        with acting_as(Actor("system", "golden", "golden")):
            await make_month(database)
        made = await files(database)
        await database.close()
    for name in kept().keys() - made.keys():
        (FOLDER / name).unlink()
    for name, content in made.items():
        path = FOLDER / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(content)


if __name__ == "__main__":
    with acting_as(Actor("system", "tests", "tests")):
        asyncio.run(_write())
