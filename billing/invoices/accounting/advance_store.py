"""Advance-payment invoices as the books have them: their credit, and what invoices deducted of them."""

from __future__ import annotations

from uuid import UUID

from sqlalchemy import func, select
from sqlalchemy.ext.asyncio import AsyncSession

from billing.invoices.accounting.draws import read_draws
from billing.invoices.accounting.prepayments import Advance
from billing.ledger.wallet import Wallet
from billing.tables.invoices import ISSUED, advance_deduction, invoice, invoice_line, invoice_payment


async def read_advances(session: AsyncSession, tenant_id: UUID, wallet: Wallet) -> dict[UUID, Advance]:
    """The tenant's advances by their grants, in the order of payment; what was used is as `wallet` has it."""
    row, line, payment, deduction = invoice.c, invoice_line.c, invoice_payment.c, advance_deduction.c
    sums = (func.coalesce(func.sum(column), 0) for column in (deduction.exact_pico, deduction.tax))
    deducted = (
        select(deduction.advance_id, *sums)
        .join(invoice, row.id == deduction.invoice_id)
        .where(deduction.tenant_id == tenant_id, ISSUED)
        .group_by(deduction.advance_id)
    )
    by_advance = {advance: (int(pico), int(tax)) for advance, pico, tax in await session.execute(deducted)}
    columns = (payment.id.label("grant_id"), row.id, row.number, row.issued, line.category, line.rate, row.net, row.tax)
    query = (
        select(*columns)
        .join_from(invoice, invoice_payment, payment.invoice_id == row.id)
        .join(invoice_line, (line.invoice_id == row.id) & (line.n == 1))
        .where(row.tenant_id == tenant_id, row.kind == "advance")
        .order_by(payment.at, payment.id)
    )
    found = (await session.execute(query)).all()
    drawn = await read_draws(session, tenant_id) if found else {}
    advances = {}
    for one in found:
        pico, tax = by_advance.get(one.id, (0, 0))
        advances[one.grant_id] = Advance(
            id=one.id,
            number=one.number,
            issued=one.issued,
            category=one.category,
            rate=one.rate,
            net=one.net,
            tax=one.tax,
            used=wallet.used_of(one.grant_id) + drawn.get(one.grant_id, 0),
            deducted=pico,
            deducted_tax=tax,
        )
    return advances
