"""An invoice as files: PDF, canonical JSON, its lines as CSV, XML of EN 16931, and all of them in a ZIP archive."""

from __future__ import annotations

import csv
import hashlib
import io
import re
import zipfile
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Literal

import msgspec
from litestar import Response
from msgspec import Struct

from billing.invoices.document import Document
from billing.invoices.electronic.store import EInvoice, EInvoices
from billing.invoices.electronic.syntaxes import Syntax
from billing.invoices.store import InvoiceRecord, Invoices, PaymentsAndCredits
from gateway.admin.invoices.invoices import AT, EXAMPLE, InvoiceOfTenant
from gateway.admin.invoices.lines import LineObject, line_object
from gateway.admin.operation import Handler, operation
from gateway.errors import Conflict
from gateway.http.operations import Files, files
from gateway.http.policies import demands
from gateway.services import Gateway
from storage.database.circuit_breaker import beside_the_database

_UNPRINTABLE = {"not_printable": 409}
_INEXPRESSIBLE = {"not_expressible": 409}
_XML = files("application/xml", description="XML of EN 16931.", example="<Invoice/>")
_EPOCH = (1980, 1, 1, 0, 0, 0)
"""The earliest time that a ZIP archive can say: the same document always makes the same archive."""


class FileEntry(Struct, frozen=True, kw_only=True):
    """A file of the archive."""

    name: str
    bytes: int
    sha256: str


class Manifest(Struct, frozen=True, kw_only=True):
    """What the archive holds. `sha256` is that of the canonical JSON, `previous` that of the document before it in its
    series: both are empty for a draft."""

    object: Literal["invoice.bundle"] = "invoice.bundle"
    number: str | None
    kind: str
    state: str
    period: str
    currency: str
    sha256: str
    previous: str
    files: list[FileEntry]


class Content(Struct, frozen=True):
    """All that the files are made of."""

    record: InvoiceRecord
    document: Document
    text: str
    settled: PaymentsAndCredits
    einvoices: Mapping[Syntax, EInvoice]

    @property
    def name(self) -> str:
        """The files' name without its ending."""
        name = self.record.number or f"draft-{self.record.period}-{self.record.id.hex[-12:]}"
        return re.sub(r"[^A-Za-z0-9._-]", "_", name)


def to_pdf(content: Content) -> bytes:
    """The document as PDF/A-3, which embeds its XML if there is one. Raises Conflict if it cannot be laid out."""
    from billing.invoices.rendering import pdf  # noqa: PLC0415  # a compiler that only this needs

    try:
        return pdf.to_pdf(
            content.document,
            content.record.state,
            content.record.sha256 or "",
            content.settled,
            embedded=content.einvoices.get("cii"),
        )
    except pdf.NotPrintable as error:
        raise Conflict(f"The invoice cannot be laid out: {error}.", code="not_printable") from error


def _json(content: Content) -> bytes:
    return content.text.encode()


def _xml(content: Content, syntax: Syntax) -> bytes:
    return content.einvoices[syntax].content.encode()


def to_csv(content: Content) -> bytes:
    """The lines, with a heading."""
    out = io.StringIO()
    names = [name for name in LineObject.__struct_fields__ if name not in ("object", "opens")]
    writer = csv.DictWriter(out, names, lineterminator="\r\n")
    writer.writeheader()
    for n, line in enumerate(content.document.lines, 1):
        shown = line_object(n, line, content.record.currency)
        writer.writerow({name: _cell(getattr(shown, name)) for name in names})
    return out.getvalue().encode()


def _cell(value: Any) -> str:
    """The text of a cell; one that a spreadsheet would take for a formula is quoted by an apostrophe."""
    text = "" if value is None else str(value)
    is_number = text[:1] == "-" and text[1:].replace(".", "", 1).isdecimal()
    return f"'{text}" if text[:1] in ("=", "+", "-", "@", "\t", "\r") and not is_number else text


