"""Reminders: of each level of an invoice one e-mail, whatever the mail server or a worker does."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from datetime import date
from pathlib import Path
from uuid import UUID

import msgspec
import pytest
from sqlalchemy import literal, update

from billing.invoices.collection import pay
from billing.invoices.errors import WrongState
from billing.invoices.parties.store import Parties
from billing.invoices.store import InvoiceRecord
from billing.payments.dunning.due import find_due, parse_days
from billing.payments.dunning.letters import InvalidLetter, Letter, load_letters, write_message
from billing.payments.dunning.mail import MailError, MailServer
from billing.payments.dunning.reminders import CLAIMED_S, SENT_WITHIN_S, Reminder, Reminders, ReminderState
from billing.payments.dunning.sending import DunningWorker
from billing.payments.tasks import FinanceTasks
from billing.tables.payments import payment_reminder
from billing.usage import Usage
from billing.verification.audit import audit_money
from storage.database.base import Count
from storage.database.database import Database
from storage.database.public_ids import public_id
from tests.billing.invoices.customers import Customer
from tests.billing.invoices.documents import BUYER
from tests.billing.payments.dunning.mail_sink import MailSink

DAYS = (3, 14, 30)
DAY_US = 86_400_000_000


@pytest.fixture
async def sink() -> AsyncIterator[MailSink]:
    async with MailSink() as made:
        yield made


class Desk:
    """An invoice, and a worker that reminds of it."""

    def __init__(
        self, database: Database, customer: Customer, record: InvoiceRecord, sink: MailSink, letters: Sequence[Letter]
    ) -> None:
        self.database, self.customer, self.record = database, customer, record
        self.reminders = Reminders(database)
        self.letters = letters
        self.server = MailServer(
            host="127.0.0.1", port=sink.port, encryption="none", sender="Billing <billing@seller.example>"
        )
        self.worker = self.other_worker()

    def other_worker(self, names: Callable[[UUID], Awaitable[str]] | None = None, only_to: str = "") -> DunningWorker:
        """Another worker. `names` is asked when a reminder is claimed and not sent yet."""
        return DunningWorker(
            self.database, self.server, self.letters, DAYS,
            console="https://console.example/", names=names or self._name, only_to=only_to,
        )  # fmt: skip

    async def _name(self, _: UUID) -> str:
        return "acme"

    async def be_overdue(self, days: int, later_s: int = 0) -> None:
        """Let it be so many days after the invoice's due date, and so many seconds."""
        assert self.record.due is not None
        day = date.fromisoformat(self.record.due).toordinal() - date(1970, 1, 1).toordinal() + days
        self.database.clock = literal(day * DAY_US + later_s * 1_000_000, Count())

    async def work(self) -> list[Reminder]:
        """Send what is due, without waiting for another try; all reminders, the oldest first."""
        async with self.database.transaction() as session:
            await session.execute(update(payment_reminder).values(due_at=0))
        await self.worker.run()
        return list(reversed(await self.reminders.list(limit=100)))


@pytest.fixture
async def desk(database: Database, sink: MailSink) -> Desk:
    return await _desk(database, sink, email="ap@acme.example")


async def _desk(
    database: Database, sink: MailSink, *, email: str, name: str = BUYER.name, letters: Sequence[Letter] = ()
) -> Desk:
    customer = await Customer.make(database, 0, buyer=msgspec.structs.replace(BUYER, email=email, name=name))
    await customer.use("2026-10-03", Usage(uncached=7_777_777, output=10_333_333))
    return Desk(database, customer, await customer.invoice("2026-10"), sink, letters or load_letters())


