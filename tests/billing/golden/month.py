"""The golden month: usage and prices written by hand, and what its documents must say to the letter.

`python -m tests.billing.golden.month` writes the files beside this module anew; read what differs before you commit it.
"""

from __future__ import annotations

import asyncio
import io
import tempfile
from datetime import date
from pathlib import Path
from uuid import UUID

import msgspec
from pypdf import PdfReader
from sqlalchemy import select, update

from billing.balances import Balances
from billing.holds.reserving import Holds
from billing.invoices.crediting import credit
from billing.invoices.document import Document
from billing.invoices.drafting import draft
from billing.invoices.finalizing import finalize
from billing.invoices.party_store import Parties
from billing.invoices.pdf import to_pdf
from billing.periods import Periods
from billing.prices import PriceBook
from billing.settlement import settle
from billing.tables.invoices import invoice
from billing.tables.money import balance
from billing.usage import Usage, UsageEvent
from storage import migrate
from storage.base import new_id
from storage.database import Database
from tests.billing.invoices.books import USD, Customer, set_clock
from tests.billing.invoices.documents import BUYER

FOLDER = Path(__file__).parent
TENANT, CHAT, SEARCH = (UUID(int=0x7000_8000_0000_0000_0000 | n) for n in (1, 2, 3))
PERIOD = "2026-10"

USED = {
    "2026-10-01T00:00": (CHAT, Usage(uncached=1_500_000, write={"1h": 250_000}, output=80_000)),
    "2026-10-09T08:15": (CHAT, Usage(uncached=12_345, read={"1h": 6_250_000, "automatic": 64}, output=1_234_567)),
    "2026-10-09T08:59": (SEARCH, Usage(uncached=7, read={"5m": 999_999}, write={"5m": 333_333}, output=1)),
    "2026-10-25T01:30": (SEARCH, Usage(uncached=2_000_001, output=3_000_003)),
    "2026-10-31T23:59": (CHAT, Usage(read={"1h": 12_500_000}, output=42)),
}
"""Requests by the moment of their admission; prices are those of `tests.billing.money`."""
LATE = ("2026-10-30T12:00", SEARCH, Usage(uncached=100_000, output=50_000))
"""One that was recorded when its period was closed."""


async def invoice_month(database: Database) -> list[tuple[str, str]]:
    """Bill October and November, with a credit note; content and PDF text of each document."""
    customer = await Customer.make(database, seller=USD, buyer=msgspec.structs.replace(BUYER, detail="project"))
    tenant = customer.tenant = msgspec.structs.replace(customer.tenant, id=TENANT, project_id=CHAT, key_id=new_id())
    book = PriceBook(database)
    await Parties(database).set_buyer(TENANT, msgspec.structs.replace(BUYER, detail="project"))
    await Balances(database).grant(TENANT, 5 * 10**12, "USD")
    await Balances(database).grant(TENANT, 10**12, "USD", kind="promo")
    async with database.transaction() as session:  # what is more may be paid afterwards
        await session.execute(update(balance).where(balance.c.tenant_id == TENANT).values(credit_line=10**15))

    async def request(moment: str, project: UUID, usage: Usage) -> UsageEvent:
        set_clock(database, moment)
        held = msgspec.structs.replace(tenant.request(0), project_id=project)
        return tenant.event(await Holds(database).reserve(held), usage)

    late = await request(*LATE)
    for moment, (project, usage) in USED.items():
        await settle(database, book, [await request(moment, project, usage)])
    await Holds(database).sweep(late.admitted_at + 3_600_000_000)
    names = {CHAT: "chat", SEARCH: "search"}
    set_clock(database, "2026-11-02")
    await Periods(database).close(PERIOD)
    await draft(database, book, TENANT, PERIOD, names)
    october = await finalize(database, book, TENANT, PERIOD, date(2026, 11, 1))
    await settle(database, book, [late])
    await credit(database, october, "Answers of 25 October were cut short", request="golden", amounts={1: 10, 4: None})
    set_clock(database, "2026-12-02")
    await Periods(database).close("2026-11")
    await draft(database, book, TENANT, "2026-11", names)
    await finalize(database, book, TENANT, "2026-11")
    query = select(invoice.c.content, invoice.c.state, invoice.c.sha256).where(invoice.c.tenant_id == TENANT)
    async with database.reading() as session:
        rows = (await session.execute(query.order_by(invoice.c.series.desc(), invoice.c.n))).all()
    return [(content, _pdf_text(content, state, digest)) for content, state, digest in rows]


def _pdf_text(content: str, state: str, digest: str) -> str:
    pdf = to_pdf(msgspec.json.decode(content, type=Document), state, digest)
    pages = PdfReader(io.BytesIO(pdf)).pages
    return "\n\f\n".join(page.extract_text() for page in pages) + "\n"


def files(documents: list[tuple[str, str]]) -> dict[str, str]:
    """The files that the documents make, by name."""
    made = {}
    for content, text in documents:
        number = msgspec.json.decode(content)["number"]
        made[f"{number}.json"] = msgspec.json.format(content, indent=1) + "\n"
        made[f"{number}.txt"] = text
    return made


async def _write() -> None:
    with tempfile.TemporaryDirectory() as folder:
        url = f"sqlite:///{folder}/golden.sqlite"
        await migrate.upgrade(url)
        database = await Database.open(url)
        for name, text in files(await invoice_month(database)).items():
            (FOLDER / name).write_text(text)
        await database.close()


if __name__ == "__main__":
    asyncio.run(_write())
