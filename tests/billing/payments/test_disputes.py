"""Disputes: money that the bank takes back leaves the balance, and comes back when it is won."""

from __future__ import annotations

import pytest

from billing.accounts.balances import Balances
from billing.calendar import period_of
from billing.exports.account import account_statements
from billing.ledger.entries import Balance
from billing.payments.errors import PaymentRefused
from billing.usage import Usage
from billing.verification.audit import audit_money
from fake_stripe.disputes import close_dispute, open_dispute
from fake_stripe.payments import complete_checkout, new_intent, take_money
from tests.billing.invoices.customers import Customer
from tests.billing.payments.desk import PaymentDesk

DOLLAR = 10**12


async def _topped_up(desk: PaymentDesk) -> tuple[Customer, str, object]:
    customer = await Customer.make(desk.database)
    await desk.connect(customer.id, card=None)
    made = await desk.top_ups.create(customer.id, "stripe", 2500, "USD")
    await desk.work()
    sent = await desk.top_ups.get(customer.id, made.id)
    assert sent.session_id is not None
    complete_checkout(desk.account, sent.session_id)
    await desk.work()
    paid = await desk.top_ups.get(customer.id, made.id)
    assert paid.payment_id is not None
    return customer, paid.payment_id, made.id


async def _balance(desk: PaymentDesk, customer: Customer) -> Balance:
    balance = await Balances(desk.database).get(customer.id)
    assert balance is not None
    return balance


@pytest.mark.parametrize("won", [True, False])
async def test_used_money_is_owed_again_until_it_is_won(desk: PaymentDesk, won: bool) -> None:
    customer, payment, _ = await _topped_up(desk)
    await customer.use("2026-10-03", Usage(output=10_000_000))  # 16.00 of 25.00
    dispute = open_dispute(desk.account, payment)
    await desk.work()
    balance = await _balance(desk, customer)
    assert (balance.prepaid, balance.receivable) == (0, 16 * DOLLAR)
    (row,) = await desk.disputes()
    assert (row.state, row.moved) == ("withdrawn", 2500)
    assert await audit_money(desk.database) == []

    close_dispute(desk.account, dispute["id"], won=won)
    await desk.work()
    (row,) = await desk.disputes()
    balance = await _balance(desk, customer)
    assert row.state == ("won" if won else "lost")
    assert (balance.prepaid, balance.receivable) == ((9 * DOLLAR, 0) if won else (0, 16 * DOLLAR))
    assert await audit_money(desk.database) == []


async def test_an_inquiry_moves_nothing_and_stops_the_card(desk: PaymentDesk) -> None:
    customer, payment, top_up = await _topped_up(desk)
    await desk.auto.put(customer.id, currency="USD", threshold_pico=0, amount=1000, enabled=True)
    dispute = open_dispute(desk.account, payment, withdraw=False)
    await desk.work()
    assert (await _balance(desk, customer)).prepaid == 25 * DOLLAR
    auto = await desk.auto.get(customer.id)
    assert auto is not None
    assert auto.state == "paused"
    with pytest.raises(PaymentRefused, match="disputed"):
        await desk.refunds.create(customer.id, top_up, None, "why not")  # type: ignore[arg-type]
    close_dispute(desk.account, dispute["id"], won=True)
    await desk.work()
    assert [row.state for row in await desk.disputes()] == ["won"]
    assert (await _balance(desk, customer)).prepaid == 25 * DOLLAR


async def test_events_in_any_order_come_to_the_same(desk: PaymentDesk) -> None:
    customer, payment, _ = await _topped_up(desk)
    dispute = open_dispute(desk.account, payment)
    close_dispute(desk.account, dispute["id"], won=True)
    desk.deliveries.waiting.reverse()
    desk.deliveries.waiting *= 2
    await desk.work()
    assert [(row.state, row.moved) for row in await desk.disputes()] == [("won", 0)]
    assert (await _balance(desk, customer)).prepaid == 25 * DOLLAR
    assert await audit_money(desk.database) == []


@pytest.mark.parametrize("closed_first", [False, True])
async def test_a_dispute_before_its_payment_takes_it_when_it_comes(desk: PaymentDesk, closed_first: bool) -> None:
    customer = await Customer.make(desk.database)
    await desk.connect(customer.id, card=None)
    made = await desk.top_ups.create(customer.id, "stripe", 2500, "USD")
    await desk.work()
    sent = await desk.top_ups.get(customer.id, made.id)
    assert sent.session_id is not None
    complete_checkout(desk.account, sent.session_id)
    late = list(desk.deliveries.waiting)
    desk.deliveries.waiting.clear()
    (payment,) = desk.account.every("payment_intent")
    dispute = open_dispute(desk.account, payment["id"])
    if closed_first:
        close_dispute(desk.account, dispute["id"], won=False)
    await desk.work()
    assert [(row.moved, row.tenant_id) for row in await desk.disputes()] == [(0, None)]
    desk.deliveries.waiting.extend(late)
    await desk.work()
    state = "lost" if closed_first else "withdrawn"
    assert [(row.state, row.moved, row.tenant_id) for row in await desk.disputes()] == [(state, 2500, customer.id)]
    assert (await _balance(desk, customer)).prepaid == 0
    close_dispute(desk.account, dispute["id"], won=False)
    await desk.work()
    assert (await _balance(desk, customer)).prepaid == 0
    assert await audit_money(desk.database) == []


async def test_a_dispute_takes_money_that_is_applied_later(desk: PaymentDesk) -> None:
    customer = await Customer.make(desk.database)
    await desk.connect(customer.id, card=None)
    strange = take_money(desk.account, new_intent(desk.account, amount=2500, currency="usd"))
    open_dispute(desk.account, strange["id"])
    await desk.work()
    (receipt,) = await desk.cash.list(limit=10)
    await desk.cash.apply(receipt.id, customer.id, None, "it is theirs")
    await desk.work()
    assert [(row.moved, row.tenant_id) for row in await desk.disputes()] == [(2500, customer.id)]
    assert (await _balance(desk, customer)).prepaid == 0


async def test_the_statement_of_account_calls_all_of_a_dispute_by_its_name(desk: PaymentDesk) -> None:
    """Also of a second dispute, which takes what the first put back, from several grants."""
    customer, payment, _ = await _topped_up(desk)
    await customer.use("2026-10-03", Usage(output=10_000_000))  # 16.00 of 25.00
    disputes = []
    for won in (True, False):
        disputes.append(open_dispute(desk.account, payment)["id"])
        await desk.work()
        close_dispute(desk.account, disputes[-1], won=won)
        await desk.work()
    assert [row.moved for row in await desk.disputes()] == [2500, 2500]
    month = period_of(await desk.database.now())
    (statement,) = await account_statements(desk.database, customer.id, month)
    said = [(line.kind, line.text, line.amount_pico // DOLLAR) for line in statement.lines if line.kind != "usage"]
    lines = [(kind, text, amount) for kind, text, amount in said if kind not in ("opening", "closing")]
    assert lines == [("dispute", disputes[1], -25)], "the first took nothing in all"