def to_bundle(content: Content) -> bytes:
    """A ZIP archive of all forms, and a manifest with their SHA-256. The same content makes the same bytes."""
    name, record = content.name, content.record
    parts = {
        f"{name}.json": _json(content),
        f"{name}.csv": to_csv(content),
        f"{name}.pdf": to_pdf(content),
        **{f"{name}.{syntax}.xml": _xml(content, syntax) for syntax in content.einvoices},
    }
    manifest = Manifest(
        number=record.number,
        kind=record.kind,
        state=record.state,
        period=record.period,
        currency=record.currency,
        sha256=record.sha256 or "",
        previous=content.document.previous,
        files=[
            FileEntry(name=file, bytes=len(data), sha256=hashlib.sha256(data).hexdigest())
            for file, data in parts.items()
        ],
    )
    parts["manifest.json"] = msgspec.json.format(msgspec.json.encode(manifest), indent=2)
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for file, data in parts.items():
            archive.writestr(zipfile.ZipInfo(file, _EPOCH), data, zipfile.ZIP_DEFLATED)
    return out.getvalue()


def _form(name: str, file: Files, **described: Any) -> Callable[[Handler], Handler]:
    return operation("GET", f"{AT}/{name}", demands("invoices.read"), files=file, path=EXAMPLE, **described)


class InvoiceFileOperations:
    """Writes invoices as files."""

    def __init__(self, gateway: Gateway) -> None:
        self._invoices, self._threads = Invoices(gateway.services.database), gateway.threads
        self._einvoices = EInvoices(gateway.services.database)

    @_form("pdf", files("application/pdf", description="PDF/A-3."), errors=_UNPRINTABLE)
    async def invoice_pdf(self, invoice: InvoiceOfTenant) -> Response[bytes]:
        """An invoice as PDF/A-3, with the payments and credit notes until now. It embeds the CII (Factur-X)."""
        return await self._file(invoice, to_pdf, "pdf", "application/pdf")

    @_form(
        "json",
        files("application/json", description="Canonical JSON (RFC 8785).", example='{"number": "INV-2026-000042"}'),
    )
    async def invoice_json(self, invoice: InvoiceOfTenant) -> Response[bytes]:
        """An invoice as canonical JSON: its SHA-256 is the one that is kept and chained."""
        return await self._file(invoice, _json, "json", "application/json")

    @_form(
        "csv",
        files("text/csv", description="The lines.", example="n,text,net\r\n1,tiny input_tokens,100.00\r\n"),
    )
    async def invoice_csv(self, invoice: InvoiceOfTenant) -> Response[bytes]:
        """The lines of an invoice as CSV."""
        return await self._file(invoice, to_csv, "csv", "text/csv")

    @_form("ubl", _XML, errors=_INEXPRESSIBLE)
    async def invoice_ubl(self, invoice: InvoiceOfTenant) -> Response[bytes]:
        """An issued invoice as UBL 2.1 by EN 16931, in the profile of its buyer: as it was first written."""
        return await self._einvoice(invoice, "ubl")

    @_form("cii", _XML, errors=_INEXPRESSIBLE)
    async def invoice_cii(self, invoice: InvoiceOfTenant) -> Response[bytes]:
        """An issued invoice as Cross Industry Invoice by EN 16931, in the profile of its buyer: as it was first
        written."""
        return await self._einvoice(invoice, "cii")

    async def _einvoice(self, invoice: InvoiceOfTenant, syntax: Syntax) -> Response[bytes]:
        await self._einvoices.of(invoice[1], syntax)  # written by now, if it can be
        return await self._file(invoice, partial(_xml, syntax=syntax), f"{syntax}.xml", "application/xml")

    @_form(
        "bundle",
        files("application/zip", description="PDF, JSON, CSV, XML and a manifest with their SHA-256."),
        errors=_UNPRINTABLE,
    )
    async def invoice_bundle(self, invoice: InvoiceOfTenant) -> Response[bytes]:
        """An invoice in all its forms, with a manifest."""
        return await self._file(invoice, to_bundle, "zip", "application/zip")

    async def _file(
        self, invoice: InvoiceOfTenant, make: Callable[[Content], bytes], ending: str, media_type: str
    ) -> Response[bytes]:
        owner, record = invoice
        document, text = await self._invoices.document(record), await self._invoices.content(record)
        settlements, einvoices = await self._invoices.settlements(record), await self._einvoices.stored(record)
        content = Content(record, document, text, settlements, einvoices)
        with beside_the_database():  # laying out takes a while: tenants have equal shares of the threads
            data = await self._threads.run(owner.id, partial(make, content))
        headers = {"content-disposition": f'attachment; filename="{content.name}.{ending}"'}
        return Response(data, media_type=media_type, headers=headers)
