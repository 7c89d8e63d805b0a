"""Finished invoices and credit notes at the provider, exactly as they are here.

    queued ──▶ drafted ──▶ pushed
      │           ├──────▶ differs    the draft said something else: it was deleted, and finance has a task
      ├──────▶ skipped                nothing, or too little, is to be collected
      └──────▶ refused                the provider did not take it

Each id that the provider returns is stored before the next call, and each call has a key that follows from the document
and its revision: whenever the worker ends, the next one goes on where it was.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from uuid import UUID

import msgspec
from sqlalchemy import exists, select

from billing.integrity.recorded_tables import PUSHED_DOCUMENTS
from billing.invoices.document import Document
from billing.invoices.errors import WrongState
from billing.invoices.store import InvoiceRecord, Invoices
from billing.money import format_minor
from billing.payments.customers import ConnectedTenant, Customers
from billing.payments.errors import UnknownPayment
from billing.payments.jobs import queue_job
from billing.payments.provider import CreditedPart, InvoiceFact, PaymentProvider, ProviderRefused, PushedBill
from billing.payments.pushed_bills import LEAST_COLLECTED, day_start, differences, spread_tax, to_bill
from billing.payments.recording import change_recorded, insert_recorded
from billing.payments.tasks import add_task
from billing.tables.invoices import invoice
from billing.tables.payments import payment_customer, pushed_document
from storage.database.database import Database

LINES_AT_ONCE = 50
_PUSHED, _DOCUMENT = pushed_document.c, invoice.c
_AT_ONCE = 100


class PushedDocument(msgspec.Struct, frozen=True):
    """A document at the provider. `lines`: how many it has there by now."""

    document_id: UUID
    tenant_id: UUID
    provider: str
    revision: int
    state: str
    provider_id: str | None
    lines: int
    url: str
    problem: str


_COLUMNS = [_PUSHED[name] for name in PushedDocument.__struct_fields__]


class DocumentPusher:
    """Pushes documents. Methods raise DatabaseUnavailable, and ProviderUnavailable where they call the provider."""

    def __init__(self, database: Database) -> None:
        self._database, self._invoices, self._customers = database, Invoices(database), Customers(database)

    async def find(self, document_id: UUID) -> PushedDocument | None:
        """A document at the provider; None if it is not there."""
        # all tenants: the document's id says whose it is
        async with self._database.reading() as session:
            row = (await session.execute(select(*_COLUMNS).where(_PUSHED.document_id == document_id))).one_or_none()
        return None if row is None else PushedDocument(*row)

    async def of_provider_id(self, provider: str, provider_id: str) -> PushedDocument | None:
        """The document that the provider calls so; None if none of ours."""
        # all tenants: the provider's id says whose it is
        query = select(*_COLUMNS).where(_PUSHED.provider == provider, _PUSHED.provider_id == provider_id)
        async with self._database.reading() as session:
            row = (await session.execute(query)).one_or_none()
        return None if row is None else PushedDocument(*row)

    async def of_tenant(self, tenant_id: UUID, documents: list[UUID]) -> dict[UUID, PushedDocument]:
        """Those of a tenant's documents that are at the provider."""
        query = select(*_COLUMNS).where(_PUSHED.tenant_id == tenant_id, _PUSHED.document_id.in_(documents))
        async with self._database.reading() as session:
            return {row.document_id: PushedDocument(*row) for row in await session.execute(query)}

    async def queue_finished(self, provider: str) -> int:
        """Queue the documents of connected tenants that were issued since they are connected; returns how many."""
        customer = payment_customer.c
        there = exists().where(_PUSHED.document_id == _DOCUMENT.id)
        query = select(_DOCUMENT.id, _DOCUMENT.tenant_id, _DOCUMENT.kind)
        query = query.join(payment_customer, customer.tenant_id == _DOCUMENT.tenant_id)
        wanted = (customer.provider == provider, customer.collection != "none", customer.provider_id.is_not(None))
        issued = (_DOCUMENT.state.not_in(("draft", "void")), _DOCUMENT.finalized_at >= customer.connected_at)
        query = query.where(*wanted, *issued, ~there).order_by(_DOCUMENT.finalized_at).limit(_AT_ONCE)
        async with self._database.reading() as session:  # all tenants: the worker pushes for all of them
            rows = (await session.execute(query)).all()
        for row in rows:
            async with self._database.transaction() as session:
                await self._database.lock_rows_of(session, pushed_document, row.id)
                if await session.scalar(select(_PUSHED.state).where(_PUSHED.document_id == row.id)) is not None:
                    continue
                new = {"document_id": row.id, "tenant_id": row.tenant_id, "provider": provider, "state": "queued"}
                now = self._database.clock
                await insert_recorded(session, PUSHED_DOCUMENTS, "document.queued", new | {"updated_at": now})
                kind = "credit_note" if row.kind == "credit_note" else "push"  # an advance is paid, and skipped
                await queue_job(self._database, session, kind, str(row.id))  # type: ignore[arg-type]
        return len(rows)

    async def push_again(self, tenant_id: UUID, document_id: UUID, reason: str) -> PushedDocument:
        """Try a document again that differed or was refused, as a new revision. Raises UnknownPayment, WrongState."""
        async with self._database.transaction() as session:
            query = select(*_COLUMNS).where(_PUSHED.tenant_id == tenant_id, _PUSHED.document_id == document_id)
            found = (await session.execute(self._database.locked(query))).one_or_none()
            if found is None:
                raise UnknownPayment("the document is not at the provider")
            if found.state not in ("differs", "refused"):
                raise WrongState("the document", found.state, "pushed again")
            values = {"state": "queued", "revision": found.revision + 1, "lines": 0, "problem": "", "provider_id": None}
            await self._write(session, document_id, values, "document.queued", reason)
            record = await self._invoices.of_tenant(tenant_id, document_id)
            kind = "credit_note" if record.kind == "credit_note" else "push"
            await queue_job(self._database, session, kind, str(document_id))  # type: ignore[arg-type]
        return PushedDocument(*found)

    # ------------------------------------------------------------ invoices

    async def push(self, provider: PaymentProvider, document_id: UUID, *, old: bool = False) -> None:
        """Push an invoice, or go on with it. `old`: the provider may have forgotten the keys, so what was made is
        looked for first."""
        row = await self.find(document_id)
        if row is None or row.state not in ("queued", "drafted"):
            return
        record = await self._invoices.of_tenant(row.tenant_id, document_id)
        tenant, customer = await self._customers.get(row.tenant_id)
        if (why := _not_collected(record)) is not None and not await self._is_final(provider, row):
            if row.provider_id is not None:
                await provider.delete_draft(row.provider_id)
            await self._change(row, {"state": "skipped", "problem": why}, "document.skipped")
            return
        bill = to_bill(record, await self._invoices.document(record), charge=_charges(tenant))
        try:
            row = await self._draft(provider, row, customer, bill, old=old)
            assert row.provider_id is not None
            fact = await provider.invoice(row.provider_id)
            if fact.status == "draft":
                fact = await self._complete(provider, row, bill, fact)
            if found := differences(bill, fact):
                await self._refuse_difference(provider, row, record, fact, found)
                return
            if fact.status == "draft":
                key = f"inv:{document_id}:r{row.revision}:finalize"
                fact = await provider.finalize(fact.id, charge=bill.charge, key=key)
        except ProviderRefused as error:
            if row.provider_id is not None and (await provider.invoice(row.provider_id)).status == "draft":
                await provider.delete_draft(row.provider_id)
            await self._refuse(row, record, str(error))
            return
        await self._change(row, {"state": "pushed", "url": fact.url, "lines": len(fact.lines)}, "document.pushed")

    async def _is_final(self, provider: PaymentProvider, row: PushedDocument) -> bool:
        """Whether an earlier worker made it final, and ended before the row said so: it may even be paid by now."""
        return row.provider_id is not None and (await provider.invoice(row.provider_id)).status != "draft"

    async def _draft(
        self, provider: PaymentProvider, row: PushedDocument, customer: str, bill: PushedBill, *, old: bool
    ) -> PushedDocument:
        if row.provider_id is not None:
            return row
        made = await provider.find_draft(customer, bill.document, 0) if old else None
        if made is None:
            made = await provider.create_draft(customer, bill, f"inv:{row.document_id}:r{row.revision}:create")
        await self._change(row, {"state": "drafted", "provider_id": made}, "document.drafted")
        return msgspec.structs.replace(row, state="drafted", provider_id=made)

    async def _complete(
        self, provider: PaymentProvider, row: PushedDocument, bill: PushedBill, fact: InvoiceFact
    ) -> InvoiceFact:
        """Add the lines that a draft has not yet; they are numbered."""
        there = {line.n for line in fact.lines}
        for chunk in range(0, len(bill.lines), LINES_AT_ONCE):
            lines = [line for line in bill.lines[chunk : chunk + LINES_AT_ONCE] if line.n not in there]
            if lines:
                key = f"inv:{row.document_id}:r{row.revision}:lines:{chunk // LINES_AT_ONCE}"
                await provider.add_lines(fact.id, bill, lines, key)
                await self._change(row, {"lines": chunk + len(lines)}, "document.lines_added")
        return await provider.invoice(fact.id)

    async def _refuse_difference(
        self, provider: PaymentProvider, row: PushedDocument, record: InvoiceRecord, fact: InvoiceFact, found: str
    ) -> None:
        if fact.status == "draft":
            await provider.delete_draft(fact.id)
        async with self._database.transaction() as session:
            await self._write(session, row.document_id, {"state": "differs", "problem": found}, "document.differs")
            text = f"{record.name} differs at {provider.name}: {found}"
            await add_task(self._database, session, "document_differs", str(row.document_id), text, row.tenant_id)

    async def _refuse(self, row: PushedDocument, record: InvoiceRecord, problem: str) -> None:
        async with self._database.transaction() as session:
            values = {"state": "refused", "problem": problem[:500]}
            await self._write(session, row.document_id, values, "document.refused")
            text = f"{record.name} is not taken by {row.provider}: {problem}"
            await add_task(self._database, session, "document_refused", str(row.document_id), text, row.tenant_id)

    # ------------------------------------------------------------ credit notes

    async def push_credit_note(self, provider: PaymentProvider, document_id: UUID) -> None:
        """Push a credit note for an invoice that is at the provider."""
        row = await self.find(document_id)
        if row is None or row.state not in ("queued", "drafted"):
            return
        note = await self._invoices.of_tenant(row.tenant_id, document_id)
        assert note.corrects is not None
        pushed = await self.find(note.corrects)
        if pushed is not None and pushed.state in ("queued", "drafted"):
            raise InvoiceFirst(f"{note.name} waits for its invoice")
        if pushed is None or pushed.state != "pushed" or pushed.provider_id is None:
            problem = "its invoice is not at the provider"
            await self._change(row, {"state": "skipped", "problem": problem}, "document.skipped")
            return
        document = await self._invoices.document(note)
        try:
            fact = await provider.invoice(pushed.provider_id)
            made = await provider.create_credit_note(
                fact,
                _credited_parts(document, fact),
                document=str(document_id),
                number=document.number,
                issued_at=day_start(document.issued),
                key=f"inv:{document_id}:r{row.revision}:credit",
            )
        except ProviderRefused as error:
            await self._refuse(row, note, str(error))
            return
        if made.total != document.gross:
            asked, has = (format_minor(one, document.currency) for one in (document.gross, made.total))
            await self._refuse(row, note, f"it is {asked} here and {has} there")
            return
        await self._change(row, {"state": "pushed", "provider_id": made.id}, "document.pushed")

    # ------------------------------------------------------------ rows

    async def _change(self, row: PushedDocument, values: Mapping[str, Any], action: str) -> None:
        async with self._database.transaction() as session:
            await self._write(session, row.document_id, values, action)

    async def _write(
        self, session: Any, document_id: UUID, values: Mapping[str, Any], action: str, reason: str = ""
    ) -> None:
        # tenant: the document's id is of one tenant, whose row was read
        changes = {**values, "updated_at": self._database.clock}
        await change_recorded(session, PUSHED_DOCUMENTS, action, document_id, changes, reason)


