"""Credit for money that came in, and money for credit that goes back: net of VAT where that is due in advance."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID, uuid5

from msgspec import Struct
from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncSession

from billing.accounts.balances import begin_balance, settle_payment
from billing.accounts.money_back import charge_back, refund_in
from billing.invoices.advances import Advances, credit_in
from billing.ledger.wallet import RefundRefused
from billing.money import minor_to_pico
from billing.tables.payments import payment_dispute, payment_refund
from billing.transaction.money_transaction import Grant
from storage.database.database import Database


async def put_in(  # noqa: PLR0917
    database: Database, session: AsyncSession, identity: UUID, tenant_id: UUID, amount: int, currency: str, reason: str
) -> int:
    """Put in what so many minor units of money buy today, once under its id; returns the credit in pico-units.

    Of money whose VAT is due now there is an advance-payment invoice. What rounding leaves over is credit without VAT.
    """
    quote = await credit_in(database, session, tenant_id, amount, currency)
    made = Grant(identity, tenant_id, minor_to_pico(quote.net, currency), currency, "paid", reason)
    await begin_balance(database, session, tenant_id, currency)
    if quote.tax_in_advance:
        await Advances(database).issue(session, made)
    await settle_payment(database, session, made)
    if over := minor_to_pico(amount - quote.gross, currency):
        rest = Grant(uuid5(identity, "rounded"), tenant_id, over, currency, "paid", reason)
        await settle_payment(database, session, rest)
    return made.amount_pico + over


class TakenByBank(Struct, frozen=True):
    """What of a disputed payment left the balance: of what was left of its credit, of what was used, in pico-units, and
    the VAT of the first, in minor units."""

    left: int = 0
    used: int = 0
    vat: int = 0


async def take_for_bank(  # noqa: PLR0917
    database: Database, session: AsyncSession, identity: UUID, tenant_id: UUID, grant: UUID, amount: int,
    currency: str, reason: str,
) -> TakenByBank:  # fmt: skip
    """Take back the credit of a payment of which the payer's bank has taken so many minor units, once under its id.

    What is left of credit with VAT in advance is credited with its VAT. What was used of it is owed again; its VAT
    stays due, since the service was delivered, and what the bank took of that is a claim that finance follows.
    """
    advances = Advances(database)
    units = await advances.lock_units(session, tenant_id)
    net = await advances.net_of(session, tenant_id, grant, amount)
    unit = units.get(grant, 1)
    taken = await charge_back(
        database, session, tenant_id, grant, minor_to_pico(net, currency), identity=identity, memo=reason, unit=unit
    )
    parts = {grant: taken.left} if grant in units and taken.left else {}
    vat = await advances.credit(session, tenant_id, identity, parts, reason)
    return TakenByBank(taken.left, taken.used, vat)


async def grants_of(session: AsyncSession, receipt_id: UUID, subject_id: UUID) -> list[UUID]:
    """The grants of a receipt's money: its own, and what came back of it by refunds that failed and disputes won."""
    # tenant: the receipt is one tenant's
    refund, dispute = payment_refund.c, payment_dispute.c
    failed = select(refund.id).where(refund.receipt_id == receipt_id, refund.state == "failed")
    won = select(dispute.id).where(dispute.receipt_id == receipt_id, dispute.state == "won")
    again = [uuid5(one, "failed") for one in await session.scalars(failed.order_by(refund.id))]
    disputes = (await session.scalars(won.order_by(dispute.id))).all()
    return [subject_id, *again, *(uuid5(one, step) for one in disputes for step in ("won", "won:used"))]


async def take_back(  # noqa: PLR0917
    database: Database, session: AsyncSession, identity: UUID, tenant_id: UUID, grants: Sequence[UUID], amount: int,
    currency: str, reason: str,
) -> int:  # fmt: skip
    """Take credit for at most so many minor units of money, of the first of its grants that has so much, and credit its
    VAT. Returns how much money goes back. Raises RefundRefused.

    Of no other grant: another payment bought it, which may be refunded or disputed itself, and has another VAT.
    """
    advances = Advances(database)
    units = await advances.lock_units(session, tenant_id)
    refused = RefundRefused(0, currency)
    for grant in grants:
        net = await advances.net_of(session, tenant_id, grant, amount)
        if net <= 0:
            continue
        pico = minor_to_pico(net, currency)
        try:
            await refund_in(database, session, tenant_id, grant, pico, units=units, identity=identity, memo=reason)
        except RefundRefused as error:
            refused = max(refused, error, key=lambda one: one.refundable_pico)
            continue
        back = net + await advances.credit(
            session, tenant_id, identity, {grant: pico} if grant in units else {}, reason
        )
        if back > amount:
            raise refused
        return back
    raise refused
