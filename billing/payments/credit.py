"""Credit for money that came in, and money for credit that goes back: net of VAT where that is due in advance."""

from __future__ import annotations

from uuid import UUID, uuid5

from sqlalchemy.ext.asyncio import AsyncSession

from billing.accounts.balances import begin_balance, settle_payment
from billing.accounts.money_back import refund_in
from billing.invoices.advances import Advances, credit_in
from billing.money import minor_to_pico
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


async def take_back(  # noqa: PLR0917
    database: Database, session: AsyncSession, identity: UUID, tenant_id: UUID, grant: UUID, amount: int, currency: str,
    reason: str,
) -> int:  # fmt: skip
    """Take credit for at most so many minor units of money that paid for a grant, and credit its VAT. Returns how much
    money goes back. Raises RefundRefused."""
    advances = Advances(database)
    units = await advances.lock_units(session, tenant_id)
    net = await advances.net_of(session, tenant_id, grant, amount)
    pico = minor_to_pico(net, currency)
    parts = await refund_in(database, session, tenant_id, pico, units=units, identity=identity, memo=reason)
    advanced = {one: part for one, part in parts.items() if one in units}
    return net + await advances.credit(session, tenant_id, identity, advanced, reason)
