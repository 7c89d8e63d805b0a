"""What each tenant has, and putting money in."""

from __future__ import annotations

from uuid import UUID

from sqlalchemy import select

from billing.books import Grant
from billing.ledger import Balance, Transaction
from billing.money import MAX_PICO, InvalidMoney, check_currency
from billing.open_books import opened
from billing.tables import balance
from storage.base import new_id
from storage.database import Database


class CurrencyMismatch(ValueError):
    """Money of one currency was to be mixed with another's."""

    def __init__(self, wanted: str, found: str) -> None:
        super().__init__(f"the balance is in {wanted}, not in {found}")
        self.wanted = wanted
        self.found = found


def new_balance(tenant_id: UUID, currency: str) -> dict[str, UUID | str | int]:
    """The row of a tenant who never had money."""
    return {"tenant_id": tenant_id, "currency": currency, "credit": 0, "debit": 0, "held": 0, "overdraft": 0}


class Balances:
    """Putting money in, and looking at it."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def get(self, tenant_id: UUID) -> Balance | None:
        """The tenant's balance; None if it never had money."""
        async with self._database.reading() as session:
            row = (await session.execute(select(balance).where(balance.c.tenant_id == tenant_id))).one_or_none()
        return None if row is None else Balance(*row)

    async def grant(
        self,
        tenant_id: UUID,
        amount_pico: int,
        currency: str,
        *,
        kind: str = "paid",
        reason: str = "",
        grant_id: UUID | None = None,
    ) -> UUID:
        """Put money in; the first grant decides the balance's currency. Returns the grant's id.

        A grant that is repeated under the same id counts once. Raises InvalidMoney or CurrencyMismatch; then nothing
        is written.
        """
        check_currency(currency)
        if not 0 < amount_pico <= MAX_PICO:
            raise InvalidMoney(f"a grant of {amount_pico} pico-units")
        identity = grant_id or new_id()
        async with self._database.transaction() as session:  # one that has no balance has nothing to lock
            start = new_balance(tenant_id, currency)
            await session.execute(self._database.insert(balance).values(start).on_conflict_do_nothing())
        async with opened(self._database) as books:
            found = (await books.lock([tenant_id]))[tenant_id]
            if found.currency != currency:
                raise CurrencyMismatch(found.currency, currency)
            if self._database.dialect == "sqlite" and found.credit + amount_pico > MAX_PICO:
                raise InvalidMoney(f"{found.credit} + {amount_pico} pico-units are more than SQLite can count")
            if await books.write_grant(Grant(identity, tenant_id, amount_pico, currency, kind, reason)):
                after, entries = found.granted(amount_pico, kind)
                await books.save([after], [Transaction(identity, tenant_id, currency, "grant", "", entries)])
        return identity

    async def set_credit_line(self, tenant_id: UUID, pico: int, currency: str) -> Balance:
        """Let the tenant use up to so much before it is paid; 0 for a prepaid tenant. What is used beyond a lower line
        stays owed, and nothing more is admitted until it is paid. Raises InvalidMoney, CurrencyMismatch.
        """
        check_currency(currency)
        if not 0 <= pico <= MAX_PICO:
            raise InvalidMoney(f"a credit line of {pico} pico-units")
        async with self._database.transaction() as session:
            start = new_balance(tenant_id, currency)
            await session.execute(self._database.insert(balance).values(start).on_conflict_do_nothing())
        async with opened(self._database) as books:
            found = (await books.lock([tenant_id]))[tenant_id]
            if found.currency != currency:
                raise CurrencyMismatch(found.currency, currency)
            after = found.with_credit_line(pico)
            await books.save([after])
        return after
