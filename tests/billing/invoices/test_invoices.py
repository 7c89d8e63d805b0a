"""A month's way from usage to a paid invoice, on both databases."""

from __future__ import annotations

from datetime import UTC, date, datetime

import msgspec
import pytest

from billing.accounts.balances import Balances
from billing.invoices.collection import mark_uncollectible, pay, void
from billing.invoices.credit_notes import credit
from billing.invoices.drafting import draft
from billing.invoices.errors import (
    AmountRefused,
    DocumentRefused,
    DraftOutdated,
    NoProfile,
    NumberRefused,
    PeriodNotClosed,
    ReferenceTaken,
    UnknownInvoice,
    WrongState,
)
from billing.invoices.finalizing import finalize
from billing.invoices.parties.store import Parties
from billing.prices import PriceCatalog
from billing.reservation.hold_service import HoldService
from billing.usage import Usage
from billing.verification.audit import audit_money
from storage.database.base import new_id, to_instant
from storage.database.database import Database
from storage.free_text import InvalidText
from tests.billing.invoices.customers import USD, Customer, set_clock
from tests.billing.invoices.documents import BUYER
from tests.billing.money import Tenant

CENT = 10**10
DOLLAR = 100 * CENT
DOMESTIC = msgspec.structs.replace(BUYER, country="DE", vat_id="")
USAGE = Usage(uncached=1_000_000, read={"5m": 3_000_001}, write={"1h": 500_000}, output=7_000_003)
"""0.40 + 0.12000004 + 0.40 + 11.2000048 dollars."""


@pytest.mark.both_databases
async def test_a_month_from_draft_to_paid(database: Database) -> None:
    customer = await Customer.make(database, buyer=DOMESTIC)
    catalog = PriceCatalog(database)
    (event,) = await customer.use("2026-10-03T12:00", USAGE)
    first = await customer.draft("2026-10")
    await customer.use("2026-10-31T23:59", USAGE)
    second = await customer.draft("2026-10")
    assert (first.id, first.usage_pico * 2) == (second.id, second.usage_pico)
    assert len(await customer.invoices.list(customer.id)) == 1
    with pytest.raises(PeriodNotClosed):
        await finalize(database, catalog, customer.id, "2026-10")
    await customer.close("2026-10")
    sent = await finalize(database, catalog, customer.id, "2026-10")
    assert sent == await finalize(database, catalog, customer.id, "2026-10")
    assert (sent.number, sent.issued, sent.due, sent.state) == (
        "INV-2026-000001", "2026-11-02", "2026-12-02", "finalized",
    )  # fmt: skip
    assert sent.usage_pico == 2 * event.cost_pico == 24_240_009_680_000
    assert (sent.net, sent.tax, sent.gross, sent.payable) == (2424, 461, 2885, 2885)
    assert sent.carry_out == 9_680_000
    with pytest.raises(WrongState):
        await customer.draft("2026-10")
    assert await customer.accounts() == {
        "receivable": -24_240_009_680_000, "revenue": 24_240_009_680_000, "tax": 461 * CENT,
        "invoiced": -461 * CENT + 9_680_000, "rounding_carry": -9_680_000,
    }  # fmt: skip
    partly = await pay(database, sent, "bank 1", 1000)
    assert (partly.state, partly.left) == ("partially_paid", 1885)
    assert (await pay(database, sent, "bank 1", 1000)).paid == 1000
    with pytest.raises(ReferenceTaken):
        await pay(database, sent, "bank 1", 999)
    with pytest.raises(AmountRefused):
        await pay(database, sent, "bank 2", 1886)
    paid = await pay(database, sent, "bank 2")
    assert (paid.state, paid.left) == ("paid", 0)
    assert await customer.accounts() == {
        "clearing": -2885 * CENT, "revenue": 24_240_009_680_000, "tax": 461 * CENT, "rounding_carry": -9_680_000,
    }  # fmt: skip
    with pytest.raises(WrongState):
        await pay(database, paid, "bank 3", 1)
    with pytest.raises(WrongState):
        await mark_uncollectible(database, paid, "insolvent")
    assert await audit_money(database) == []


