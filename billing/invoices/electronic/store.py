"""Stored e-invoices: written when a document is issued, and never made anew.

The XML is the invoice for whom it is sent to, so it is kept as it was: a later release may write the same document in
other bytes. A document from before there were e-invoices gets its XML when it is first asked for.
"""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncSession

from billing.integrity.canonical_json import sha256
from billing.integrity.row_seals import seal_rows
from billing.invoices.document import Document
from billing.invoices.electronic.semantic_model import check_expressible
from billing.invoices.electronic.syntaxes import PROFILES, SYNTAXES, Syntax, check_profile, profile_in, to_xml
from billing.invoices.errors import NotExpressible
from billing.invoices.parties.parties import Profile
from billing.invoices.parties.store import lock_documents
from billing.invoices.store import InvoiceRecord, read_document
from billing.tables.invoices import einvoice
from storage.database.database import Database


class EInvoice(msgspec.Struct, frozen=True):
    """A document as XML; `sha256` is that of its bytes in UTF-8."""

    syntax: Syntax
    profile: Profile
    content: str
    sha256: str

    @property
    def level(self) -> str:
        """The profile's name in the metadata of a PDF that embeds it."""
        return PROFILES[self.profile].level

    @property
    def file_name(self) -> str:
        """Its name in a PDF that embeds it."""
        return PROFILES[self.profile].file_name


class EInvoices:
    """Reads documents as XML. Methods raise DatabaseUnavailable."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def of(self, record: InvoiceRecord, syntax: Syntax) -> EInvoice:
        """An issued document in a syntax. Raises NotExpressible."""
        if record.state == "draft":
            raise NotExpressible("number", "a draft is no invoice yet")
        stored = await self.stored(record)
        if not stored:
            await self._write_first(record)
            stored = await self.stored(record)
        return stored[syntax]

    async def stored(self, record: InvoiceRecord) -> dict[Syntax, EInvoice]:
        """What is stored of a document: every syntax, or nothing."""
        async with self._database.reading() as session:
            return await _rows(session, record)

    async def _write_first(self, record: InvoiceRecord) -> None:
        async with self._database.transaction() as session:
            await lock_documents(self._database, session, record.tenant_id)
            if await _rows(session, record):
                return  # another request was first
            document = await read_document(session, record.tenant_id, record.id)
            check_expressible(document)
            await write_einvoices(self._database, session, record, document)


async def write_einvoices(database: Database, session: AsyncSession, record: InvoiceRecord, document: Document) -> None:
    """Write an issued document in every syntax. One that EN 16931 cannot express has none, and is issued all the same:
    its buyer could otherwise stop it. Raises NotExpressible if the seller lacks what the buyer's profile needs."""
    check_profile(document.seller, document.buyer)
    try:
        contents = await asyncio.to_thread(lambda: {syntax: to_xml(document, syntax).decode() for syntax in SYNTAXES})
    except NotExpressible:
        return
    rows: list[dict[str, Any]] = [
        {
            "invoice_id": record.id,
            "syntax": syntax,
            "tenant_id": record.tenant_id,
            "profile": profile_in(syntax, document.buyer),
            "content": content,
            "sha256": sha256(content),
            "at": database.clock,
        }
        for syntax, content in contents.items()
    ]
    for row in rows:
        await session.execute(einvoice.insert().values(row))
    mine = (einvoice.c.tenant_id == record.tenant_id) & (einvoice.c.invoice_id == record.id)
    await seal_rows(session, einvoice, mine)


async def _rows(session: AsyncSession, record: InvoiceRecord) -> dict[Syntax, EInvoice]:
    row = einvoice.c
    query = select(row.syntax, row.profile, row.content, row.sha256)
    rows = await session.execute(query.where(row.tenant_id == record.tenant_id, row.invoice_id == record.id))
    return {each.syntax: EInvoice(*each) for each in rows}
