"""Every act about money leaves who did it, by what means and why; those that could be abused take two people."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import msgspec
import pytest
from sqlalchemy import select, update
from sqlalchemy.exc import DBAPIError

from audit_log.actors import Actor, acting_as
from audit_log.tables import audit_entry
from billing.accounts.balances import Balances
from billing.approvals.approvals import Approvals
from billing.invoices.collection import pay, void
from billing.invoices.credit_notes import credit
from billing.invoices.errors import NoProfile
from billing.invoices.parties.store import Parties
from billing.invoices.registers.exchange_rates import PublishedRates, record_rates
from billing.pending_changes import ChangePending
from billing.platform_settings import APPROVALS, GRANT_OVER, PlatformSettings
from billing.prices import PriceCatalog
from billing.rating.contract_store import Contracts
from billing.rating.terms import ContractTerms, Discount
from billing.tables.invoices import exchange_rate, party_change
from billing.usage import Usage
from storage.database.database import Database
from tests.billing.invoices.customers import USD, Customer, set_clock
from tests.billing.invoices.documents import BUYER
from tests.billing.invoices.test_registers import ScriptedRegister

DOLLAR = 10**12
ELSEWHERE = msgspec.structs.replace(USD, payment=["IBAN DE02 1203 0000 0000 2020 51"])
Act = Callable[[Customer], Awaitable[object]]


async def _invoice(customer: Customer) -> None:
    await customer.use("2026-10-03", Usage(output=5_000_000))
    await customer.invoice("2026-10")


async def _of(customer: Customer) -> object:
    (record,) = await customer.invoices.list()
    return record


ACTS: dict[str, Act] = {
    "grant.created": lambda c: Balances(c.database).grant(c.id, 500 * DOLLAR, "USD", kind="promo", reason="why"),
    "refund.created": lambda c: Balances(c.database).refund(c.id, DOLLAR, "USD", reason="why"),
    "credit_line.set": lambda c: Balances(c.database).set_credit_line(c.id, 10**16, "USD"),
    "terms.set": lambda c: Contracts(c.database, PriceCatalog(c.database)).put(
        c.id, ContractTerms(discounts=(Discount(basis_points=500),)), "2026-11", "ann", "why"
    ),
    "seller.set": lambda c: Parties(c.database).set_seller(ELSEWHERE, reason="why"),
    "billing_profile.set": lambda c: Parties(c.database).set_buyer(
        c.id, msgspec.structs.replace(BUYER, city="Lyon"), reason="why"
    ),
    "credit_note.issued": lambda c: _with(c, lambda record: credit(c.database, record, "why", request="1")),
    "invoice.payment_recorded": lambda c: _with(c, lambda record: pay(c.database, record, "why", 100)),
    "invoice.voided": lambda c: _with(c, lambda record: void(c.database, record, "why")),
}
TWO = {"grant.created", "credit_line.set", "terms.set", "seller.set", "credit_note.issued"}
"""What takes two people while approvals are on."""
WITHOUT_REASON = {"credit_line.set"}
"""Acts whose interface takes no reason: the entry has who and by what means."""


async def _with(customer: Customer, act: Callable[..., Awaitable[object]]) -> object:
    return await act(await _of(customer))


async def _customer(database: Database) -> Customer:
    customer = await Customer.make(database)
    await _invoice(customer)
    set_clock(database, "2026-11-03")
    await Balances(database).grant(customer.id, 100 * DOLLAR, "USD")
    return customer


@pytest.mark.parametrize("action", ACTS)
async def test_an_act_leaves_who_by_what_and_why(database: Database, action: str) -> None:
    customer = await _customer(database)
    with acting_as(Actor("operator_key", "key-1", "ann", through="ann@host")):
        await ACTS[action](customer)
    row = audit_entry.c
    query = select(row.actor_means, row.actor_id, row.actor_name, row.actor_through, row.reason)
    async with database.reading() as session:
        (entry,) = await session.execute(query.where(row.action == action, row.actor_id == "key-1"))
    assert tuple(entry)[:4] == ("operator_key", "key-1", "ann", "ann@host")
    assert action in WITHOUT_REASON or "why" in entry.reason


@pytest.mark.parametrize("action", ACTS)
async def test_what_takes_two_people(database: Database, action: str) -> None:
    customer = await _customer(database)
    await PlatformSettings(database).set(GRANT_OVER, "100.00", by="Ann and bob", via="test")
    await PlatformSettings(database).set(APPROVALS, "on", by="Ann and bob", via="test")
    approvals = Approvals(database, PriceCatalog(database))
    with acting_as(Actor("operator_key", "key-1", "ann")):
        if action not in TWO:
            await ACTS[action](customer)
            return
        with pytest.raises(ChangePending) as pending:
            await ACTS[action](customer)
    with acting_as(Actor("operator_key", "key-2", "bob")):
        await approvals.approve(pending.value.change.id, lambda _: True, "agreed")
    row = audit_entry.c
    async with database.reading() as session:
        made = (
            await session.scalars(select(row.actor_name).where(row.action == action, row.actor_id == "key-2"))
        ).all()
    assert made == ["bob"]


async def test_an_account_of_one_more_seller_takes_two_people(database: Database) -> None:
    customer = await _customer(database)
    await PlatformSettings(database).set(APPROVALS, "on", by="Ann and bob", via="test")
    parties = Parties(database)
    other = msgspec.structs.replace(ELSEWHERE, id="other", series="OT", credit_series="OT-CN")
    with acting_as(Actor("operator_key", "key-1", "ann")):
        with pytest.raises(ChangePending) as pending:
            await parties.set_seller(other)
        with pytest.raises(NoProfile):
            await parties.set_buyer(customer.id, msgspec.structs.replace(BUYER, seller="other"))
    with acting_as(Actor("operator_key", "key-2", "bob")):
        await Approvals(database, PriceCatalog(database)).approve(pending.value.change.id, lambda _: True, "agreed")
    assert {seller.id for seller in await parties.sellers()} == {USD.id, "other"}


@pytest.mark.both_databases
async def test_the_history_of_parties_and_rates_only_grows(database: Database) -> None:
    customer = await _customer(database)
    await Parties(database).set_seller(msgspec.structs.replace(USD, rates={"DE": 2100}), reason="a law")
    await Parties(database).set_buyer(customer.id, msgspec.structs.replace(BUYER, country="DE", vat_id=""))
    await record_rates(database, ScriptedRegister(PublishedRates("2026-11-02", {"USD": "1.25"})))
    for table, values in ((party_change, {"reason": "x"}), (exchange_rate, {"rate": "9"})):
        async with database.reading() as session:
            assert (await session.execute(select(table))).first() is not None
        for statement in (update(table).values(values), table.delete()):
            with pytest.raises(DBAPIError, match="immutable"):
                async with database.transaction() as session:
                    await session.execute(statement)