@pytest.mark.slow
async def test_what_was_paid_in_advance_or_given_is_not_asked_for(database: Database) -> None:
    customer = await Customer.make(database, pico=20 * DOLLAR)
    await Balances(database).grant(customer.id, 5 * DOLLAR, "USD", kind="promo")
    await customer.use("2026-10-03", USAGE)
    october = await customer.invoice("2026-10")
    document = await customer.invoices.document(october)
    assert [(line.kind, line.net) for line in document.lines if line.kind != "usage"] == [("credit", -500)]
    assert (october.promo_pico, october.prepaid_pico) == (5 * DOLLAR, 7_120_004_840_000)
    assert (october.net, october.tax, october.prepaid, october.payable) == (712, 0, 712, 0)
    assert (october.state, document.taxes[0].category) == ("paid", "AE")
    await customer.use("2026-11-05", USAGE, USAGE)  # of 24.24, 12.88 are there
    november = await customer.invoice("2026-11")
    assert (november.net, november.prepaid, november.payable) == (2424, 1288, 1136)
    await customer.use("2026-12-05", USAGE)
    await Balances(database).grant(customer.id, 30 * DOLLAR, "USD")  # 11.36 for November's, which stays to be paid
    december = await customer.invoice("2026-12")
    assert (december.net, december.prepaid, december.payable) == (1212, 1212, 0)
    await pay(database, november, "bank")
    balance = await Balances(database).get(customer.id)
    assert balance is not None
    assert abs(balance.prepaid - (20 + 5 + 30) * DOLLAR - 1136 * CENT + 4 * 12_120_004_840_000) == 0
    assert await audit_money(database) == []


@pytest.mark.slow
async def test_credit_that_expired_before_the_invoice_has_paid_what_it_paid(database: Database) -> None:
    customer, balances = await Customer.make(database), Balances(database)
    set_clock(database, "2026-10-01")
    for kind, dollars, until in (("paid", 20, "2026-10-20"), ("promo", 5, "2026-11-02"), ("promo", 3, "2026-10-10")):
        day = to_instant(datetime.fromisoformat(until).replace(tzinfo=UTC))
        await balances.grant(customer.id, dollars * DOLLAR, "USD", kind=kind, expires_at=day)
    await customer.use("2026-10-03", USAGE)  # 12.12: all that was given, and 4.12 of what was paid
    set_clock(database, "2026-10-19T23:59")
    hold = await HoldService(database).reserve(customer.tenant.request(2 * DOLLAR))
    set_clock(database, "2026-10-20")
    await balances.expire()
    assert (await customer.accounts())["breakage"] == 20 * DOLLAR - 4_120_004_840_000 - 2 * DOLLAR
    await customer.settle([customer.tenant.event(hold, Usage(output=1_000_000))])  # 1.60 of what was kept for it
    await balances.expire()
    await customer.use("2026-10-30", USAGE)  # nothing is left: it is to be paid
    set_clock(database, "2026-11-02")
    await balances.expire()
    sent = await customer.invoice("2026-10")
    assert (sent.promo_pico, sent.prepaid_pico) == (8 * DOLLAR, 5_720_004_840_000)
    assert (sent.net, sent.prepaid, sent.payable) == (2584 - 800, 572, 2584 - 800 - 572)
    await pay(database, sent, "bank")
    balance = await balances.get(customer.id)
    assert balance is not None
    assert balance.receivable == balance.credit_line - balance.available == 4_840_000  # of a cent, which is carried
    assert await audit_money(database) == []


