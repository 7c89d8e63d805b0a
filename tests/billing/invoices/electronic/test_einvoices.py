"""Documents as XML: what is written and what cannot be, that it stays, and that the audit names an altered one."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from lxml import etree
from sqlalchemy import Executable, delete, insert, select, text, update
from sqlalchemy.exc import DBAPIError

from billing.integrity.canonical_json import canonical, sha256
from billing.integrity.row_seals import seal_rows
from billing.invoices.document import Document
from billing.invoices.electronic.reading import read_statement, statement_of
from billing.invoices.electronic.store import EInvoices
from billing.invoices.electronic.syntaxes import SYNTAXES, Syntax, to_xml
from billing.invoices.errors import NotExpressible
from billing.invoices.parties.parties import Buyer, InvalidParty, Seller
from billing.invoices.parties.tax import TaxTotal
from billing.invoices.store import Invoices
from billing.tables.books import seal
from billing.tables.invoices import einvoice
from billing.usage import Usage
from billing.verification.audit import audit_money
from storage.database.database import Database
from tests.billing.invoices.customers import Customer
from tests.billing.invoices.documents import BUYER, SELLER, document
from tests.billing.invoices.electronic import documents

both_syntaxes = pytest.mark.parametrize("syntax", SYNTAXES)


@pytest.mark.slow
async def test_the_xml_of_every_category_is_that_of_the_tree(database: Database) -> None:
    files, golden = await documents.xml_files(database), documents.golden()
    assert files.keys() == golden.keys(), "make golden"
    for name, content in files.items():
        assert content.decode() == golden[name].decode(), f"{name}: make golden"
    assert await audit_money(database) == []


@both_syntaxes
def test_what_is_written_is_what_the_document_says(syntax: Syntax) -> None:
    made = document(7)
    assert to_xml(made, syntax) == to_xml(made, syntax)
    assert read_statement(to_xml(made, syntax).decode(), syntax) == statement_of(made)


written = st.text(min_size=1, max_size=40).filter(str.strip)


def _is_in_xml(letter: str) -> bool:
    """By the production Char of XML 1.0; tests draw no surrogates."""
    return letter in "\t\n\r" or (letter >= " " and letter not in "\ufffe\uffff")


@both_syntaxes
@given(words=written, nets=st.lists(st.integers(-(10**9), 10**9), min_size=1, max_size=5))
def test_whatever_people_wrote_stays_one_text(syntax: Syntax, words: str, nets: list[int]) -> None:
    """Texts of old documents were not checked as new ones are: no letter makes an element, or XML that cannot be
    read."""
    line = msgspec.structs.replace(document(1).lines[0], text=words, model=words, meter="", unit="", kind="adjustment")
    made = msgspec.structs.replace(document(), lines=[msgspec.structs.replace(line, net=net) for net in nets])
    xml = to_xml(made, syntax).decode()
    assert read_statement(xml, syntax).lines == statement_of(made).lines
    root = etree.fromstring(xml.encode())
    names = [each.text for each in root.iter("{*}Name") if (each.getparent().tag.endswith(("}Item", "Product")))]
    assert len(names) == len(nets)
    wanted = "".join(letter if _is_in_xml(letter) else "\ufffd" for letter in words)
    assert "".join((names[0] or "").split()) == "".join(wanted.split())


def _mixed(made: Document) -> Document:
    other = TaxTotal("O", 0, "outside", 0, 0)
    return msgspec.structs.replace(made, taxes=[*made.taxes, other])


INEXPRESSIBLE: dict[str, Document] = {
    "number": document(number=""),
    "lines": document(0),
    "currency": document(currency="KWD"),
    "taxes": _mixed(document()),
    "seller.vat_id": document(seller=msgspec.structs.replace(SELLER, vat_id="")),
    "buyer.vat_id": document(buyer=msgspec.structs.replace(BUYER, vat_id="")),
    "document": document(currency="XQZ"),
}


@both_syntaxes
@pytest.mark.parametrize("field", INEXPRESSIBLE)
def test_what_the_standard_cannot_express_is_refused_by_its_field(syntax: Syntax, field: str) -> None:
    with pytest.raises(NotExpressible) as caught:
        to_xml(INEXPRESSIBLE[field], syntax)
    assert caught.value.field == field


@pytest.mark.parametrize(
    ("kind", "field", "changes"),
    [
        (Seller, "iban", {"iban": "DE89370400440532013001"}),
        (Seller, "bic", {"bic": "COBA"}),
        (Seller, "phone", {"phone": "1" * 41}),
        (Seller, "endpoint_scheme", {"endpoint": "1"}),
        (Buyer, "endpoint_scheme", {"endpoint": "1", "endpoint_scheme": "e-mail"}),
        (Buyer, "endpoint_scheme", {"endpoint_scheme": "0204"}),
        (Buyer, "buyer_reference", {"buyer_reference": "x\n"}),
        (Buyer, "buyer_reference", {"einvoice": "xrechnung", "email": "a@b.example"}),
        (Buyer, "endpoint", {"einvoice": "xrechnung", "buyer_reference": "04-1-2"}),
        (Buyer, "postal_code", {"einvoice": "xrechnung", "buyer_reference": "04-1-2", "postal_code": ""}),
        (Buyer, "endpoint", {"einvoice": "peppol"}),
        (Buyer, "einvoice", {"einvoice": "zugferd"}),
    ],
)
def test_what_a_party_may_not_say(kind: type, field: str, changes: dict[str, Any]) -> None:
    party = SELLER if kind is Seller else BUYER
    with pytest.raises(InvalidParty) as caught:
        msgspec.structs.replace(party, **changes)
    assert caught.value.field == field


def test_a_document_from_before_keeps_its_hash() -> None:
    """Fields that came later are absent where nobody set them."""
    said = msgspec.to_builtins(document())
    later = {"endpoint", "endpoint_scheme", "contact", "phone", "iban", "bic", "buyer_reference", "einvoice"}
    assert not later & (said["seller"].keys() | said["buyer"].keys())
    assert canonical(msgspec.json.decode(canonical(document()), type=Document)) == canonical(document())


USAGE = Usage(uncached=12_000_000, output=700_000)


@pytest.mark.slow
async def test_a_profile_without_what_it_needs_of_the_seller_is_not_issued(database: Database) -> None:
    customer = await Customer.make(database, buyer=documents.PROFILED["xrechnung"])
    await customer.use("2026-10-03", USAGE)
    with pytest.raises(NotExpressible, match=r"seller\.contact: the profile xrechnung of the buyer needs it"):
        await customer.invoice("2026-10")
    assert [record.state for record in await Invoices(database).list()] == ["draft"]


@pytest.mark.slow
async def test_what_cannot_be_expressed_is_issued_all_the_same(database: Database) -> None:
    """A buyer could otherwise stop its own invoices."""
    seller = msgspec.structs.replace(documents.GERMAN, currency="USD", vat_id="")
    customer = await Customer.make(database, seller=seller, buyer=documents.BUYERS["S"])
    await customer.use("2026-10-03", USAGE)
    record = await customer.invoice("2026-10")
    assert record.state == "finalized"
    with pytest.raises(NotExpressible, match=r"seller\.vat_id"):
        await EInvoices(database).of(record, "ubl")
    assert await EInvoices(database).stored(record) == {}
    assert await audit_money(database) == []


async def _unprotected(database: Database, *statements: Executable) -> None:
    """Change what the triggers protect, as somebody could who has the whole database."""
    async with database.transaction() as session:
        if database.dialect == "postgresql":
            await session.execute(text("SET LOCAL session_replication_role = replica"))
        else:
            names = await session.scalars(text("SELECT name FROM sqlite_master WHERE type = 'trigger'"))
            connection = await session.connection()
            for name in list(names):
                await connection.exec_driver_sql(f"DROP TRIGGER {name}")
        for statement in statements:
            await session.execute(statement)


@pytest.mark.slow
async def test_a_document_from_before_gets_its_xml_when_it_is_first_asked_for(database: Database) -> None:
    customer = await Customer.make(database, buyer=BUYER)
    await customer.use("2026-10-03", USAGE)
    record = await customer.invoice("2026-10")
    issued = await EInvoices(database).of(record, "cii")
    await _unprotected(database, delete(einvoice), delete(seal).where(seal.c.kind == "einvoice"))
    assert await audit_money(database) == []
    assert await EInvoices(database).of(record, "cii") == issued
    async with database.reading() as session:
        assert sorted(await session.scalars(select(einvoice.c.syntax))) == ["cii", "ubl"]
    assert await audit_money(database) == []


async def _resealed(database: Database, statement: Executable) -> None:
    """Alter rows and seal them again, as somebody could who also knows how seals are made."""
    await _unprotected(database, statement, delete(seal).where(seal.c.kind == "einvoice"))
    async with database.transaction() as session:
        await seal_rows(session, einvoice, einvoice.c.syntax.is_not(None))


@pytest.mark.slow
async def test_the_audit_names_an_altered_einvoice(database: Database) -> None:
    customer = await Customer.make(database, buyer=BUYER)
    await customer.use("2026-10-03", USAGE)
    record = await customer.invoice("2026-10")
    async with database.reading() as session:
        rows = [dict(row._mapping) for row in await session.execute(select(einvoice))]
        seals = [dict(row._mapping) for row in await session.execute(select(seal).where(seal.c.kind == "einvoice"))]

    async def findings_after(change: Any, *, resealed: bool = False) -> set[str]:
        await (_resealed if resealed else _unprotected)(database, change)
        findings = await audit_money(database)
        assert {finding.subject for finding in findings} <= {record.id, UUID(int=0)}
        await _unprotected(database, delete(einvoice), delete(seal).where(seal.c.kind == "einvoice"))
        await _unprotected(database, insert(einvoice).values(rows), insert(seal).values(seals))
        return {finding.what for finding in findings}

    assert await audit_money(database) == []
    for column in einvoice.c:
        if column.name in ("invoice_id", "syntax"):
            continue
        value = {"tenant_id": UUID(int=5), "at": 1}.get(column.name, "altered")
        change = update(einvoice).where(einvoice.c.syntax == "ubl").values({column.name: value})
        assert "a row of the books was altered" in await findings_after(change), column.name
    forged = rows[0]["content"].replace(record.number or "", "INV-2026-000099")
    change = (
        update(einvoice).where(einvoice.c.syntax == rows[0]["syntax"]).values(content=forged, sha256=sha256(forged))
    )
    assert await findings_after(change, resealed=True) == {"an e-invoice was altered"}
    gone = delete(einvoice).where(einvoice.c.syntax == "ubl")
    assert await findings_after(gone) == {"a row of the books is missing", "an e-invoice is missing"}
    assert await findings_after(gone, resealed=True) == {"an e-invoice is missing"}
    assert await audit_money(database) == [], "all was put back between them"


@pytest.mark.slow
@pytest.mark.parametrize("statement", [update(einvoice).values(content="<a/>"), delete(einvoice)])
async def test_the_database_keeps_einvoices(database: Database, statement: Executable) -> None:
    customer = await Customer.make(database)
    await customer.use("2026-10-03", USAGE)
    await customer.invoice("2026-10")
    async with database.transaction() as session:
        with pytest.raises(DBAPIError, match="immutable"):
            await session.execute(statement)
        await session.rollback()
