"""Documents as PDF/A-3b, made by typst with its embedded fonts; same document and state, same bytes."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any, Protocol

import typst

from billing.invoices.document import Document
from billing.invoices.rendering.factur_x import declare_factur_x
from billing.invoices.rendering.presentation import shown
from billing.invoices.store import NOTHING_SETTLED, PaymentsAndCredits
from storage.reported_error import ReportedError


class NotPrintable(ReportedError, ValueError):
    """typst cannot lay out the document; the message says why."""


class EmbeddedXml(Protocol):
    """A document as CII, with what a PDF says of it."""

    @property
    def content(self) -> str: ...

    @property
    def file_name(self) -> str: ...

    @property
    def level(self) -> str: ...


@cache
def _template() -> bytes:
    return (files("billing.invoices.rendering") / "invoice.typ").read_bytes()


def to_pdf(
    document: Document,
    state: str,
    digest: str = "",
    settled: PaymentsAndCredits = NOTHING_SETTLED,
    *,
    embedded: EmbeddedXml | None = None,
    fonts: Path | None = None,
) -> bytes:
    """The document as PDF/A-3b, in a state of its invoice and with the payments and credit notes until then.

    `digest` is the document's SHA-256, empty for a draft. `embedded` is the document as XML, which makes the PDF one of
    Factur-X. `fonts` is a folder with further fonts, for scripts that the
    embedded ones lack. Raises NotPrintable.
    """
    shows = shown(document, state, digest, settled)
    if embedded is None:
        return _compiled(document, shows, fonts)
    shows["embedded"] = {"name": embedded.file_name, "content": embedded.content}
    return declare_factur_x(_compiled(document, shows, fonts), file_name=embedded.file_name, level=embedded.level)


def _compiled(document: Document, shows: dict[str, Any], fonts: Path | None) -> bytes:
    data = json.dumps(shows)
    day = datetime.fromisoformat(document.issued or document.service_until).replace(tzinfo=UTC)
    paths: list[Any] = [] if fonts is None else [str(fonts)]
    stamp = int(day.timestamp())
    try:
        made: bytes = typst.compile(
            _template(),
            font_paths=paths,
            ignore_system_fonts=True,
            sys_inputs={"document": data},
            timestamp=stamp,
            format="pdf",
            pdf_standards="a-3b",
        )
    except typst.TypstError as error:
        raise NotPrintable(_why(error)) from error
    return made


def _why(error: Exception) -> str:
    text = " ".join(str(error).split())
    if "could not be displayed" in text:
        return f"{text}: give a folder with fonts that have these characters (--fonts)"
    return text
