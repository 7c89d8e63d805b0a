"""Proofs of invoices, of the months that they bill, and of gateways' runs that months wait for."""

from __future__ import annotations

import contextlib
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from uuid import UUID

from msgspec.structs import replace
from sqlalchemy import literal

from billing.invoices.collection import mark_uncollectible
from billing.invoices.drafting import draft
from billing.invoices.errors import WrongState
from billing.invoices.finalizing import finalize
from billing.invoices.parties.store import Parties
from billing.invoices.store import InvoiceRecord, Invoices
from billing.periods.periods import Periods
from billing.prices import PriceCatalog
from billing.spool.gateway_epochs import EpochKeeper
from billing.spool.spool import Spool
from billing.usage import Usage
from storage.database.base import Count
from storage.database.database import Database
from tests.billing.invoices.customers import USD, Customer, set_clock
from tests.billing.invoices.documents import BUYER
from tests.billing.money import PRICES, Tenant
from tests.gateway.access.proofs import Call, proof
from tests.gateway.access.proofs_admin import fresh
from tests.gateway.access.world import Place, World

_LARGE = 2 * 10**9
_COST_PICO = 800 * 10**12
"""What so many tokens cost."""
_UNBILLED = 2
"""So many months may be unbilled: the last one, and one whose invoice was voided after the next had been made."""


@asynccontextmanager
async def _then(world: World) -> AsyncIterator[Database]:
    """The database of the world, on a clock of one's own."""
    url = world.stack.database.engine.url
    plain = url.set(drivername=url.get_backend_name())
    database = await Database.open(plain.render_as_string(hide_password=False))
    try:
        yield database
    finally:
        await database.close()


async def _month(world: World, place: Place, *, closed: bool = True, large: int = 0) -> str:
    """A month of long ago in which nobody but the place's tenant, who can be billed, used something. `large`: so many
    requests of _LARGE tokens."""
    await _bill_earlier(world)
    number = len(world.months)
    month = f"{2001 + number // 12}-{number % 12 + 1:02}"
    world.months.append((place, month))
    async with _then(world) as database:
        set_clock(database, f"{month}-01")
        version = await PriceCatalog(database).set("of-old", "USD", PRICES)
        parties = Parties(database)
        await parties.set_seller(
            replace(USD, id="default"), reason="a proof"
        )  # other proofs change it, and know no other
        await parties.set_buyer(place.tenant_id, replace(BUYER, seller="default", country="DE", vat_id=""))
        tenant = Tenant(database, version, place.tenant_id, place.project_id, UUID(int=7))
        customer = Customer(tenant, Invoices(database))
        await customer.use(f"{month}-05", *([Usage(uncached=_LARGE)] * large or [Usage(uncached=1_000_000)]))
        if closed:
            await customer.close(month)
    return month


async def _bill_earlier(world: World) -> None:
    """Close the months before, and send their invoices where that is still to be done."""
    database = world.stack.database
    for place, month in world.months[-_UNBILLED:]:
        await Periods(database).close(month)
        with contextlib.suppress(WrongState):  # it is sent already
            await draft(database, PriceCatalog(database), place.tenant_id, month)
            await finalize(database, PriceCatalog(database), place.tenant_id, month)


async def _draft(world: World, place: Place, large: int = 0) -> InvoiceRecord:
    database, month = world.stack.database, await _month(world, place, large=large)
    record, _ = await draft(database, PriceCatalog(database), place.tenant_id, month)
    assert record is not None
    return record


async def _invoice(world: World, place: Place, large: int = 0) -> InvoiceRecord:
    database, drafted = world.stack.database, await _draft(world, place, large)
    return await finalize(database, PriceCatalog(database), place.tenant_id, drafted.period)


async def _unpaid(world: World, place: Place) -> InvoiceRecord:
    """An invoice of more than the tenant has, which goes on under its credit line."""
    balances = world.stack.balances
    await balances.set_credit_line(place.tenant_id, 10**17, "USD")
    has = await balances.get(place.tenant_id)
    assert has is not None
    return await _invoice(world, place, max(0, has.credit - has.debit) // _COST_PICO + 1)


def _path(place: Place, record: InvoiceRecord, **more: str) -> dict[str, str]:
    return {"tenant": place.tenant_name, "invoice": record.number or f"invoice_{record.id.hex}", **more}


@proof("admin_draft_invoice")
async def _(world: World, place: Place) -> Call:
    return Call({"tenant": place.tenant_name}, body={"period": await _month(world, place)})


@proof("admin_finalize_invoice")
async def _(world: World, place: Place) -> Call:
    return Call(_path(place, await _draft(world, place)))


@proof("admin_retrieve_invoice", "admin_invoice_json", "admin_invoice_ubl", "admin_invoice_cii", "admin_verify_invoice")
async def _(world: World, place: Place) -> Call:
    record = await _invoice(world, place)
    assert record.number is not None
    return Call(_path(place, record), tells=(record.number,))


@proof("admin_list_lines", "admin_invoice_csv")
async def _(world: World, place: Place) -> Call:
    return Call(_path(place, await _invoice(world, place)), tells=("of-old",))


@proof("admin_drill_line")
async def _(world: World, place: Place) -> Call:
    record = await _invoice(world, place)
    day = f"{record.period}-05"
    query = {"by": "request", "day": day, "hour": "0"}
    return Call(_path(place, record, line="1"), query=query, shared=frozenset({"line"}), tells=(day,))


@proof("admin_invoice_pdf", "admin_invoice_bundle")
async def _(world: World, place: Place) -> Call:
    return Call(_path(place, await _invoice(world, place)))


@proof("admin_void_invoice", "admin_write_off_invoice")
async def _(world: World, place: Place) -> Call:
    return Call(_path(place, await _unpaid(world, place)), body={"reason": "insolvent"})


@proof("admin_relieve_invoice_of_vat")
async def _(world: World, place: Place) -> Call:
    record = await _unpaid(world, place)
    async with _then(world) as database:
        await mark_uncollectible(database, record, "insolvent")
    return Call(_path(place, record), body={"reason": "a certificate"})


@proof("admin_pay_invoice")
async def _(world: World, place: Place) -> Call:
    return Call(_path(place, await _unpaid(world, place)), body={"reference": fresh("transfer")})


@proof("admin_credit_invoice")
async def _(world: World, place: Place) -> Call:
    body = {"reason": "an outage", "request": fresh("ticket")}
    return Call(_path(place, await _invoice(world, place)), body=body)


@proof("admin_close_period")
async def _(world: World, place: Place) -> Call:
    return Call({"period": await _month(world, place, closed=False)}, shared=frozenset({"period"}))


@proof("admin_declare_epoch_dead")
async def _(world: World, place: Place) -> Call:
    """A run that was heard of two minutes ago."""
    epoch = fresh("gateway")
    async with _then(world) as database:
        database.clock = literal((int(time.time()) - 120) * 1_000_000, Count())
        with tempfile.TemporaryDirectory() as folder:
            spool = Spool(Path(folder), epoch)
            await EpochKeeper(database, spool, "lost").publish()
            await spool.close()
    return Call({"epoch": epoch}, body={"reason": "the disk is lost"})