@pytest.mark.both_databases
async def test_each_level_is_sent_once_with_the_pdf(desk: Desk, sink: MailSink) -> None:
    await desk.be_overdue(2)
    assert await desk.work() == []
    await desk.be_overdue(3)
    (due,) = await find_due(desk.database, DAYS)
    assert (due.level, due.recipient, due.left) == (1, "ap@acme.example", desk.record.left)
    for _ in range(2):
        (first,) = await desk.work()
        assert (first.level, first.state, first.sent_at is not None) == (1, "sent", True)
    ((recipient, message),) = sink.messages
    assert (recipient, message["Subject"], message["From"]) == (
        "ap@acme.example", first.subject, "Billing <billing@seller.example>",
    )  # fmt: skip
    body = message.get_body(("plain",))
    assert body is not None
    link = f"https://console.example/console/tenants/acme/invoices/{public_id('invoice', desk.record.id)}"
    assert link in body.get_content().split(), "a number may have a /, which ends a part of a path"
    (attached,) = message.iter_attachments()
    assert attached.get_filename() == f"{desk.record.number}.pdf"
    assert attached.get_payload(decode=True)[:5] == b"%PDF-"  # type: ignore[index]
    await desk.be_overdue(40)  # the level between them is not sent any more
    assert [one.level for one in await desk.work()] == [1, 3]
    assert await desk.work() == await desk.work()
    assert [message["Subject"].split(":")[0] for _, message in sink.messages] == ["Reminder", "Last reminder"]
    assert await audit_money(desk.database) == []


async def test_who_has_paid_or_opted_out_is_not_reminded(desk: Desk, sink: MailSink) -> None:
    await desk.be_overdue(5)
    await desk.reminders.want(desk.customer.id, "to our accountant", enabled=False)
    assert await find_due(desk.database, DAYS) == []
    assert await desk.work() == []
    await desk.reminders.want(desk.customer.id, "again", enabled=True)
    assert await desk.reminders.queue_due(DAYS) == 1
    await pay(desk.database, await desk.customer.invoices.of_tenant(desk.customer.id, desk.record.id), "bank 1")
    (only,) = await desk.work()
    assert (only.state, only.problem, sink.messages) == ("canceled", "the invoice is paid", [])


async def test_what_the_server_does_not_take_now_is_sent_later(desk: Desk, sink: MailSink) -> None:
    await desk.be_overdue(5)
    sink.faults = ["busy", "hang up"]
    (after,) = await desk.work()
    assert (after.state, after.attempts, "450" in after.problem) == ("queued", 1, True)
    assert await desk.reminders.claim() is None  # not before its time
    states = [(await desk.work())[0].state for _ in range(3)]
    assert states[-1] == "sent"
    assert len(sink.messages) == 1


async def test_a_refused_address_and_none_are_tasks(desk: Desk, sink: MailSink) -> None:
    await desk.be_overdue(5)
    sink.faults = ["no such user"]
    (refused,) = await desk.work()
    assert (refused.state, "550" in refused.problem) == ("refused", True)
    (task,) = await FinanceTasks(desk.database).list(limit=10)
    assert (task.kind, task.tenant_id) == ("reminder_failed", desk.customer.id)
    assert [one.state for one in await desk.work()] == ["refused"]
    await desk.reminders.send_again(refused.id, "the mailbox is there now")
    assert [one.state for one in await desk.work()] == ["sent"]
    with pytest.raises(WrongState):
        await desk.reminders.send_again(refused.id, "once more")


async def test_without_an_address_nothing_is_sent(database: Database, sink: MailSink) -> None:
    desk = await _desk(database, sink, email="")
    await desk.be_overdue(5)
    (only,) = await desk.work()
    assert (only.state, only.problem) == ("refused", "the buyer has no e-mail address")
    assert sink.messages == []


@pytest.mark.parametrize("email", ["a@[b.c", "jürgen@acme.example", "=?utf-8?q?a=0aBcc:b?=@acme.example"])
async def test_an_address_that_no_server_takes_is_a_task_and_no_hindrance(
    database: Database, sink: MailSink, email: str
) -> None:
    desk = await _desk(database, sink, email=email)
    await desk.be_overdue(5)
    (only,) = await desk.work()
    assert (only.state, "is no address" in only.problem) == ("refused", True)
    (task,) = await FinanceTasks(database).list(limit=10)
    assert task.kind == "reminder_failed"


