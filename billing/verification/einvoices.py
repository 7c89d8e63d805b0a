"""Checks of e-invoices: each has its hash and states what its document states, and none is missing.

Its seal finds that a row was altered, removed or inserted; these checks find what was done together with the seal.
"""

from __future__ import annotations

from typing import Any

import msgspec
from sqlalchemy import func, select

from billing.integrity.canonical_json import sha256
from billing.invoices.document import Document
from billing.invoices.electronic.reading import read_statement, statement_of
from billing.invoices.electronic.semantic_model import terms_of
from billing.invoices.electronic.syntaxes import SYNTAXES
from billing.invoices.errors import NotExpressible
from billing.tables.invoices import einvoice, invoice
from billing.verification.findings import AuditContext

_ALTERED = "an e-invoice was altered"
_PORTION = 100


async def check_einvoices(audit: AuditContext) -> None:
    """Every stored e-invoice of every tenant, and every document since the first one that has none."""
    # all tenants: an audit checks the whole installation
    row = einvoice.c
    query = (
        select(einvoice, invoice.c.number, invoice.c.content.label("document"), invoice.c.tenant_id.label("owner"))
        .join(invoice, invoice.c.id == row.invoice_id)
        .order_by(row.invoice_id, row.syntax)
    )
    stream = await audit.session.stream(query.execution_options(yield_per=_PORTION))
    async for rows in stream.partitions(_PORTION):
        for each in rows:
            for difference in _differences(each):
                audit.report(_ALTERED, each.invoice_id, f"{each.number}, {each.syntax}: {difference}")
    await _check_missing(audit)


async def _check_missing(audit: AuditContext) -> None:
    """Each document that was issued since there are e-invoices has one in each syntax, if it can be expressed."""
    # all tenants: an audit checks the whole installation
    row, first = einvoice.c, select(func.min(einvoice.c.at)).scalar_subquery()
    syntaxes = select(func.count()).where(row.invoice_id == invoice.c.id).scalar_subquery()
    query = select(invoice.c.id, invoice.c.number, invoice.c.content).where(
        invoice.c.state != "draft", invoice.c.finalized_at >= first, syntaxes < len(SYNTAXES)
    )
    for each in await audit.session.execute(query):
        try:
            terms_of(msgspec.json.decode(each.content, type=Document))
        except (NotExpressible, msgspec.DecodeError):
            continue
        audit.report(
            "an e-invoice is missing", each.id, f"{each.number} was issued and has not its {len(SYNTAXES)} forms"
        )


def _differences(row: Any) -> list[str]:
    if sha256(row.content) != row.sha256:
        return ["its content has another hash"]
    if row.tenant_id != row.owner:
        return ["it belongs to another tenant than its document"]
    try:
        document = msgspec.json.decode(row.document, type=Document)
        stated, wanted = read_statement(row.content, row.syntax), statement_of(document)
    except (msgspec.DecodeError, ValueError) as error:
        return [str(error)]
    return [
        f"{name} is {getattr(stated, name)}, the document says {getattr(wanted, name)}"
        for name in stated.__struct_fields__
        if getattr(stated, name) != getattr(wanted, name)
    ]
