"""Factur-X: what the metadata of a PDF/A-3 says of the e-invoice that it embeds.

typst embeds the file and writes the metadata (XMP) of PDF/A. The four properties of Factur-X, and the extension schema
that PDF/A wants for them, are added here: the metadata alone is written anew, behind the file as it was.
"""

from __future__ import annotations

import io
import re
from typing import cast
from xml.sax.saxutils import escape

from pypdf import PdfReader
from pypdf.generic import DictionaryObject, StreamObject

_NAMESPACE = "urn:factur-x:pdfa:CrossIndustryDocument:invoice:1p0#"
_PROPERTIES = {
    "DocumentFileName": "The name of the embedded XML document",
    "DocumentType": "The type of the hybrid document in capital letters, e.g. INVOICE or ORDER",
    "Version": "The actual version of the standard applying to the embedded XML document",
    "ConformanceLevel": "The conformance level of the embedded XML document",
}
_PROPERTY = (
    '<rdf:li rdf:parseType="Resource"><pdfaProperty:name>{}</pdfaProperty:name>'
    "<pdfaProperty:valueType>Text</pdfaProperty:valueType><pdfaProperty:category>external</pdfaProperty:category>"
    "<pdfaProperty:description>{}</pdfaProperty:description></rdf:li>"
)
_SCHEMA = (
    '<rdf:li rdf:parseType="Resource"><pdfaSchema:schema>Factur-X PDFA Extension Schema</pdfaSchema:schema>'
    f"<pdfaSchema:namespaceURI>{_NAMESPACE}</pdfaSchema:namespaceURI><pdfaSchema:prefix>fx</pdfaSchema:prefix>"
    f"<pdfaSchema:property><rdf:Seq>{''.join(map(_PROPERTY.format, _PROPERTIES, _PROPERTIES.values()))}</rdf:Seq>"
    "</pdfaSchema:property></rdf:li>"
)
_SCHEMAS = "<pdfaExtension:schemas><rdf:Bag>"
_END = "</rdf:RDF>"


_TAIL = re.compile(rb"trailer\s*<<(?P<entries>.*)>>\s*startxref\s*(?P<table>\d+)\s*%%EOF\s*", re.DOTALL)


class UnknownMetadata(ValueError):
    """The PDF, or its metadata, is not as typst writes it for PDF/A."""


def declare_factur_x(pdf: bytes, *, file_name: str, level: str) -> bytes:
    """A PDF/A-3 with an embedded e-invoice of this name and level, said to be Factur-X. Same PDF, same bytes. Raises
    UnknownMetadata."""
    root = cast(DictionaryObject, PdfReader(io.BytesIO(pdf)).trailer["/Root"])
    xmp = cast(StreamObject, root["/Metadata"]).get_data().decode()
    if xmp.count(_SCHEMAS) != 1 or xmp.count(_END) != 1:
        raise UnknownMetadata("the metadata has no list of extension schemas")
    values = {"DocumentType": "INVOICE", "DocumentFileName": file_name, "Version": "1.0", "ConformanceLevel": level}
    elements = "".join(f"<fx:{name}>{escape(value)}</fx:{name}>" for name, value in values.items())
    described = f'<rdf:Description rdf:about="" xmlns:fx="{_NAMESPACE}">{elements}</rdf:Description>'
    xmp = xmp.replace(_SCHEMAS, _SCHEMAS + _SCHEMA).replace(_END, described + _END)
    return _with_stream(pdf, root.raw_get("/Metadata").idnum, xmp.encode())


def _with_stream(pdf: bytes, number: int, data: bytes) -> bytes:
    """The PDF with another stream of metadata in its object of this number, by an incremental update."""
    tail = _TAIL.search(pdf, pdf.rfind(b"trailer"))
    if tail is None:
        raise UnknownMetadata("the file does not end with a cross-reference table")
    stream = b"%d 0 obj\n<</Type/Metadata/Subtype/XML/Length %d>>\nstream\n%s\nendstream\nendobj\n"
    body = pdf.rstrip() + b"\n"
    updated = body + stream % (number, len(data), data)
    table = b"xref\n%d 1\n%010d 00000 n\r\ntrailer\n<<%s/Prev %s>>\nstartxref\n%d\n%%%%EOF\n"
    return updated + table % (number, len(body), tail["entries"], tail["table"], len(updated))