async def test_a_reminder_is_sent_again_to_the_address_of_then(database: Database, sink: MailSink) -> None:
    desk = await _desk(database, sink, email="")
    await desk.be_overdue(5)
    (refused,) = await desk.work()
    assert refused.state == "refused"
    buyer = msgspec.structs.replace(BUYER, email="ap@acme.example")
    await Parties(database).set_buyer(desk.customer.id, buyer, reason="they gave us one")
    again = await desk.reminders.send_again(refused.id, "they gave us an address")
    assert (again.recipient, again.attempts) == ("ap@acme.example", 0)
    assert [one.state for one in await desk.work()] == ["sent"]
    assert [recipient for recipient, _ in sink.messages] == ["ap@acme.example"]
    assert await audit_money(database) == []


async def test_a_name_writes_no_header(database: Database, sink: MailSink) -> None:
    letters = [Letter("$buyer owes $left", "Pay, $buyer.\n")]
    name = "=?utf-8?q?x=0d=0aBcc:_e@evil.example=0d=0a=0d=0aClick?="
    desk = await _desk(database, sink, email="ap@acme.example", name=name, letters=letters)
    await desk.be_overdue(5)
    assert [one.state for one in await desk.work()] == ["sent"]
    ((_, message),) = sink.messages
    assert message["Bcc"] is None
    assert "evil.example" in message["Subject"]
    assert message.get_content_type() == "multipart/mixed"


async def test_a_password_that_cannot_be_said_is_tried_again(sink: MailSink, tmp_path: Path) -> None:
    (tmp_path / "password").write_text("pässword")
    server = MailServer(
        host="127.0.0.1", port=sink.port, encryption="none", sender="b@seller.example", user="billing",
        password_file=str(tmp_path / "password"),
    )  # fmt: skip
    sink.features = ["AUTH LOGIN"]
    message = write_message("b@seller.example", "ap@acme.example", "s", "t\n", "<1@seller.example>", None)
    with pytest.raises(MailError, match="not in ASCII") as caught:
        await asyncio.to_thread(server.send, message, "ap@acme.example")
    assert caught.value.again


async def test_what_may_have_been_sent_is_not_sent_again_by_itself(desk: Desk, sink: MailSink) -> None:
    await desk.be_overdue(5)
    sink.faults = ["hang up after"]
    (unknown,) = await desk.work()
    assert unknown.state == "unknown"
    assert [one.state for one in await desk.work()] == ["unknown"]
    assert len(sink.messages) == 1
    assert {task.kind for task in await FinanceTasks(desk.database).list(limit=10)} == {"reminder_failed"}


async def test_a_worker_that_ends_while_it_sends_leaves_a_task_and_no_second_message(
    desk: Desk, sink: MailSink
) -> None:
    await desk.be_overdue(5)
    await desk.reminders.queue_due(DAYS)
    claimed = await desk.reminders.claim()
    assert claimed is not None
    assert await desk.reminders.claim() is None  # nobody else sends it
    assert [one.state for one in await desk.work()] == ["sending"]
    async with desk.database.transaction() as session:
        before = payment_reminder.c.updated_at - (CLAIMED_S + 1) * 1_000_000
        await session.execute(update(payment_reminder).values(updated_at=before))
    assert [one.state for one in await desk.work()] == ["unknown"]
    assert sink.messages == []


async def _give_up_claim(desk: Desk) -> Reminder:
    """Let the claim be so old that another worker gives it up."""
    async with desk.database.transaction() as session:
        before = payment_reminder.c.updated_at - (CLAIMED_S + 1) * 1_000_000
        await session.execute(update(payment_reminder).values(updated_at=before))
    assert await desk.reminders.give_up_claims() == 1
    (row,) = await desk.reminders.list(limit=10)
    return row


