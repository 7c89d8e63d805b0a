"""Bank files: what came in, once, to the invoice that it names; and files that want to do us harm."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from billing.money import format_minor
from billing.payments.bank.importing import import_statement
from billing.payments.bank.statements import StatementRefused, read_statement
from billing.payments.cash import CashBook
from billing.usage import Usage
from billing.verification.audit import audit_money
from storage.database.database import Database
from tests.billing.invoices.customers import Customer

CAMT = """<?xml version="1.0" encoding="UTF-8"?>
<Document xmlns="urn:iso:std:iso:20022:tech:xsd:camt.053.001.08"><BkToCstmrStmt><Stmt><Id>S1</Id>
<Acct><Id><IBAN>DE89370400440532013000</IBAN></Id></Acct>
{entries}
</Stmt></BkToCstmrStmt></Document>"""
ENTRY = """<Ntry><Amt Ccy="USD">{amount}</Amt><CdtDbtInd>{side}</CdtDbtInd><Sts><Cd>{status}</Cd></Sts>
<BookgDt><Dt>2026-11-05</Dt></BookgDt><AcctSvcrRef>{bank_id}</AcctSvcrRef><NtryDtls><TxDtls>
<RltdPties><Dbtr><Pty><Nm>Société A &amp; B</Nm></Pty></Dbtr></RltdPties><RmtInf><Ustrd>{reference}</Ustrd></RmtInf>
</TxDtls></NtryDtls></Ntry>"""


def _entry(amount: str, reference: str, bank_id: str = "B1", side: str = "CRDT", status: str = "BOOK") -> str:
    return ENTRY.format(amount=amount, reference=reference, bank_id=bank_id, side=side, status=status)


def _camt(*entries: str) -> str:
    return CAMT.format(entries="".join(entries))


def test_booked_credits_alone_are_read() -> None:
    statement = read_statement(
        _camt(
            _entry("12.50", "INV-1"),
            _entry("9.00", "ours", "B2", side="DBIT"),
            _entry("8.00", "soon", "B3", status="PDNG"),
        )
    )
    (entry,) = statement.entries
    assert statement.account == "DE89370400440532013000"
    assert (entry.amount, entry.currency, entry.payer, entry.reference) == (1250, "USD", "Société A & B", "INV-1")


@pytest.mark.parametrize(
    "content",
    [
        '<?xml version="1.0"?><!DOCTYPE a [<!ENTITY x "y">]><Document/>',
        '<!DOCTYPE a SYSTEM "file:///etc/passwd"><Document/>',
        "<Document>",
        "<Other/>",
        "<a>" * 100_000,
        _camt(_entry("NaN", "x")),
        _camt(_entry("1.001", "x")),
        _camt(_entry("-5", "x")),
        _camt(_entry("9" * 50, "x")),
        "date,amount\n2026-11-01,5",
        "date,amount,currency\n2026-11-31,5,USD",
        "date,amount,currency\n2026-11-01,5,DOLLAR",
        "date,amount,currency\n2026-11-01,5,USD,more",
        "x" * (1 << 20) + "x",
    ],
)
def test_what_is_no_statement_is_refused(content: str) -> None:
    with pytest.raises(StatementRefused):
        read_statement(content)


DETAIL = "<TxDtls>{amount}<CdtDbtInd>{side}</CdtDbtInd><RmtInf><Ustrd>{reference}</Ustrd></RmtInf></TxDtls>"


def _details(*parts: tuple[str, str, str]) -> str:
    """An entry of 100.00 with details: amount (or none), side, reference."""
    details = ""
    for amount, side, reference in parts:
        own = f'<Amt Ccy="USD">{amount}</Amt>' if amount else ""
        details += DETAIL.format(amount=own, side=side, reference=reference)
    whole = _entry("100.00", "")
    start, end = whole.index("<TxDtls>"), whole.index("</TxDtls>") + len("</TxDtls>")
    return _camt(whole[:start] + details + whole[end:])


@pytest.mark.parametrize(
    ("parts", "credits"),
    [
        ([("", "CRDT", "A"), ("", "CRDT", "B"), ("", "CRDT", "C")], [(10000, "A B C")]),
        ([("60.00", "CRDT", "A"), ("", "CRDT", "B")], [(10000, "A B")]),
        ([("60.00", "CRDT", "A"), ("60.00", "CRDT", "B")], [(10000, "A B")]),
        ([("60.00", "CRDT", "A"), ("40.00", "CRDT", "B")], [(6000, "A"), (4000, "B")]),
        ([("100.00", "CRDT", "A"), ("5.00", "DBIT", "fee")], [(10000, "A")]),
        ([("105.00", "CRDT", "A"), ("5.00", "DBIT", "fee")], [(10000, "A")]),
        ([("5.00", "DBIT", "fee"), ("5.00", "DBIT", "fee")], [(10000, "")]),
    ],
)
def test_details_count_once(parts: list[tuple[str, str, str]], credits: list[tuple[int, str]]) -> None:
    statement = read_statement(_details(*parts))
    assert [(one.amount, one.reference) for one in statement.entries] == credits
    assert len({one.id for one in statement.entries}) == len(credits)


@given(st.text(max_size=200))
@example("0\r0")
@example("date,amount,currency\r2026-11-05,1\r")
def test_any_text_is_read_or_refused(text: str) -> None:
    for content in (text, f"date,amount,currency\n{text}", _camt(text), _camt(_entry(text, text))):
        try:
            statement = read_statement(content)
        except StatementRefused:
            continue
        assert all(entry.amount > 0 and entry.id for entry in statement.entries)
        assert len({entry.id for entry in statement.entries}) == len(statement.entries)


async def test_an_entry_counts_once_and_pays_what_it_names(database: Database) -> None:
    customer = await Customer.make(database)
    await customer.use("2026-10-03", Usage(output=10_000_000))
    record = await customer.invoice("2026-10")
    assert record.number is not None
    half = record.payable // 2
    content = _camt(
        _entry(format_minor(half, "USD"), f"Payment {record.number.replace('-', ' ')}, thanks", "B1"),
        _entry(format_minor(record.payable, "USD"), record.number, "B2"),
        _entry("3.00", "no idea", "B3"),
    )
    dry = await import_statement(database, "november.xml", content, write=False)
    assert (dry.new_entries, dry.applied, dry.unapplied) == (3, 1, 2)
    for new in (3, 0):
        done = await import_statement(database, "november.xml", content)
        assert (done.entries, done.new_entries) == (3, new)
    after = await customer.invoices.of_tenant(customer.id, record.id)
    assert (after.state, after.paid) == ("partially_paid", half)
    cash = CashBook(database)
    waiting = await cash.list(limit=10, state="unapplied")
    assert {one.problem for one in waiting} == {
        "it is more than is left of the invoice",
        "its reference names no open invoice",
    }
    whole = next(one for one in waiting if one.amount == record.payable)
    await cash.apply(whole.id, customer.id, record.number, "the rest is for later")
    assert (await customer.invoices.of_tenant(customer.id, record.id)).state == "paid"
    assert (await customer.accounts())["prepaid"] == half * 10**10
    assert await audit_money(database) == []


async def test_two_payments_that_look_alike_are_two(database: Database) -> None:
    row = "2026-11-05,3.00,USD,Ann,rent,"
    content = "\n".join(["date,amount,currency,payer,reference,id", row, row])
    assert (await import_statement(database, "a.csv", content)).new_entries == 2
    assert (await import_statement(database, "again.csv", content)).new_entries == 0