async def test_late_usage_is_a_correction_on_the_next_invoice(database: Database) -> None:
    customer = await Customer.make(database)
    await customer.use("2026-10-03", USAGE)
    late = await customer.requests("2026-10-20", USAGE, Usage(output=100))
    await HoldService(database).sweep(late[0].admitted_at + 3_600_000_000)
    october = await customer.invoice("2026-10")
    assert october.net == 1212
    await customer.settle(late)
    await customer.use("2026-11-05", Usage(output=1_000_000))
    november = await customer.invoice("2026-11")
    document = await customer.invoices.document(november)
    assert [(line.corrects, line.meter, line.net, line.service_until) for line in document.lines] == [
        ("", "output", 160, "2026-11-30"), ("2026-10", "uncached", 40, "2026-10-31"),
        ("2026-10", "read_5m", 12, "2026-10-31"), ("2026-10", "write_1h", 40, "2026-10-31"),
        ("2026-10", "output", 1120, "2026-10-31"),
    ]  # fmt: skip
    assert document.savings
    assert document.savings.models[0].cost == str(1_600_000_000_000)
    assert november.usage_pico == 1_600_000_000_000 + sum(event.cost_pico for event in late)


@pytest.mark.slow
async def test_what_is_carried_becomes_a_line(database: Database) -> None:
    customer = await Customer.make(database)
    billed = 0
    for month in ("2026-10", "2026-11", "2026-12"):
        await customer.use(f"{month}-04", Usage(output=2500, uncached=100))  # 0.40 cents and 0.004 cents
        billed += (await customer.invoice(month)).net
    record = (await customer.invoices.list(customer.id))[-1]
    assert billed == 1  # of 1.212 cents
    assert record.carry_out == 2_120_000_000
    lines = [(line.kind, line.net) for line in (await customer.invoices.document(record)).lines]
    assert lines == [("usage", 0), ("usage", 0)]
    november = (await customer.invoices.list(customer.id, "2026-11"))[0]
    assert (await customer.invoices.document(november)).lines[-1].kind == "carry"
    await customer.close("2027-01")  # in which nothing is used: what is carried is no reason for a document
    assert await draft(database, PriceCatalog(database), customer.id, "2027-01") == (None, None)
    await customer.use("2027-02-04", Usage(output=2500))
    assert int((await customer.invoice("2027-02")).carry_in) == 2_120_000_000
    assert await audit_money(database) == []


async def test_void_gives_the_period_back_and_keeps_the_number(database: Database) -> None:
    customer = await Customer.make(database, buyer=DOMESTIC)
    await customer.use("2026-10-03", USAGE)
    sent = await customer.invoice("2026-10")
    before = await customer.accounts()
    voided = await void(database, sent, "a mistake")
    assert (voided.state, voided.number) == ("void", "INV-2026-000001")
    assert set(await customer.accounts()) == {"receivable", "revenue"}
    with pytest.raises(WrongState):
        await void(database, sent, "a mistake")
    with pytest.raises(WrongState):
        await pay(database, sent, "bank")
    again = await customer.invoice("2026-10")
    assert again.number == "INV-2026-000002"
    assert await customer.accounts() == before
    await pay(database, again, "bank", 1)
    with pytest.raises(DocumentRefused):
        await void(database, again, "a mistake")
    assert (await mark_uncollectible(database, again, "insolvent")).state == "uncollectible"
    assert (await pay(database, again, "later")).state == "paid"
    assert await audit_money(database) == []