class InvoiceFirst(Exception):
    """A credit note cannot be pushed before its invoice: later."""


def _charges(tenant: ConnectedTenant) -> bool:
    """Whether an invoice is charged to the saved card; without one, a page is sent."""
    return tenant.collection == "charge" and bool(tenant.method_id)


def _not_collected(record: InvoiceRecord) -> str | None:
    """Why nothing is collected of an invoice; None if it is."""
    if record.state in ("void", "credited", "paid") or not record.left:
        return f"it is {record.state} here: nothing is to be collected"
    if record.paid or record.credited:
        return "it is partly paid or credited here: the rest is collected by bank transfer"
    if record.payable < LEAST_COLLECTED.get(record.currency, 0):
        return "it is less than the provider collects"
    return None


def _credited_parts(document: Document, fact: InvoiceFact) -> list[CreditedPart]:
    """What a credit note takes back of each line that the invoice has at the provider. Raises ProviderRefused."""
    lines = {line.n: line for line in fact.lines}
    parts = []
    for line, tax in zip(document.lines, spread_tax(document), strict=True):
        if line.of not in lines:
            raise ProviderRefused(f"line {line.of} of the invoice is not at the provider")
        parts.append(CreditedPart(line=lines[line.of], net=line.net, tax=tax))
    return parts