@pytest.mark.both_databases
async def test_a_worker_that_is_late_sends_nothing_on_a_claim_that_was_given_up(desk: Desk, sink: MailSink) -> None:
    async def late(_: UUID) -> str:
        await _give_up_claim(desk)
        return "acme"

    await desk.be_overdue(5)
    await desk.reminders.queue_due(DAYS)
    await desk.other_worker(late).run()
    (row,) = await desk.reminders.list(limit=10)
    assert (row.state, sink.messages) == ("unknown", [])
    await desk.reminders.send_again(row.id, "it did not come")
    assert [one.state for one in await desk.work()] == ["sent"]
    assert len(sink.messages) == 1


async def test_a_claim_that_is_nearly_over_is_given_back(desk: Desk, sink: MailSink) -> None:
    async def late(_: UUID) -> str:
        await desk.be_overdue(5, later_s=SENT_WITHIN_S + 1)
        return "acme"

    await desk.be_overdue(5)
    await desk.reminders.queue_due(DAYS)
    await desk.other_worker(late).run()
    (row,) = await desk.reminders.list(limit=10)
    assert (row.state, sink.messages) == ("queued", [])
    assert [one.state for one in await desk.work()] == ["sent"]


@pytest.mark.parametrize("state", ["queued", "refused", "unknown", "canceled"])
async def test_what_a_late_worker_says_lets_nothing_be_sent_twice(
    desk: Desk, sink: MailSink, state: ReminderState
) -> None:
    await desk.be_overdue(5)
    await desk.reminders.queue_due(DAYS)
    claimed = await desk.reminders.claim()
    assert claimed is not None
    row = await _give_up_claim(desk)
    await desk.reminders.send_again(row.id, "it did not come")
    assert [one.state for one in await desk.work()] == ["sent"]
    await desk.reminders.end(claimed, state, "the mail server hung up")
    assert [one.state for one in await desk.work()] == ["sent"]
    assert len(sink.messages) == 1


async def test_that_it_was_sent_is_known_though_late(desk: Desk, sink: MailSink) -> None:
    await desk.be_overdue(5)
    await desk.reminders.queue_due(DAYS)
    claimed = await desk.reminders.claim()
    assert claimed is not None
    row = await _give_up_claim(desk)
    await desk.reminders.send_again(row.id, "it did not come")
    await desk.reminders.end(claimed, "sent")
    assert [one.state for one in await desk.work()] == ["sent"]
    assert sink.messages == []


async def test_a_sandbox_reminds_one_address(database: Database, sink: MailSink) -> None:
    desk = await _desk(database, sink, email="ap@acme.example")
    await desk.be_overdue(5)
    await desk.reminders.queue_due(DAYS)
    await desk.other_worker(only_to="us@seller.example").run()
    ((recipient, message),) = sink.messages
    assert (recipient, message["To"]) == ("us@seller.example", "us@seller.example")
    assert message["Subject"].startswith("[sandbox, for ap@acme.example] Reminder")
    (row,) = await desk.reminders.list(limit=10)
    assert (row.state, row.subject) == ("sent", message["Subject"])


def test_days_and_letters_that_cannot_be_are_refused(tmp_path: Path) -> None:
    assert parse_days("3, 14") == (3, 14)
    for text in ("0", "14,3", "3,3", "x", "400"):
        with pytest.raises(ValueError, match=r"days|invalid literal"):
            parse_days(text)
    with pytest.raises(InvalidLetter, match="has no level-1"):
        load_letters(str(tmp_path))
    (tmp_path / "level-1.txt").write_text("Hello $name\n\nPay $left.\n")
    with pytest.raises(InvalidLetter, match="name is no field"):
        load_letters(str(tmp_path))
    (tmp_path / "level-1.txt").write_text("Invoice $number\n\nPay $left, $$ or not.\n")
    (letter,) = load_letters(str(tmp_path))
    values = dict.fromkeys(("number", "left"), "X")
    assert letter.filled(values) == ("Invoice X", "Pay X, $ or not.\n")
