"""Reads what came in from a bank's file: camt.053 (ISO 20022) or CSV with a header.

The XML has no document type and no entities: a file that declares one is refused before anything is read of it. Only
booked credits are money that came in; charges, debits and what is only announced are left out.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterator, Sequence
from datetime import UTC, date, datetime
from decimal import Decimal, InvalidOperation
from hashlib import sha256
from typing import Any
from xml.parsers import expat

import msgspec

from billing.money import InvalidMoney, minor_digits
from storage.reported_error import ReportedError

MOST_BYTES, MOST_ENTRIES, MOST_DEPTH, MOST_TEXT = 1 << 20, 10_000, 40, 500
_COLUMNS = ("date", "amount", "currency", "payer", "reference", "id")
_FORBIDDEN = re.compile(r"<!(DOCTYPE|ENTITY)", re.IGNORECASE)
_CENTURY = 10**15


class StatementRefused(ReportedError, ValueError):
    """A file that is no statement; the message says where."""


class BankEntry(msgspec.Struct, frozen=True, kw_only=True):
    """Money that came in by transfer. `id` is the bank's own, or follows from the entry where it gives none."""

    id: str
    day: str
    amount: int
    currency: str
    payer: str
    reference: str


class Statement(msgspec.Struct, frozen=True):
    """The credits of a file, and the account that they came to."""

    account: str
    entries: list[BankEntry]


def read_statement(content: str) -> Statement:
    """The credits of a file. Raises StatementRefused."""
    if len(content.encode()) > MOST_BYTES:
        raise StatementRefused(f"the file has more than {MOST_BYTES} bytes")
    text = content.lstrip("\ufeff \t\r\n")
    statement = _read_camt(text) if text.startswith("<") else _read_csv(text)
    if len(statement.entries) > MOST_ENTRIES:
        raise StatementRefused(f"the file has more than {MOST_ENTRIES} entries")
    return statement


class _Element(msgspec.Struct):
    name: str
    attributes: dict[str, str]
    children: list[_Element]
    text: str = ""

    def every(self, path: str) -> Iterator[_Element]:
        """The elements at a path of names, such as `NtryDtls/TxDtls`."""
        name, _, rest = path.partition("/")
        for child in self.children:
            if child.name == name:
                yield from child.every(rest) if rest else (child,)

    def find(self, *paths: str) -> str:
        """The text at the first path that there is; "" for none."""
        return next((one.text.strip() for path in paths for one in self.every(path) if one.text.strip()), "")


def _parse(text: str) -> _Element:
    """The tree of an XML document without DTD and entities. Raises StatementRefused."""
    if _FORBIDDEN.search(text):
        raise StatementRefused("the file declares a document type or entities")
    root = _Element("", {}, [])
    stack = [root]

    def start(name: str, attributes: dict[str, str]) -> None:
        if len(stack) > MOST_DEPTH:
            raise StatementRefused("the file is nested too deep")
        element = _Element(name.rpartition(" ")[2], attributes, [])
        stack[-1].children.append(element)
        stack.append(element)

    def data(more: str) -> None:
        if len(stack[-1].text) < MOST_TEXT:
            stack[-1].text += more[:MOST_TEXT]

    def refuse(*_: Any) -> Any:
        raise StatementRefused("the file declares a document type or entities")

    parser = expat.ParserCreate(namespace_separator=" ")
    parser.StartElementHandler, parser.CharacterDataHandler = start, data
    parser.EndElementHandler = lambda _: stack.pop()
    parser.StartDoctypeDeclHandler = parser.EntityDeclHandler = refuse
    parser.ExternalEntityRefHandler = refuse
    try:
        parser.Parse(text.encode(), True)
    except expat.ExpatError as error:
        raise StatementRefused(f"the XML is wrong at line {error.lineno}") from error
    return root


def _read_camt(text: str) -> Statement:
    statements = list(_parse(text).every("Document/BkToCstmrStmt/Stmt"))
    if not statements:
        raise StatementRefused("the XML is no camt.053: it has no Document/BkToCstmrStmt/Stmt")
    accounts = {one.find("Acct/Id/IBAN", "Acct/Id/Othr/Id") for one in statements}
    if len(accounts) > 1:
        raise StatementRefused("the file has statements of several accounts")
    entries = [entry for one in statements for entry in _credits(one)]
    return Statement(accounts.pop(), entries)


def _credits(statement: _Element) -> Iterator[BankEntry]:
    for place, entry in enumerate(statement.every("Ntry"), 1):
        status = entry.find("Sts/Cd", "Sts")
        if entry.find("CdtDbtInd") != "CRDT" or status not in ("BOOK", "") or entry.find("RvslInd") == "true":
            continue
        if (whole := next(entry.every("Amt"), None)) is None:
            raise StatementRefused(f"entry {place} has no amount")
        details = list(entry.every("NtryDtls/TxDtls"))
        if parts := _split(whole, details, place):
            for part, one, amount in parts:
                yield _credit(statement, entry, [one], amount, place, part)
        else:
            yield _credit(statement, entry, details, whole, place)


