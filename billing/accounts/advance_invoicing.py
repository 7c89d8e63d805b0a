"""The documents of payments whose VAT is due when they are paid, as whoever moves the money asks for them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol
from uuid import UUID

from sqlalchemy.ext.asyncio import AsyncSession

from billing.transaction.money_transaction import Grant


class AdvanceInvoicing(Protocol):
    """The documents of payments whose VAT is due when they are paid, written in the payment's own transaction: an
    interface, since documents belong to a later folder (`billing.invoices.advances`)."""

    async def issue(self, session: AsyncSession, made: Grant) -> None:
        """Write the advance-payment invoice of a payment that is about to be put in, where it needs one, once."""

    async def lock_units(self, session: AsyncSession, tenant_id: UUID) -> Mapping[UUID, int]:
        """Lock the tenant's documents; the grants that have such an invoice, with the least amount that it can say."""

    async def credit(
        self, session: AsyncSession, tenant_id: UUID, refund_id: UUID, parts: Mapping[UUID, int], reason: str
    ) -> int:
        """Write the credit notes of a refund of these pico-units by grant; the VAT that goes back beside them, in minor
        units."""
