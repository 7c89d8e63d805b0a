"""Checks of what contract terms did on invoices: no commitment paid more than was funded, no discount took more than
there was."""

from __future__ import annotations

from collections import defaultdict
from uuid import UUID

from sqlalchemy import func, select

from audit_log.tables import audit_entry
from billing.money import format_pico, minor_unit
from billing.rating.commitment_accounts import read_commitment_lines
from billing.rating.commitments import unfunded
from billing.rating.schedules import read_schedule
from billing.tables.invoices import ISSUED, invoice, invoice_line
from billing.tables.money import ledger_entry, ledger_txn
from billing.verification.findings import AuditContext

_UNFUNDED = "a commitment pays without being funded"
_UNDEFERRED = "a commitment earned more than was deferred"
_DISCOUNTED = "discounts took more than there was"


async def check_commitments(audit: AuditContext) -> None:
    """Each commitment pays at most what its invoices asked for, less what was credited or written off before, and what
    was paid in another way. Less than a minor unit cannot be credited, and is no finding."""
    row, line = invoice.c, invoice_line.c
    # all tenants: an audit checks the whole installation
    drawn = select(row.tenant_id, row.currency).join_from(invoice_line, invoice, row.id == line.invoice_id)
    drawn = drawn.where(line.kind == "commitment", line.exact_pico < 0, ISSUED).distinct()
    written_off = await _written_off(audit)
    for tenant, currency in (await audit.session.execute(drawn.order_by(row.tenant_id))).all():
        schedule = await read_schedule(audit.session, tenant)
        lines = await read_commitment_lines(audit.session, tenant)
        commitments = {one.period: schedule.terms_of(one.period).commitment for one in lines}
        for first in sorted({commitment.first for commitment in commitments.values() if commitment is not None}):
            for one, excess in unfunded(lines, schedule, first, written_off):
                if excess >= minor_unit(currency):
                    detail = f"{one.number}: {format_pico(excess)} {currency} by the commitment of {first}"
                    audit.report(_UNFUNDED, one.invoice_id, detail)
        for one in lines:
            if one.draws_pico and commitments[one.period] is None:
                audit.report(_UNFUNDED, one.invoice_id, f"{one.number}: no terms of {one.period} have a commitment")


async def _written_off(audit: AuditContext) -> dict[UUID, int]:
    """Since when invoices are uncollectible."""
    entry = audit_entry.c  # all tenants: an audit checks the whole installation
    query = select(entry.target_id, func.max(entry.at)).where(entry.action == "invoice.marked_uncollectible")
    by_target = await audit.session.execute(query.group_by(entry.target_id))
    return {UUID(target.rpartition("_")[2]): at for target, at in by_target}


async def check_deferred(audit: AuditContext) -> None:
    """What lapsed of commitments had been deferred. What they paid without being funded, `check_commitments` finds."""
    row, entry, txn = invoice.c, ledger_entry.c, ledger_txn.c
    # all tenants: an audit checks the whole installation
    said = select(row.tenant_id, func.sum(row.deferred_pico)).where(row.state.not_in(("draft", "void")))
    lapsed = (
        select(entry.tenant_id, func.sum(entry.amount_pico))
        .join(ledger_txn, txn.id == entry.txn_id)
        .where(txn.kind == "lapse", entry.debit == "deferred", entry.credit == "breakage")
    )
    deferred = {tenant: int(pico) for tenant, pico in await audit.session.execute(said.group_by(row.tenant_id))}
    for tenant, pico in await audit.session.execute(lapsed.group_by(entry.tenant_id)):
        if (over := int(pico) - deferred.get(tenant, 0)) > 0:
            audit.report(_UNDEFERRED, tenant, f"{format_pico(over)} were earned that were not deferred")


async def check_discounts(audit: AuditContext) -> None:
    """The tiers and discounts of an invoice take no more of a model than it used, and no more of all than all used.
    Usage that was taken back afterwards is left out: what it had cost was discounted on an earlier invoice."""
    row, line = invoice.c, invoice_line.c
    # all tenants: an audit checks the whole installation
    kinds = ("usage", "discount")
    query = select(row.id, row.number, row.tenant_id, line.kind, line.model, line.corrects, line.exact_pico)
    query = query.join_from(invoice_line, invoice, row.id == line.invoice_id).where(line.kind.in_(kinds), ISSUED)
    used: dict[tuple[UUID, str, str], int] = defaultdict(int)
    taken: dict[tuple[UUID, str, str], int] = defaultdict(int)
    async for one in await audit.session.stream(query):
        sums = used if one.kind == "usage" else taken
        for model in {"", one.model or ""}:
            sums[one.id, one.number, model] += (
                max(0, one.exact_pico) if one.kind == "usage" and one.corrects else one.exact_pico
            )
    for (identity, number, model), pico in taken.items():
        if -pico > used[identity, number, model]:
            of = f"of {model}" if model else "of all models"
            detail = f"{number}: {format_pico(-pico)} {of}, which used {format_pico(used[identity, number, model])}"
            audit.report(_DISCOUNTED, identity, detail)
