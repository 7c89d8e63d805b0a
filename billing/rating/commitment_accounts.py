"""What a tenant's invoices say of its commitments: the lines that asked for them, the lines that they paid."""

from __future__ import annotations

from uuid import UUID

from sqlalchemy import func, select
from sqlalchemy.ext.asyncio import AsyncSession

from billing.calendar import months
from billing.rating.commitments import CommitmentAccount, CommitmentLine, account_of, lines_of
from billing.rating.schedules import Schedule
from billing.tables.invoices import ISSUED, invoice, invoice_line


async def read_commitment_lines(session: AsyncSession, tenant_id: UUID) -> list[CommitmentLine]:
    """The lines about commitments on the tenant's invoices that were issued and are not void, with what credit notes
    took back of them."""
    row, line = invoice.c, invoice_line.c
    mine = (line.tenant_id == tenant_id, line.kind == "commitment")
    credits_ = (
        select(row.corrects, line.of, func.sum(line.net), func.sum(line.exact_pico))
        .join_from(invoice_line, invoice, row.id == line.invoice_id)
        .where(*mine, row.kind == "credit_note", row.state != "draft")
        .group_by(row.corrects, line.of)
    )
    credited = {(of, n): (int(net), int(exact)) for of, n, net, exact in await session.execute(credits_)}
    columns = (row.id, row.number, row.period, row.state, row.finalized_at, line.n, line.net, line.exact_pico)
    query = select(*columns).join_from(invoice_line, invoice, row.id == line.invoice_id).where(*mine, ISSUED)
    lines = []
    for record in await session.execute(query.order_by(row.finalized_at, row.id, line.n)):
        net, exact = credited.get((record.id, record.n), (0, 0))
        lines.append(
            CommitmentLine(
                invoice_id=record.id,
                number=record.number,
                n=record.n,
                period=record.period,
                exact_pico=record.exact_pico,
                credited_pico=_credited_part(record.exact_pico, record.net, net, exact),
                net_left=record.net - net,
                written_off=record.state == "uncollectible",
                finalized_at=record.finalized_at,
            )
        )
    return lines


def _credited_part(exact: int, net: int, credited_net: int, credited_exact: int) -> int:
    """What of a line's exact amount is credited by so many minor units of it: all, where nothing of them is left."""
    if not credited_net:
        return 0
    if credited_net == net:
        return exact
    return min(credited_exact, exact) if exact > 0 else max(credited_exact, exact)


async def read_account(session: AsyncSession, tenant_id: UUID, schedule: Schedule, period: str) -> CommitmentAccount:
    """The account of the commitment that is in force in a period, from the invoices of its other periods."""
    commitment = schedule.commitment_of(period)
    if commitment is None:
        return CommitmentAccount()
    return account_of(lines_of(await read_commitment_lines(session, tenant_id), schedule, commitment.first), period)


async def read_sent_periods(session: AsyncSession, tenant_id: UUID) -> set[str]:
    """The periods for which the tenant has an invoice that was issued and is not void."""
    return set(await session.scalars(select(invoice.c.period).where(invoice.c.tenant_id == tenant_id, ISSUED)))


async def find_unasked(session: AsyncSession, tenant_id: UUID, schedule: Schedule, period: str) -> str | None:
    """The first period before this one whose invoice is to ask for the same commitment and was not issued yet."""
    commitment = schedule.commitment_of(period)
    if commitment is None:
        return None
    mine = lines_of(await read_commitment_lines(session, tenant_id), schedule, commitment.first)
    sent = await read_sent_periods(session, tenant_id)
    for earlier in months(commitment.first, period):
        before = schedule.commitment_of(earlier)
        if earlier == period or earlier in sent or before is None or before.first != commitment.first:
            continue
        if account_of(mine, earlier).asks(before):
            return earlier
    return None
