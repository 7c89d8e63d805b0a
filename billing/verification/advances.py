"""Checks of advance-payment invoices: what invoices deducted, what was refunded, and what was drawn from credit."""

from __future__ import annotations

from collections import defaultdict
from uuid import UUID

from sqlalchemy import case, func, select

from billing.money import minor_unit
from billing.tables.invoices import ISSUED, advance_deduction, invoice, invoice_payment
from billing.tables.money import grant, grant_balance, ledger_entry, ledger_txn
from billing.verification.findings import AuditContext

_ADVANCE = "an advance is not what documents say of it"
_DRAWN = "an invoice did not take from credit what it says"
_ORPHAN = "a deduction belongs to no invoice"


async def check_advances(audit: AuditContext) -> None:
    """Invoices deduct no more of an advance than its credit paid for, and no more VAT than was charged; refunds of its
    credit have credit notes; and what was drawn from credit is what invoices say."""
    # all tenants: an audit checks the whole installation
    await _check_drawn(audit)
    refunded, expired = await _lost(audit, "refund", "clearing"), await _lost(audit, "expiry", "breakage")
    deducted, taxes = await _deducted(audit)
    notes: dict[UUID, tuple[int, int]] = defaultdict(lambda: (0, 0))
    credited = select(invoice.c.corrects, func.sum(invoice.c.net), func.sum(invoice.c.tax))
    credited = credited.where(invoice.c.kind == "credit_note", invoice.c.state != "draft").group_by(invoice.c.corrects)
    for corrects, net, tax in await audit.session.execute(credited):
        notes[corrects] = (int(net), int(tax))
    row, payment = invoice.c, invoice_payment.c
    query = (
        select(
            row.id,
            row.number,
            row.currency,
            row.net,
            row.tax,
            payment.id,
            grant.c.amount_pico,
            func.coalesce(grant_balance.c.used, 0) + func.coalesce(grant_balance.c.gone, 0),
        )
        .join_from(invoice, invoice_payment, payment.invoice_id == row.id, isouter=True)
        .join(grant, grant.c.id == payment.id, isouter=True)
        .join(grant_balance, grant_balance.c.grant_id == payment.id, isouter=True)
        .where(row.kind == "advance", row.state != "draft")
    )
    for id_, number, currency, net, tax, grant_id, amount, taken in await audit.session.execute(query):
        unit = minor_unit(currency)
        if amount != net * unit:
            audit.report(_ADVANCE, id_, f"{number}: its net is {net} minor units, its credit {amount}")
            continue
        # What was drawn is gone too, and so is what was used before the payer's bank took it: it is owed again.
        used = int(taken) - refunded[grant_id] - expired[grant_id]
        if deducted[id_] > used:
            detail = f"{number}: {deducted[id_]} were deducted, {used} were used"
            audit.report(_ADVANCE, id_, detail)
        note_net, note_tax = notes[id_]
        if taxes[id_] + note_tax > tax:
            audit.report(_ADVANCE, id_, f"{number}: {taxes[id_]} of VAT deducted and {note_tax} credited of {tax}")
        if note_net * unit != refunded[grant_id]:
            detail = f"{number}: {refunded[grant_id]} were refunded, credit notes say {note_net * unit}"
            audit.report(_ADVANCE, id_, detail)


async def _deducted(audit: AuditContext) -> tuple[dict[UUID, int], dict[UUID, int]]:
    """What invoices deducted of each advance: pico-units of its net, and minor units of its VAT."""
    deduction = advance_deduction.c  # all tenants: an audit checks the whole installation
    pico: dict[UUID, int] = defaultdict(int)
    taxes: dict[UUID, int] = defaultdict(int)
    query = select(advance_deduction, invoice.c.id.label("document"), ISSUED.label("counts"))
    for row in await audit.session.execute(query.outerjoin(invoice, invoice.c.id == deduction.invoice_id)):
        if row.document is None:
            audit.report(_ORPHAN, row.invoice_id, f"row {row.n}, of the advance {row.advance_id}")
        elif row.counts:
            pico[row.advance_id] += int(row.exact_pico)
            taxes[row.advance_id] += row.tax
    return pico, taxes


async def _check_drawn(audit: AuditContext) -> None:
    """What was drawn from each tenant's grants is what its invoices say."""
    entry, txn = ledger_entry.c, ledger_txn.c
    amount = func.sum(case((entry.credit == "invoiced", entry.amount_pico), else_=-entry.amount_pico))
    query = select(entry.tenant_id, amount).join(ledger_txn, txn.id == entry.txn_id)
    by_tenant: dict[UUID, int] = defaultdict(int)
    query = query.where(txn.kind == "draw").group_by(entry.tenant_id)
    for tenant, pico in await audit.session.execute(query):
        by_tenant[tenant] += int(pico)
    said = select(invoice.c.tenant_id, invoice.c.currency, func.sum(invoice.c.drawn)).where(ISSUED)
    for tenant, currency, drawn in await audit.session.execute(said.group_by(invoice.c.tenant_id, invoice.c.currency)):
        by_tenant[tenant] -= int(drawn) * minor_unit(currency)
    for tenant, difference in by_tenant.items():
        if difference:
            audit.report(_DRAWN, tenant, f"the ledger has {difference} pico-units more than the invoices")


async def _lost(audit: AuditContext, kind: str, to: str) -> dict[UUID, int]:
    """What of each grant was refunded, or has expired, in pico-units."""
    entry, txn = ledger_entry.c, ledger_txn.c  # all tenants: an audit checks the whole installation
    query = select(entry.grant_id, func.sum(entry.amount_pico)).join(ledger_txn, txn.id == entry.txn_id)
    lost: dict[UUID, int] = defaultdict(int)
    query = query.where(txn.kind == kind, entry.credit == to).group_by(entry.grant_id)
    for grant_id, pico in await audit.session.execute(query):
        lost[grant_id] = int(pico)
    return lost
