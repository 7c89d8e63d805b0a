"""Finished invoices and credit notes at the provider: exactly as they are here, once, or not at all."""

from __future__ import annotations

import msgspec
import pytest
from sqlalchemy import update

from billing.invoices.collection import pay
from billing.invoices.credit_notes import credit
from billing.invoices.store import InvoiceRecord
from billing.payments.pushed_bills import spread_tax
from billing.tables.payments import payment_job
from billing.usage import Usage
from billing.verification.audit import audit_money
from fake_stripe.account import Object
from fake_stripe.invoices import edit_by_hand, pay_on_page, void_invoice
from tests.billing.invoices.customers import USD, Customer
from tests.billing.invoices.documents import BUYER, document
from tests.billing.payments.desk import PaymentDesk

GERMAN = msgspec.structs.replace(BUYER, country="DE", vat_id="")


async def _invoiced(desk: PaymentDesk, *, card: str | None = None, prepaid: int = 0) -> tuple[Customer, InvoiceRecord]:
    customer = await Customer.make(desk.database, prepaid, buyer=GERMAN)
    await customer.use("2026-10-03", Usage(uncached=7_777_777, output=10_333_333))
    await desk.connect(customer.id, card)
    record = await customer.invoice("2026-10")
    await desk.follow_clock()
    return customer, record


def _only_invoice(desk: PaymentDesk) -> Object:
    (only,) = desk.account.every("invoice")
    return only


async def test_an_invoice_is_there_as_it_is_here(desk: PaymentDesk) -> None:
    customer, record = await _invoiced(desk)
    await desk.work()
    pushed, there = await desk.pusher.find(record.id), _only_invoice(desk)
    assert pushed is not None
    assert (pushed.state, pushed.url != "") == ("pushed", True)
    assert (there["number"], there["status"]) == (record.number, "open")
    taxes = sum(tax["amount"] for tax in there["total_taxes"])
    assert (there["subtotal"], taxes, there["total"]) == (record.net, record.tax, record.payable)
    assert record.tax > 0
    assert there["metadata"] == {"invoice_id": str(record.id), "sha256": record.sha256}
    assert there["custom_fields"] == [{"name": "Purchase order", "value": "PO-4711"}]
    pay_on_page(desk.account, there["id"])
    await desk.work()
    assert (await customer.invoices.of_tenant(customer.id, record.id)).state == "paid"
    assert await audit_money(desk.database) == []


async def test_a_saved_card_is_charged_when_it_is_final(desk: PaymentDesk) -> None:
    customer, record = await _invoiced(desk, card="pm_card_visa")
    await desk.work()
    await desk.work()
    assert (await customer.invoices.of_tenant(customer.id, record.id)).state == "paid"
    (receipt,) = await desk.cash.list(limit=10, tenant_id=customer.id)
    assert (receipt.amount, receipt.subject_id, receipt.state) == (record.payable, record.id, "applied")
    assert await audit_money(desk.database) == []


async def test_what_was_paid_in_advance_is_a_line(desk: PaymentDesk) -> None:
    _, record = await _invoiced(desk, prepaid=5 * 10**12)
    await desk.work()
    there = _only_invoice(desk)
    assert record.prepaid > 0
    assert there["lines"][-1]["amount"] == -record.prepaid
    assert there["total"] == record.payable == record.gross - record.prepaid


@pytest.mark.parametrize("fault", ["drop", "drop_after", "conflict", "rate_limit", "error", "error_after"])
@pytest.mark.parametrize("path", ["/v1/invoices", "add_lines", "finalize"])
async def test_a_fault_pushes_once(desk: PaymentDesk, fault: str, path: str) -> None:
    _, record = await _invoiced(desk)
    if path != "/v1/invoices":
        await desk.worker.run()  # before: the id is known to be the first
        path = "/v1/invoices/in_fake000001/" + path
        if desk.account.every("invoice"):  # pushed whole already: begin again at Stripe and here
            await _begin_again(desk, record)
    desk.fake.faults.script("POST", path, fault)  # type: ignore[arg-type]
    await desk.worker.run()
    await desk.work()
    there = [one for one in desk.account.every("invoice") if one["status"] != "deleted"]
    assert [(one["number"], one["total"], one["status"]) for one in there] == [(record.number, record.payable, "open")]
    pushed = await desk.pusher.find(record.id)
    assert pushed is not None
    assert pushed.state == "pushed"


async def _begin_again(desk: PaymentDesk, record: InvoiceRecord) -> None:
    from billing.integrity.recorded_tables import PUSHED_DOCUMENTS
    from billing.payments.jobs import queue_job
    from billing.payments.recording import change_recorded

    for one in [*desk.account.every("invoice"), *desk.account.every("line_item")]:
        del desk.account.objects[one["id"]]
    desk.account._numbers.clear()
    values = {"state": "queued", "revision": 2, "provider_id": None, "lines": 0}
    async with desk.database.transaction() as session:
        await change_recorded(session, PUSHED_DOCUMENTS, "document.queued", record.id, values)
        await queue_job(desk.database, session, "push", str(record.id))