@pytest.mark.slow
async def test_credit_notes_by_line_and_whole_never_more_than_is_left(database: Database) -> None:
    customer = await Customer.make(database, buyer=DOMESTIC)
    await customer.use("2026-10-03", USAGE)
    sent = await customer.invoice("2026-10")
    assert (sent.net, sent.tax) == (1212, 230)
    dry, preview = await credit(database, sent, "An outage", request="1", amounts={4: 500}, write=False)
    assert dry is None
    note, document = await credit(database, sent, "An outage", request="1", amounts={4: 500})
    assert note is not None
    assert (note.number, note.gross, document.lines[0].of) == ("CN-2026-000001", 595, 4)
    assert msgspec.structs.replace(preview, number="", issued="", previous="") == preview
    assert await credit(database, sent, "An outage", request="1", amounts={4: 500}) == (note, document)
    assert await credit(database, sent, "An outage", request="1") == (note, document)
    for reason, others in (("An outage", {4: 499}), ("An outage", {4: 500, 1: 1}), ("Another", {4: 500})):
        with pytest.raises(AmountRefused):
            await credit(database, sent, reason, request="1", amounts=others)
    now = await customer.invoices.by_number("INV-2026-000001")
    assert (now.state, now.credited, now.left) == ("partially_paid", 595, 1442 - 595)
    for wrong in ({4: 621}, {4: -1}, {4: 0}, {9: 1}, {0: 1}):
        with pytest.raises(AmountRefused):
            await credit(database, sent, "x", request="2", amounts=wrong)
    with pytest.raises(InvalidText, match="reason: it is empty"):
        await credit(database, sent, " ", request="2")
    await pay(database, now, "bank", 100)
    rest, whole = await credit(database, sent, "All of it", request="3", issued=date(2026, 11, 2))
    assert rest is not None
    assert (rest.number, rest.gross, whole.tax) == ("CN-2026-000002", 1442 - 595, 230 - 95)
    with pytest.raises(AmountRefused):
        await credit(database, sent, "More", request="4")
    after = await customer.invoices.by_number("INV-2026-000001")
    assert (after.state, after.left, after.credited) == ("credited", 0, 1442)
    assert await customer.accounts() == {
        "revenue": 12_120_004_840_000, "credited": -1212 * CENT, "prepaid": 100 * CENT, "clearing": -100 * CENT,
        "rounding_carry": -4_840_000,
    }  # fmt: skip
    assert [n.number for n in (await customer.invoices.settlements(sent)).credit_notes] == [
        "CN-2026-000001",
        "CN-2026-000002",
    ]
    for refused in (pay(database, note, "bank"), void(database, note, "a mistake")):
        with pytest.raises(DocumentRefused):
            await refused
    with pytest.raises(WrongState):
        await credit(database, note, "of a note", request="5")
    assert await audit_money(database) == []