def _split(whole: _Element, details: Sequence[_Element], place: int) -> list[tuple[int, _Element, _Element]]:
    """The credits that an entry consists of: place, detail and amount. None unless each of several has an amount and
    they add up to the entry: it is booked as a whole then, or money would count twice."""
    if len(details) < 2:
        return []
    parts, left = [], _minor(whole, place)
    for part, one in enumerate(details, 1):
        if one.find("CdtDbtInd") == "DBIT":
            continue
        own = next(one.every("Amt"), None) or next(one.every("AmtDtls/TxAmt/Amt"), None)
        if own is None or own.attributes.get("Ccy", "") != whole.attributes.get("Ccy", ""):
            return []
        left -= _minor(own, place)
        parts.append((part, one, own))
    return parts if left == 0 else []


def _minor(amount: _Element, place: int) -> int:
    return _read_minor(f"entry {place}", amount.text.strip(), amount.attributes.get("Ccy", ""))


def _credit(  # noqa: PLR0917
    statement: _Element, entry: _Element, details: Sequence[_Element], amount: _Element, place: int, part: int = 0
) -> BankEntry:
    """A credit of an entry, or (without `part`) all of it."""
    credits = [one for one in details if one.find("CdtDbtInd") != "DBIT"] or [entry]
    only = credits[0] if len(credits) == 1 else entry
    bank_id = only.find("Refs/AcctSvcrRef", "Refs/TxId") or entry.find("AcctSvcrRef", "NtryRef")
    return _entry(
        statement.find("Acct/Id/IBAN", "Acct/Id/Othr/Id"),
        f"entry {place}",
        day=entry.find("BookgDt/Dt", "BookgDt/DtTm", "ValDt/Dt")[:10],
        amount=amount.text.strip(),
        currency=amount.attributes.get("Ccy", ""),
        payer=only.find("RltdPties/Dbtr/Nm", "RltdPties/Dbtr/Pty/Nm"),
        reference=" ".join(filter(None, map(_reference, credits))),
        bank_id=f"{bank_id}/{part}" if part else bank_id,
        place=(statement.find("Id"), str(place), str(part or 1)),
    )


def _reference(detail: _Element) -> str:
    texts = [text.text.strip() for text in detail.every("RmtInf/Ustrd")]
    return detail.find("RmtInf/Strd/CdtrRefInf/Ref") or " ".join(texts) or detail.find("Refs/EndToEndId")


def _read_csv(text: str) -> Statement:
    try:
        return Statement("", _transfers(text))
    except csv.Error as error:
        raise StatementRefused(f"the CSV is wrong: {error}") from error


def _transfers(text: str) -> list[BankEntry]:
    first = text.partition("\n")[0]
    # with newline="" the csv module ends lines itself, at a bare \r too
    file = io.StringIO(text, newline="")
    reader = csv.DictReader(file, delimiter=";" if first.count(";") > first.count(",") else ",")
    names = [name.strip().lower() for name in reader.fieldnames or ()]
    if missing := [name for name in _COLUMNS[:3] if name not in names]:
        raise StatementRefused(f"the header has no {', '.join(missing)}; it has {', '.join(_COLUMNS)}")
    reader.fieldnames = names
    entries, seen = [], dict[str, int]()
    for line, row in enumerate(reader, 2):
        if None in row:
            raise StatementRefused(f"line {line} has more fields than the header")
        cells = {name: (row.get(name) or "").strip()[:MOST_TEXT] for name in _COLUMNS}
        if cells["amount"].startswith("-"):
            continue
        same = "|".join(cells.values())  # two payments of a day may be alike: the second is another one
        seen[same] = seen.get(same, 0) + 1
        del cells["id"]
        values = {"day": cells.pop("date"), **cells, "bank_id": (row.get("id") or "").strip()[:100]}
        entries.append(_entry("", f"line {line}", place=(same, str(seen[same])), **values))
    return entries


def _entry(
    account: str,
    where: str,
    *,
    day: str,
    amount: str,
    currency: str,
    payer: str,
    reference: str,
    bank_id: str,
    place: tuple[str, ...],
) -> BankEntry:
    try:
        date.fromisoformat(day)
    except ValueError as error:
        raise StatementRefused(f"{where}: {day[:20]!r} is no day") from error
    minor = _read_minor(where, amount, currency)
    own = sha256("|".join((account, day, amount, currency, payer, reference, *place)).encode()).hexdigest()[:32]
    identity = f"{account}:{day}:{bank_id}" if bank_id else f"{account}:{own}"
    return BankEntry(id=identity[:200], day=day, amount=minor, currency=currency, payer=_line(payer),
                     reference=_line(reference))  # fmt: skip


def _read_minor(where: str, amount: str, currency: str) -> int:
    try:
        minor = Decimal(amount[:40]).scaleb(minor_digits(currency))
    except (InvalidMoney, InvalidOperation) as error:
        raise StatementRefused(f"{where}: {amount[:20]!r}, {currency[:20]!r} are no amount and currency") from error
    if not minor.is_finite() or minor != minor.to_integral_value() or not 0 < minor < _CENTURY:
        raise StatementRefused(f"{where}: {amount[:20]!r} is no amount of {currency}")
    return int(minor)


def _line(text: str) -> str:
    """One line that people can read."""
    return "".join(letter if letter.isprintable() else " " for letter in text)[:140].strip()


def day_instant(day: str) -> int:
    """The first microsecond of a day in UTC, since the Unix epoch."""
    return int(datetime.combine(date.fromisoformat(day), datetime.min.time(), UTC).timestamp()) * 1_000_000