async def test_a_draft_that_differs_is_deleted_and_nothing_is_finalized(desk: PaymentDesk) -> None:
    customer, record = await _invoiced(desk)
    await desk.pusher.queue_finished("stripe")
    await desk.make_due()
    original = desk.provider.add_lines

    async def add_more(invoice: str, bill: object, lines: object, key: str) -> None:
        await original(invoice, bill, lines, key)  # type: ignore[arg-type]
        found = desk.account.find("invoice", invoice)
        edit_by_hand(desk.account, invoice, subtotal=found["subtotal"] + 1, total=found["total"] + 1)

    desk.provider.add_lines = add_more  # type: ignore[method-assign]
    await desk.work()
    pushed = await desk.pusher.find(record.id)
    assert pushed is not None
    assert pushed.state == "differs"
    assert "total is" in pushed.problem
    assert desk.account.every("invoice") == []
    assert await desk.open_tasks() == {"document_differs"}
    del desk.provider.add_lines  # type: ignore[method-assign]
    await desk.pusher.push_again(customer.id, record.id, "the editor is gone")
    await desk.work()
    again = await desk.pusher.find(record.id)
    assert again is not None
    assert (again.state, again.revision) == ("pushed", 2)


async def test_keys_that_are_forgotten_make_no_second_invoice(desk: PaymentDesk) -> None:
    """The worker ended after Stripe had made the draft, and the next one came two days later."""
    _, record = await _invoiced(desk)
    await desk.pusher.queue_finished("stripe")
    desk.fake.faults.script("POST", "/v1/invoices", "drop_after")
    await desk.worker.run()
    async with desk.database.transaction() as session:
        two_days = 2 * 86_400_000_000
        await session.execute(update(payment_job).values(created_at=payment_job.c.created_at - two_days))
    desk.account.ahead_s += 2 * 86_400
    await desk.work()
    assert [one["number"] for one in desk.account.every("invoice")] == [record.number]


async def test_a_worker_that_ended_when_the_invoice_was_final_and_paid(desk: PaymentDesk) -> None:
    """The next one finds it paid here already, by the event, and still says that it is there."""
    customer, record = await _invoiced(desk, card="pm_card_visa")
    await desk.pusher.queue_finished("stripe")
    desk.fake.faults.script("POST", "/v1/invoices/in_fake000001/finalize", "drop_after")
    await desk.worker.run()
    await desk.deliveries.deliver(all_of_them=True)
    await desk.worker.run()
    assert (await customer.invoices.of_tenant(customer.id, record.id)).state == "paid"
    await desk.work()
    pushed = await desk.pusher.find(record.id)
    assert pushed is not None
    assert pushed.state == "pushed"


async def test_small_and_settled_invoices_are_not_pushed(desk: PaymentDesk) -> None:
    customer = await Customer.make(desk.database, buyer=GERMAN)
    await customer.use("2026-10-03", Usage(output=100_000))  # 0.16
    await desk.connect(customer.id, None)
    record = await customer.invoice("2026-10")
    await desk.work()
    pushed = await desk.pusher.find(record.id)
    assert pushed is not None
    assert (pushed.state, desk.account.every("invoice")) == ("skipped", [])


async def test_a_credit_note_of_ours_is_one_there(desk: PaymentDesk) -> None:
    customer, record = await _invoiced(desk)
    await desk.work()
    note, _ = await credit(desk.database, record, "an outage", request="1", amounts={1: 100})
    assert note is not None
    await desk.work()
    (there,) = desk.account.every("credit_note")
    assert (there["total"], there["memo"]) == (note.gross, f"Credit note {note.number}")
    assert _only_invoice(desk)["amount_due"] == record.payable - note.gross
    pay_on_page(desk.account, _only_invoice(desk)["id"])
    await desk.work()
    assert (await customer.invoices.of_tenant(customer.id, record.id)).state == "paid"
    second, _ = await credit(desk.database, record, "again", request="2", amounts={1: 50})
    assert second is not None
    await desk.work()
    assert {one["total"] for one in desk.account.every("credit_note")} == {note.gross, second.gross}
    assert await audit_money(desk.database) == []


async def test_an_invoice_voided_by_hand_is_a_task(desk: PaymentDesk) -> None:
    await _invoiced(desk)
    await desk.work()
    void_invoice(desk.account, {}, _only_invoice(desk)["id"])
    await desk.work()
    assert await desk.open_tasks() == {"changed_by_hand"}


async def test_money_beyond_what_is_left_goes_to_the_balance(desk: PaymentDesk) -> None:
    customer, record = await _invoiced(desk)
    await desk.work()
    await pay(desk.database, record, "by bank", 1000)
    pay_on_page(desk.account, _only_invoice(desk)["id"])
    await desk.work()
    after = await customer.invoices.of_tenant(customer.id, record.id)
    assert (after.state, after.paid) == ("paid", record.payable)
    assert (await customer.accounts())["prepaid"] == 1000 * 10**10
    assert await audit_money(desk.database) == []


def test_tax_is_spread_to_the_cent() -> None:
    made = document(7)
    taxed = msgspec.structs.replace(
        made,
        lines=[msgspec.structs.replace(line, net=33 + n, category="S", rate=1900) for n, line in enumerate(made.lines)],
    )
    net = sum(line.net for line in taxed.lines)
    for tax in (net * 19 // 100, net * 19 // 100 + 1):
        total = msgspec.structs.replace(made.taxes[0], category="S", rate=1900, net=net, tax=tax)
        assert sum(spread_tax(msgspec.structs.replace(taxed, taxes=[total]))) == tax
    assert USD.currency == "USD"