@pytest.mark.slow
async def test_a_payment_and_its_money_come_together_or_not_at_all(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    customer = await Customer.make(database)
    await customer.use("2026-10-03", USAGE)
    sent = await customer.invoice("2026-10")
    before = await customer.accounts()
    assert (await pay(database, sent, "bank", write=False)).state == "paid"
    assert await customer.accounts() == before
    with monkeypatch.context() as dying:
        dying.setattr("billing.accounts.balances.Wallet", None)  # dies with the payment and the grant written
        for money_in in (pay(database, sent, "bank"), credit(database, sent, "All of it", request="1")):
            with pytest.raises(TypeError):
                await money_in
    assert (await customer.invoices.by_number(sent.name)).left == sent.payable
    assert await customer.accounts() == before
    assert (await customer.invoices.settlements(sent)).credit_notes == []
    assert (await pay(database, sent, "bank")).left == 0
    assert await audit_money(database) == []


@pytest.mark.slow
async def test_what_a_credit_note_returns_is_credit_for_the_next_invoice(database: Database) -> None:
    customer = await Customer.make(database, pico=13 * DOLLAR)
    await customer.use("2026-10-03", USAGE)
    october = await customer.invoice("2026-10")
    assert october.state == "paid"
    await credit(database, october, "A gesture", request="1", amounts={4: 1000})
    await customer.use("2026-11-03", USAGE)
    november = await customer.invoice("2026-11")
    assert (november.net, november.prepaid) == (1212, 1088)  # 0.88 and 10.00 were there
    assert await audit_money(database) == []


@pytest.mark.slow
async def test_an_outdated_draft_is_not_finalized(database: Database) -> None:
    customer = await Customer.make(database)
    catalog = PriceCatalog(database)
    await customer.use("2026-10-03", USAGE)
    await customer.close("2026-10")
    with pytest.raises(UnknownInvoice):
        await finalize(database, catalog, customer.id, "2026-10")
    await customer.draft("2026-10")
    await Balances(database).grant(customer.id, DOLLAR, "USD")
    with pytest.raises(DraftOutdated):
        await finalize(database, catalog, customer.id, "2026-10")
    await customer.draft("2026-10")
    await Parties(database).set_buyer(customer.id, msgspec.structs.replace(BUYER, name="Another name"))
    with pytest.raises(DraftOutdated):
        await finalize(database, catalog, customer.id, "2026-10")
    await customer.draft("2026-10")
    for day in (date(2026, 10, 31), date(2026, 11, 3)):
        with pytest.raises(NumberRefused):
            await finalize(database, catalog, customer.id, "2026-10", day)
    assert (await finalize(database, catalog, customer.id, "2026-10", date(2026, 11, 1))).number == "INV-2026-000001"


@pytest.mark.slow
async def test_invoices_of_a_tenant_come_in_order_and_dates_of_a_series_too(database: Database) -> None:
    customer = await Customer.make(database)
    await customer.use("2026-10-03", USAGE)
    await customer.use("2026-11-03", USAGE)
    await customer.close("2026-10")
    await customer.close("2026-11")
    await customer.draft("2026-11")
    with pytest.raises(PeriodNotClosed, match="2026-10"):
        await finalize(database, PriceCatalog(database), customer.id, "2026-11")
    assert (await customer.invoice("2026-10")).issued == "2026-12-02"
    await customer.draft("2026-11")
    with pytest.raises(NumberRefused, match="2026-12-02"):
        await finalize(database, PriceCatalog(database), customer.id, "2026-11", date(2026, 12, 1))


@pytest.mark.slow
async def test_numbers_begin_again_each_year(database: Database) -> None:
    customer = await Customer.make(database)
    numbers = []
    for month in ("2026-10", "2026-11", "2026-12"):
        await customer.use(f"{month}-04", USAGE)
        numbers.append((await customer.invoice(month)).number)
    assert numbers == ["INV-2026-000001", "INV-2026-000002", "INV-2027-000001"]


async def test_nothing_used_is_no_invoice_and_no_profile_is_said(database: Database) -> None:
    customer = await Customer.make(database)
    assert await draft(database, PriceCatalog(database), customer.id, "2026-10") == (None, None)
    with pytest.raises(NoProfile):
        await draft(database, PriceCatalog(database), new_id(), "2026-10")
    with pytest.raises(NoProfile):
        await Parties(database).set_buyer(customer.id, msgspec.structs.replace(BUYER, seller="nobody"))


@pytest.mark.slow
async def test_two_tenants_of_one_seller_share_its_numbers_and_two_sellers_do_not(database: Database) -> None:
    one, two = await Customer.make(database), await Customer.make(database, model="zwei")
    other = msgspec.structs.replace(USD, id="other", name="Other Inc.")
    three = await Customer.make(
        database, seller=other, buyer=msgspec.structs.replace(BUYER, seller="other"), model="drei"
    )
    for customer in (one, two, three):
        await customer.use("2026-10-03", USAGE)
    numbers = [(await customer.invoice("2026-10")).number for customer in (one, two, three)]
    assert numbers == ["INV-2026-000001", "INV-2026-000002", "INV-2026-000001"]
    with pytest.raises(UnknownInvoice, match="--seller"):
        await one.invoices.by_number("INV-2026-000001")
    assert (await one.invoices.by_number("INV-2026-000001", "other")).tenant_id == three.id
    assert await audit_money(database) == []


async def test_a_project_has_its_own_lines_where_that_is_wanted(database: Database) -> None:
    customer = await Customer.make(database, buyer=msgspec.structs.replace(BUYER, detail="project"))
    await customer.use("2026-10-03", Usage(output=1_000_000))
    elsewhere = Customer(
        msgspec.structs.replace(customer.tenant, project_id=new_id(), key_id=new_id()), customer.invoices
    )
    assert isinstance(elsewhere.tenant, Tenant)
    await elsewhere.use("2026-10-04", Usage(output=2_000_000))
    names = {customer.tenant.project_id: "chat", elsewhere.tenant.project_id: "search"}
    _, document = await draft(database, PriceCatalog(database), customer.id, "2026-10", names)
    assert document is not None
    assert {(line.project, line.net) for line in document.lines} == {("chat", 160), ("search", 320)}
    await Parties(database).set_buyer(customer.id, BUYER)
    _, document = await draft(database, PriceCatalog(database), customer.id, "2026-10", names, write=False)
    assert document is not None
    assert [(line.project, line.net) for line in document.lines] == [("", 480)]
