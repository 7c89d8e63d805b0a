"""The worker's part: queue what is due, and send it, one message at a time."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, date, datetime
from email.message import EmailMessage
from typing import Protocol
from urllib.parse import quote
from uuid import UUID

import structlog

from billing.invoices.document import Document
from billing.invoices.electronic.store import EInvoices
from billing.invoices.rendering import pdf
from billing.invoices.store import InvoiceRecord, Invoices
from billing.money import format_minor
from billing.payments.dunning.letters import Letter, write_message
from billing.payments.dunning.mail import MailError, MailUnknown, problem_of_recipient
from billing.payments.dunning.reminders import Reminder, Reminders
from billing.payments.pushing import DocumentPusher
from storage.database.circuit_breaker import beside_the_database
from storage.database.database import Database
from storage.database.public_ids import public_id

_AT_ONCE = 20
_MOST_ATTEMPTS = 8
log = structlog.get_logger(__name__)


class Mailer(Protocol):
    """Sends a message, as a `MailServer` does."""

    @property
    def sender(self) -> str: ...

    def send(self, message: EmailMessage, recipient: str) -> None: ...


class DunningWorker:
    """Sends reminders. Methods raise DatabaseUnavailable.

    `days`: when the levels begin; `console`: the console's address, for links; `names`: how tenants are called;
    `only_to`: the one address that all reminders go to instead of the buyers', in a sandbox.
    """

    def __init__(
        self,
        database: Database,
        mailer: Mailer,
        letters: Sequence[Letter],
        days: Sequence[int],
        *,
        console: str,
        names: Callable[[UUID], Awaitable[str]],
        only_to: str = "",
    ) -> None:
        self._database, self._mailer, self._letters, self._days = database, mailer, letters, days
        self._console, self._names, self._only_to = console.rstrip("/"), names, only_to
        self._reminders, self._invoices = Reminders(database), Invoices(database)
        self._einvoices, self._pusher = EInvoices(database), DocumentPusher(database)

    async def run(self) -> bool:
        """Send what is due; whether there may be more."""
        await self._reminders.give_up_claims()
        await self._reminders.queue_due(self._days)
        for _ in range(_AT_ONCE):
            reminder = await self._reminders.claim()
            if reminder is None:
                return False
            await self._send(reminder)
        return True

    async def _send(self, reminder: Reminder) -> None:
        record = await self._invoices.of_tenant(reminder.tenant_id, reminder.invoice_id)
        is_open = record.state in ("finalized", "partially_paid") and record.left > 0
        if not is_open or not await self._reminders.are_wanted(reminder.tenant_id):
            why = "the tenant wants none" if is_open else f"the invoice is {record.state}"
            await self._reminders.end(reminder, "canceled", why)
            return
        if problem := problem_of_recipient(reminder.recipient):
            await self._reminders.end(reminder, "refused", problem)
            return
        document = await self._invoices.document(record)
        subject, text = self._letter(reminder).filled(await self._values(record, document))
        recipient = self._only_to or reminder.recipient
        if self._only_to:
            subject = f"[sandbox, for {reminder.recipient}] {subject}"
        message = await self._message(reminder, recipient, record, document, subject=subject, text=text)
        if not await self._reminders.may_send(reminder):
            log.warning("a payment reminder was prepared too late", invoice=record.number)
            return
        try:
            with beside_the_database():
                await asyncio.to_thread(self._mailer.send, message, recipient)
        except MailUnknown as error:
            await self._reminders.end(reminder, "unknown", str(error), subject)
        except MailError as error:
            again = error.again and reminder.attempts + 1 < _MOST_ATTEMPTS
            await self._reminders.end(reminder, "queued" if again else "refused", str(error), subject)
            log.warning("a payment reminder was not sent", invoice=record.number, cause=str(error), again=again)
        else:
            await self._reminders.end(reminder, "sent", subject=subject)

    def _letter(self, reminder: Reminder) -> Letter:
        return self._letters[min(reminder.level, len(self._letters)) - 1]

    async def _values(self, record: InvoiceRecord, document: Document) -> dict[str, str]:
        today = datetime.fromtimestamp(await self._database.now() // 1_000_000, UTC).date()
        pushed = await self._pusher.find(record.id)
        name, number = await self._names(record.tenant_id), record.number or ""
        page = f"Pay it here: {pushed.url}" if pushed is not None and pushed.url else ""
        return {
            "buyer": document.buyer.name,
            "seller": document.seller.name,
            "number": number,
            "issued": record.issued or "",
            "due": record.due or "",
            "left": f"{format_minor(record.left, record.currency)} {record.currency}",
            "total": f"{format_minor(record.gross, record.currency)} {record.currency}",
            "days": str((today - date.fromisoformat(record.due)).days if record.due else 0),
            # by its id: a number may have a `/`
            "link": f"{self._console}/console/tenants/{quote(name, safe='')}/invoices/{public_id('invoice', record.id)}"
            if self._console
            else "",
            "payment": page or "\n".join(document.seller.payment),
        }

    async def _message(
        self, reminder: Reminder, recipient: str, record: InvoiceRecord, document: Document, *, subject: str, text: str
    ) -> EmailMessage:
        settled = await self._invoices.settlements(record)
        embedded = (await self._einvoices.stored(record)).get("cii")
        name = re.sub(r"[^A-Za-z0-9._-]", "_", f"{record.number}.pdf")
        attached: tuple[str, bytes] | None = None
        try:
            with beside_the_database():
                content = await asyncio.to_thread(
                    pdf.to_pdf, document, record.state, record.sha256 or "", settled, embedded=embedded
                )
            attached = name, content
        except pdf.NotPrintable as error:
            log.warning("a payment reminder goes without its PDF", invoice=record.number, cause=str(error))
        host = self._mailer.sender.rpartition("@")[2].rstrip(">")
        identity = f"<reminder-{reminder.id}@{host}>"
        return write_message(self._mailer.sender, recipient, subject, text, identity, attached)
