"""The DATEV export: the month's bookings of one seller as a booking batch (EXTF 700, category 21, version 13).

The file is what DATEV imports: Windows-1252, semicolons, a line about the batch, the names of the 125 fields, a line
for each booking. Amounts are gross: revenue accounts are automatic ones, or have a tax key. Foreign currency needs a
rate, which is not known here: such a batch is refused.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from billing.calendar import period_bounds
from billing.exports.bookings import Booking, bookings, code_of
from billing.exports.datasets import Column, Dataset, ExportQuery, ExportSnapshot, InvalidExport, Row
from billing.exports.journal import ACCOUNT_CODES
from billing.invoices.parties.parties import format_rate
from billing.invoices.parties.vat_ids import EU, country_of
from billing.money import format_minor, minor_to_pico
from storage.database.base import from_instant
from storage.free_text import safe_cell

_NUMBERED = [f"{name} {n}" for n in range(1, 9) for name in ("Beleginfo - Art", "Beleginfo - Inhalt")]
_ADDITIONS = [f"Zusatzinformation{name} {n}" for n in range(1, 21) for name in (" - Art", "- Inhalt")]
FIELDS: tuple[str, ...] = (
    *("Umsatz (ohne Soll/Haben-Kz)", "Soll/Haben-Kennzeichen", "WKZ Umsatz", "Kurs", "Basis-Umsatz"),
    *("WKZ Basis-Umsatz", "Konto", "Gegenkonto (ohne BU-Schlüssel)", "BU-Schlüssel", "Belegdatum", "Belegfeld 1"),
    *("Belegfeld 2", "Skonto", "Buchungstext", "Postensperre", "Diverse Adressnummer", "Geschäftspartnerbank"),
    *("Sachverhalt", "Zinssperre", "Beleglink", *_NUMBERED, "KOST1 - Kostenstelle", "KOST2 - Kostenstelle"),
    *("Kost-Menge", "EU-Land u. UStID (Bestimmung)", "EU-Steuersatz (Bestimmung)", "Abw. Versteuerungsart"),
    *("Sachverhalt L+L", "Funktionsergänzung L+L", "BU 49 Hauptfunktionstyp", "BU 49 Hauptfunktionsnummer"),
    *("BU 49 Funktionsergänzung", *_ADDITIONS, "Stück", "Gewicht", "Zahlweise", "Forderungsart", "Veranlagungsjahr"),
    *("Zugeordnete Fälligkeit", "Skontotyp", "Auftragsnummer", "Buchungstyp", "USt-Schlüssel (Anzahlungen)"),
    *("EU-Land (Anzahlungen)", "Sachverhalt L+L (Anzahlungen)", "EU-Steuersatz (Anzahlungen)"),
    *("Erlöskonto (Anzahlungen)", "Herkunft-Kz", "Buchungs GUID", "KOST-Datum", "SEPA-Mandatsreferenz"),
    *("Skontosperre", "Gesellschaftername", "Beteiligtennummer", "Identifikationsnummer", "Zeichnernummer"),
    *("Postensperre bis", "Bezeichnung SoBil-Sachverhalt", "Kennzeichen SoBil-Buchung", "Festschreibung"),
    *("Leistungsdatum", "Datum Zuord. Steuerperiode", "Fälligkeit", "Generalumkehr (GU)", "Steuersatz", "Land"),
    *("Abrechnungsreferenz", "BVV-Position", "EU-Land u. UStID (Ursprung)", "EU-Steuersatz (Ursprung)"),
    "Abw. Skontokonto",
)
"""The fields of a booking, in their order."""
_PLACES = {name: place for place, name in enumerate(FIELDS)}
_TEXTS = ("Soll/Haben-Kennzeichen", "WKZ Umsatz", "BU-Schlüssel", "Belegfeld 1", "Buchungstext",
          "EU-Land u. UStID (Bestimmung)")  # fmt: skip
"""What is written in quotes."""
_MOST_TEXT, _MOST_DOCUMENT = 60, 36
_DOCUMENT_LETTERS = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789$&%*+-/")


class DatevBatch(msgspec.Struct, frozen=True, kw_only=True):
    """Whose batch it is: number of the consultant and of its client, length of the accounts, first month and day of the
    fiscal year, its currency, and keys of taxes by category and rate (S19) where a revenue account is no automatic one.
    """

    consultant: int
    client: int
    length: int = 4
    year: str = "01-01"
    currency: str = "EUR"
    keys: dict[str, str] = {}


def parse_batch(text: str) -> DatevBatch | None:
    """The batch of a text such as `consultant=1001,client=1,length=4,year=01-01,key.S19=3`; None of "". Raises
    InvalidExport."""
    if not text:
        return None
    values: dict[str, Any] = {"keys": {}}
    for part in text.split(","):
        name, _, value = (piece.strip() for piece in part.partition("="))
        if name.startswith("key.") and value.isascii() and value.isdecimal():
            values["keys"][name[4:]] = value
        elif name in ("consultant", "client", "length") and value.isascii() and value.isdecimal():
            values[name] = int(value)
        elif name == "year" or (name == "currency" and len(value) == 3):
            values[name] = value
        else:
            raise InvalidExport(
                "datev", f"{part.strip()!r} is none of consultant, client, length, year, currency, key.S19"
            )
    batch = _checked(values)
    try:
        from_instant(period_bounds(f"2023-{batch.year[:2]}")[0]).replace(day=int(batch.year[3:]))
    except ValueError:
        raise InvalidExport("datev", f"year={batch.year!r} is not a month and a day such as 01-01") from None
    return batch


def _checked(values: dict[str, Any]) -> DatevBatch:
    for name, least, most in (("consultant", 1001, 9_999_999), ("client", 1, 99_999), ("length", 4, 8)):
        if not least <= values.get(name, 4 if name == "length" else 0) <= most:
            raise InvalidExport("datev", f"{name} is not between {least} and {most}")
    return DatevBatch(**values)


async def _rows(snapshot: ExportSnapshot, wanted: ExportQuery) -> AsyncIterator[Sequence[Row]]:
    batch = _batch_of(wanted)
    codes = ACCOUNT_CODES | dict(wanted.account_codes)
    async for portion in bookings(snapshot, wanted):
        yield [_row(booking, batch, codes) for booking in portion]


def _batch_of(wanted: ExportQuery) -> DatevBatch:
    batch = parse_batch(wanted.datev)
    if batch is None:
        raise InvalidExport("datev", "say whose books they are: --datev consultant=…,client=…")
    return batch


def _row(booking: Booking, batch: DatevBatch, codes: dict[str, str]) -> Row:
    if booking.currency != batch.currency:
        problem = (
            f"{booking.document} is in {booking.currency}, the books in {batch.currency}: it needs a rate of exchange"
        )
        raise InvalidExport("currency", f"{problem}; use the export general-ledger")
    tax = (booking.category, booking.rate)
    names = (f"{booking.category}{format_rate(booking.rate)}", booking.category)
    return (
        minor_to_pico(abs(booking.gross), booking.currency),
        "S" if booking.gross > 0 else "H",
        booking.currency,
        code_of(codes, booking.debit, *tax),
        code_of(codes, booking.credit, *tax),
        next((batch.keys[name] for name in names if name in batch.keys), "") if booking.category else "",
        booking.at,
        "".join(letter if letter in _DOCUMENT_LETTERS else "-" for letter in booking.document)[:_MOST_DOCUMENT],
        booking.text[:_MOST_TEXT],
        booking.vat_id if country_of(booking.vat_id) in EU and booking.category in ("AE", "K") else "",
        booking.service,
        booking.due,
    )


class ExtfWriter:
    """Writes a batch. The same rows give the same bytes: the time of its making is the end of its period."""

    def __init__(self, path: Path, wanted: ExportQuery) -> None:
        head = _head(_batch_of(wanted), wanted.period)
        self._file = path.open("w", encoding="cp1252", errors="replace", newline="")
        self._line(head)
        self._line(FIELDS)

    def write(self, rows: Sequence[Row]) -> None:
        """Add bookings."""
        for row in rows:
            self._line(_cells(row))

    def close(self) -> None:
        """Finish the file."""
        self._file.close()

    def _line(self, cells: Sequence[str]) -> None:
        self._file.write(";".join(cells) + "\r\n")


def _head(batch: DatevBatch, period: str) -> list[str]:
    """What is said of a batch, by position."""
    first, after = (from_instant(instant) for instant in period_bounds(period))
    last = from_instant(period_bounds(period)[1] - 1)
    start = first.replace(month=int(batch.year[:2]), day=int(batch.year[3:]))
    if start > first:
        start = start.replace(year=start.year - 1)
    return [
        '"EXTF"', "700", "21", '"Buchungsstapel"', "13", f"{after:%Y%m%d%H%M%S}000", "", '"RE"', '""', '""',
        str(batch.consultant), str(batch.client), f"{start:%Y%m%d}", str(batch.length), f"{first:%Y%m%d}",
        f"{last:%Y%m%d}", f'"Turnpike {period}"', '""', "1", "0", "0", f'"{batch.currency}"', "", '""', "", "", '""',
        "", "", '""', '""',
    ]  # fmt: skip


def _cells(row: Row) -> list[str]:
    amount, side, currency, account, contra, key, at, document, text, vat_id, service, due = row
    values = {
        "Umsatz (ohne Soll/Haben-Kz)": _amount(amount, currency),
        "Soll/Haben-Kennzeichen": side,
        "WKZ Umsatz": currency,
        "Konto": account,
        "Gegenkonto (ohne BU-Schlüssel)": contra,
        "BU-Schlüssel": key,
        "Belegdatum": f"{from_instant(at):%d%m}",
        "Belegfeld 1": document,
        "Buchungstext": text,
        "EU-Land u. UStID (Bestimmung)": vat_id,
        "Festschreibung": "0",
        "Leistungsdatum": _day(service),
        "Fälligkeit": _day(due),
    }
    cells = [""] * len(FIELDS)
    for name, value in values.items():
        cells[_PLACES[name]] = _quoted(safe_cell(value)) if name in _TEXTS else value
    return cells


def _amount(pico: int, currency: str) -> str:
    minor = pico // minor_to_pico(1, currency)
    return format_minor(minor, currency).replace(".", ",")


def _day(instant: int | None) -> str:
    return "" if instant is None else f"{from_instant(instant):%d%m%Y}"


def _quoted(text: str) -> str:
    return '"' + text.replace('"', '""') + '"'


DATEV = Dataset(
    name="datev",
    title="DATEV",
    about="bookings of documents, payments and credit of one seller as a DATEV booking batch",
    columns=(
        Column("amount", "money", "gross; field 1"),
        Column("side", "text", "S (debit) or H (credit) of the account; field 2"),
        Column("currency", "text", "field 3"),
        Column("account", "text", "as set by --account-codes; field 7"),
        Column("contra_account", "text", "field 8"),
        Column("tax_key", "text", "as set by --datev, where the account is no automatic one; field 9"),
        Column("date", "date", "issue date of a document; day in UTC on which money came; field 10"),
        Column("document", "text", "field 11"),
        Column("text", "text", "field 14"),
        Column("vat_id", "text", "of the buyer, for reverse charge and intra-community supply; field 40"),
        Column("service_date", "date", "last day of the service; field 115"),
        Column("due", "date", "field 117"),
    ),
    rows=_rows,
    sums=("amount",),
    writer=ExtfWriter,
    prefix="EXTF_",
)
