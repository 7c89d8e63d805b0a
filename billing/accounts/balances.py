"""What each tenant has: putting money in, paying it back, and taking what has expired.

Whoever puts money in or pays it back may give that an id: repeated as it was, it counts once; anything else under the
same id is refused.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Literal
from uuid import UUID

import msgspec
from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncSession

from audit_log.record import record_change
from audit_log.recorded_rows import digest_row
from billing.accounts.advance_invoicing import AdvanceInvoicing
from billing.accounts.grant_lists import open_grants
from billing.accounts.idempotency import check_id_unused
from billing.accounts.lone_grants import APPROVED, GRANT_CREATED, TakesTwoPeople, check_lone_grant, given_lately
from billing.integrity.recorded_tables import CREDIT_LINES
from billing.ledger.entries import Balance, Transaction
from billing.ledger.wallet import (  # fmt: skip
    PAID_PRIORITY,
    PROMO_PRIORITY,
    OpenGrant,
    RefundRefused,
    Wallet,
    without_expired,
)
from billing.money import MAX_PICO, InvalidMoney, check_currency, format_pico
from billing.pending_changes import propose_if_needed
from billing.prices.price_books import priced_currencies, priced_currency
from billing.tables.money import balance, grant, grant_balance, ledger_entry, ledger_txn
from billing.transaction.money_transaction import Grant, MoneyTransaction
from billing.transaction.opening import money_transaction, money_transaction_in, recorded_money_transaction
from storage.database.base import new_id
from storage.database.database import Database
from storage.free_text import NAME, REASON, check_text
from storage.reported_error import ReportedError

GrantKind = Literal["paid", "promo"]
_MOST_PRIORITY = 2**31 - 1
DEFAULT_CURRENCY = "USD"
"""Of a tenant that has neither money nor prices."""


class CurrencyMismatch(ReportedError, ValueError):
    """Money of one currency was to be mixed with another's."""

    def __init__(self, wanted: str, found: str, owner: str = "the balance is", advice: str = "") -> None:
        super().__init__(f"{owner} in {wanted}, not in {found}{advice}")


async def begin_balance(
    database: Database, session: AsyncSession, tenant_id: UUID, currency: str, *, write: bool = True
) -> None:
    """Have a balance to lock; without `write`, only check. Raises CurrencyMismatch if this would be the tenant's first
    money, in another currency than its prices: each of its requests would be refused."""
    known = await session.scalar(select(balance.c.currency).where(balance.c.tenant_id == tenant_id))
    if known is not None:
        return
    priced = await priced_currency(session, tenant_id)
    if priced not in (None, currency):
        advice = f"; use {priced}, or first make it a price book in {currency}: "
        command = "`turnpike prices book NAME --tenant TENANT --base BOOK`"
        raise CurrencyMismatch(str(priced), currency, "the tenant's prices are", advice + command)
    if write:
        start = new_balance(tenant_id, currency)
        await session.execute(database.insert(balance).values(start).on_conflict_do_nothing())


def new_balance(tenant_id: UUID, currency: str) -> dict[str, UUID | str | int]:
    """The row of a tenant who never had money."""
    return {"tenant_id": tenant_id, "currency": currency, "credit": 0, "debit": 0, "held": 0, "overdraft": 0}


class InvalidGrant(ReportedError, ValueError):
    """A grant that cannot be: of an unknown kind, paid for one model or project only, or expired before it began."""


class CreditLine(msgspec.Struct, frozen=True):
    """A credit line, as it is kept until another person approves it."""

    tenant_id: UUID
    pico: int
    currency: str


class Balances:
    """Putting money in, paying it back, looking at it. `advances` writes documents: without it, credit has no VAT."""

    def __init__(self, database: Database, advances: AdvanceInvoicing | None = None) -> None:
        self._database = database
        self._advances = advances

    async def get(self, tenant_id: UUID) -> Balance | None:
        """The tenant's balance; None if it never had money."""
        async with self._database.reading() as session:
            row = (await session.execute(select(balance).where(balance.c.tenant_id == tenant_id))).one_or_none()
            return None if row is None else Balance(*row)

    async def get_or_empty(self, tenant_id: UUID) -> Balance:
        """The tenant's balance; without money an empty one, in the currency of its prices."""
        return (await self.of_tenants([tenant_id]))[tenant_id]

    async def of_tenants(self, tenant_ids: Collection[UUID]) -> dict[UUID, Balance]:
        """The balances of these tenants, without what has expired; of one without money an empty one, in the currency
        of its prices."""
        async with self._database.reading() as session:
            now = await self._database.now_in(session)
            rows = await session.execute(select(balance).where(balance.c.tenant_id.in_(tenant_ids)))
            balances = {row.tenant_id: Balance(*row) for row in rows}
            for one in await open_grants(session, tenant_ids, grant.c.expires_at <= now, grant_balance.c.remaining > 0):
                balances[one.tenant_id] = without_expired(balances[one.tenant_id], [one], now)
            without = [tenant_id for tenant_id in tenant_ids if tenant_id not in balances]
            priced = await priced_currencies(session, without) if without else {}
        empty = {one: Balance(one, priced.get(one, DEFAULT_CURRENCY), 0, 0, 0, 0) for one in without}
        return balances | empty

    async def currency_of(self, tenant_id: UUID) -> str:
        """The currency of the tenant's balance; without money, that of its prices."""
        return (await self.get_or_empty(tenant_id)).currency

    async def grants(self, tenant_id: UUID) -> list[OpenGrant]:
        """The tenant's grants with what became of each, in the order in which they are used."""
        async with self._database.reading() as session:
            return await open_grants(session, [tenant_id])

    async def grant(
        self,
        tenant_id: UUID,
        amount_pico: int,
        currency: str,
        *,
        kind: str = "paid",
        reason: str = "",
        grant_id: UUID | None = None,
        priority: int | None = None,
        expires_at: int | None = None,
        model: str | None = None,
        project_id: UUID | None = None,
        dry_run: bool = False,
    ) -> UUID:
        """Put money in; the first grant decides the balance's currency. Returns the grant's id.

        A grant that is repeated under the same id counts once. What was given within 24 hours counts together where an
        amount takes two people. `billing.ledger.wallet` says what is used first; what is given (kind promo) can be for
        one model or project only. Raises InvalidMoney, InvalidGrant, CurrencyMismatch or IdempotencyConflict,
        InvalidText; then nothing is written. Raises ChangePending while it takes two people."""
        check_currency(currency)
        check_text("reason", reason, REASON, empty=True)
        if not 0 < amount_pico <= MAX_PICO:
            raise InvalidMoney(f"a grant of {amount_pico} pico-units")
        if kind not in ("paid", "promo"):
            raise InvalidGrant(f"kind: {kind!r} is neither paid nor promo")
        if kind == "paid" and (model is not None or project_id is not None):
            raise InvalidGrant("what was paid can be used for everything: only a promo grant has a model or a project")
        check_text("model", model or "", NAME, empty=model is None)
        if priority is not None and not 0 <= priority <= _MOST_PRIORITY:
            raise InvalidGrant(f"priority: {priority} is not between 0 and {_MOST_PRIORITY}")
        if priority is None:
            priority = PROMO_PRIORITY if kind == "promo" else PAID_PRIORITY
        made = Grant(grant_id or new_id(), tenant_id, amount_pico, currency, kind, reason, priority, expires_at, model,
                     project_id)  # fmt: skip
        if grant_id is not None and await self._was_given(made):
            return made.id
        if expires_at is not None and expires_at <= await self._database.now():
            raise InvalidGrant("expires_at: it lies in the past")
        if dry_run:
            async with self._database.reading() as session:
                await begin_balance(self._database, session, tenant_id, currency, write=False)
            found = await self.get(tenant_id)
            if found is not None:
                _check(self._database, found, made)
            return made.id
        async with self._database.reading() as session:
            lately = await given_lately(self._database, session, tenant_id)
        await self._propose_if_needed(made, lately)
        async with self._database.transaction() as session:  # one that has no balance has nothing to lock
            await begin_balance(self._database, session, tenant_id, currency)
        try:
            async with recorded_money_transaction(self._database) as (session, money):
                await self._issue_advance(session, made)
                new = await _put_in(self._database, money, made)
                if new:
                    await check_lone_grant(self._database, session, made)
                    await _record_grant(session, made)
        except TakesTwoPeople as error:  # others were given at the same time
            await self._propose_if_needed(made, error.lately)
            raise
        if not new:  # a moment ago
            await self._was_given(made)
        return made.id

    async def _propose_if_needed(self, made: Grant, lately: int) -> None:
        """Raise ChangePending if this grant takes two people, with the `lately` pico-units that were given before."""
        what = "a payment" if made.kind == "paid" else "a grant"
        summary = f"{what} of {format_pico(made.amount_pico)} {made.currency}"
        if lately:
            summary += f", after {format_pico(lately)} {made.currency} within 24 hours by one person each"
        await propose_if_needed(self._database, "grant.create", made, summary, tenant_id=made.tenant_id,
                                reason=made.reason, amount_pico=lately + made.amount_pico)  # fmt: skip

    async def grant_in(self, session: AsyncSession, made: Grant) -> None:
        """Put in what another person has approved, in this transaction. Raises InvalidGrant if its time has passed or
        its id was used meanwhile, InvalidMoney, CurrencyMismatch."""
        if made.expires_at is not None and made.expires_at <= await self._database.now_in(session):
            raise InvalidGrant("expires_at: it lies in the past")
        await begin_balance(self._database, session, made.tenant_id, made.currency)
        await self._issue_advance(session, made)
        if not await _put_in(self._database, await money_transaction_in(self._database, session), made):
            raise InvalidGrant(f"id: {made.id} was used meanwhile")
        await _record_grant(session, made, approved=True)

    async def _issue_advance(self, session: AsyncSession, made: Grant) -> None:
        if self._advances is not None and made.kind == "paid":
            await self._advances.issue(session, made)

    async def _was_given(self, made: Grant) -> bool:
        """Whether this very grant is there. Raises IdempotencyConflict if another thing is under its id."""
        same = ("id", "tenant_id", "amount_pico", "currency", "kind", "priority", "expires_at", "model", "project_id")
        async with self._database.reading() as session:
            # all tenants: an id is one for all of them
            row = (await session.execute(select(grant).where(grant.c.id == made.id))).one_or_none()
        if row is not None and all(getattr(row, name) == getattr(made, name) for name in same):
            return True
        what = f"{format_pico(made.amount_pico)} {made.currency} of kind {made.kind} for this tenant"
        await check_id_unused(self._database, made.id, what)
        return False

    async def posted(self, identity: UUID) -> bool:
        """Whether money was put in, paid back or used under this id."""
        async with money_transaction(self._database) as money:
            return await money.is_posted(identity)

    async def refund(
        self,
        tenant_id: UUID,
        amount_pico: int,
        currency: str,
        *,
        reason: str = "",
        refund_id: UUID | None = None,
        dry_run: bool = False,
    ) -> UUID:
        """Note that money was paid back: at most what was paid, has not expired and is neither used nor reserved.
        Returns its id.

        A refund that is repeated under the same id counts once. Raises InvalidMoney, CurrencyMismatch, RefundRefused,
        IdempotencyConflict, InvalidText; then nothing is written."""
        check_currency(currency)
        check_text("reason", reason, REASON, empty=True)
        if not 0 < amount_pico <= MAX_PICO:
            raise InvalidMoney(f"a refund of {amount_pico} pico-units")
        identity = refund_id or new_id()
        if refund_id is not None and await self._was_refunded(identity, tenant_id, amount_pico, currency):
            return identity
        async with recorded_money_transaction(self._database) as (session, money):
            units = {} if self._advances is None else await self._advances.lock_units(session, tenant_id)
            found = (await money.lock([tenant_id])).get(tenant_id)
            if found is None:
                raise RefundRefused(0, currency)
            if found.currency != currency:
                raise CurrencyMismatch(found.currency, currency)
            posted = await money.is_posted(identity)
            if not posted:
                wallet = Wallet(found, await money.grants([tenant_id]))
                now = await money.now()
                if amount_pico > wallet.refundable(now, units):
                    raise RefundRefused(wallet.refundable(now, units), currency)
                entries = wallet.refund(amount_pico, now, units)
                if sum(entry.amount_pico for entry in entries) != amount_pico:
                    raise InvalidMoney("amount: with VAT that was paid in advance, only whole minor units are refunded")
                if not dry_run:
                    await _post(
                        money, wallet, Transaction(identity, tenant_id, currency, "refund", "", entries, reason)
                    )
                    parts = {one.grant_id: one.amount_pico for one in entries if one.grant_id and one.grant_id in units}
                    if self._advances is not None and parts:
                        await self._advances.credit(session, tenant_id, identity, parts, reason)
                    said = {"amount": format_pico(amount_pico), "currency": currency}
                    await record_change(session, "refund.created", target="refund", target_id=identity,
                                        tenant_id=tenant_id, reason=reason, after=said)  # fmt: skip
        if posted:  # since a moment ago
            await self._was_refunded(identity, tenant_id, amount_pico, currency)
        return identity

    async def _was_refunded(self, identity: UUID, tenant_id: UUID, amount_pico: int, currency: str) -> bool:
        """Whether this very refund is there. Raises IdempotencyConflict if another thing is under its id."""
        txn, entry = ledger_txn.c, ledger_entry.c
        mine = (txn.id == identity, txn.tenant_id == tenant_id, txn.kind == "refund", entry.currency == currency)
        query = select(entry.amount_pico).join_from(ledger_txn, ledger_entry, entry.txn_id == txn.id).where(*mine)
        async with self._database.reading() as session:
            amounts = (await session.scalars(query)).all()
        if amounts and sum(int(amount) for amount in amounts) == amount_pico:
            return True
        what = f"a refund of {format_pico(amount_pico)} {currency} to this tenant"
        await check_id_unused(self._database, identity, what)
        return False

    async def set_credit_line(self, tenant_id: UUID, pico: int, currency: str) -> Balance:
        """Let the tenant use up to so much before it is paid; 0 for a prepaid tenant. What is used beyond a lower line
        stays owed, and nothing more is admitted until it is paid. Raises InvalidMoney, CurrencyMismatch; ChangePending
        while it takes two people to raise it so far.
        """
        check_currency(currency)
        if not 0 <= pico <= MAX_PICO:
            raise InvalidMoney(f"a credit line of {pico} pico-units")
        before, line = await self.get(tenant_id), CreditLine(tenant_id, pico, currency)
        if before is None or pico > before.credit_line:
            summary = f"a credit line of {format_pico(pico)} {currency}"
            await propose_if_needed(self._database, "credit_line.set", line, summary, tenant_id=tenant_id,
                                    amount_pico=pico)  # fmt: skip
        async with self._database.transaction() as session:
            await begin_balance(self._database, session, tenant_id, currency)
        async with recorded_money_transaction(self._database) as (session, money):
            return await _set_line(session, money, line)

    async def set_credit_line_in(self, session: AsyncSession, line: CreditLine) -> Balance:
        """As `set_credit_line`, in this transaction and without another person's approval."""
        await begin_balance(self._database, session, line.tenant_id, line.currency)
        return await _set_line(session, await money_transaction_in(self._database, session), line)

    async def expire(self, now: int | None = None) -> int:
        """Take what is left of grants whose time had passed at `now` (the database's clock if absent): the worker's.

        What open holds may cost that were taken before the expiry stays until they have ended. Returns from how many
        tenants something was taken."""
        instant = await self._database.now() if now is None else now
        due = (
            select(grant.c.tenant_id)
            .join(grant_balance, grant_balance.c.grant_id == grant.c.id)
            .where(grant.c.expires_at <= instant, grant_balance.c.remaining > 0)
            .distinct()
        )
        async with self._database.reading() as session:
            tenants = list(await session.scalars(due))
        taken = 0
        for tenant in tenants:
            async with recorded_money_transaction(self._database) as (session, money):
                found = (await money.lock([tenant]))[tenant]
                wallet = Wallet(found, await money.grants([tenant]))
                entries = wallet.expire(instant, await money.holds.reserved(tenant))
                if entries:
                    taken += 1
                    posted = Transaction(new_id(), tenant, found.currency, "expiry", "", entries, "expired")
                    await _post(money, wallet, posted)
                    gone = {str(grant_id): format_pico(one.gone) for grant_id, one in wallet.changed.items()}
                    await record_change(session, "grants.expired", target="balance", target_id=tenant,
                                        tenant_id=tenant, after={"gone": gone, "currency": found.currency})  # fmt: skip
        return taken


async def settle_payment(database: Database, session: AsyncSession, made: Grant) -> None:
    """Put money in that came in for a document, in the transaction that writes down that it did; once under its id."""
    await begin_balance(database, session, made.tenant_id, made.currency)
    await _put_in(database, await money_transaction_in(database, session), made)


async def _record_grant(session: AsyncSession, made: Grant, *, approved: bool = False) -> None:
    said = msgspec.structs.asdict(made)
    after = {name: said[name] for name in ("currency", "kind", "priority", "expires_at", "model")}
    after["amount"] = format_pico(made.amount_pico)
    if approved:
        after[APPROVED] = True
    await record_change(session, GRANT_CREATED, target="grant", target_id=made.id, tenant_id=made.tenant_id,
                        project_id=made.project_id, reason=made.reason, after=after)  # fmt: skip


async def _set_line(session: AsyncSession, money: MoneyTransaction, line: CreditLine) -> Balance:
    found = (await money.lock([line.tenant_id]))[line.tenant_id]
    if found.currency != line.currency:
        raise CurrencyMismatch(found.currency, line.currency)
    after = found.with_credit_line(line.pico)
    await money.save([after])
    lines = [{"limit": format_pico(one.credit_line), "currency": line.currency} for one in (found, after)]
    await record_change(session, "credit_line.set", target="balance", target_id=line.tenant_id,
                        tenant_id=line.tenant_id, before=lines[0], after=lines[1],
                        row_sha256=await digest_row(session, CREDIT_LINES, line.tenant_id))  # fmt: skip
    return after


async def _put_in(database: Database, money: MoneyTransaction, made: Grant) -> bool:
    """Write a grant and what follows from it; False, and nothing, if there is one of this id."""
    found = (await money.lock([made.tenant_id]))[made.tenant_id]
    _check(database, found, made)
    if not await money.write_grant(made):
        return False
    wallet = Wallet(found, ())
    scope = (made.priority, made.expires_at, made.model, made.project_id)
    entries = wallet.put_in(OpenGrant(made.id, made.tenant_id, made.kind, *scope, made.amount_pico, 0, 0))
    await _post(money, wallet, Transaction(made.id, made.tenant_id, made.currency, "grant", "", entries, made.reason))
    return True


def _check(database: Database, found: Balance, made: Grant) -> None:
    if found.currency != made.currency:
        raise CurrencyMismatch(found.currency, made.currency)
    if database.dialect == "sqlite" and found.credit + made.amount_pico > MAX_PICO:
        raise InvalidMoney(f"{found.credit} + {made.amount_pico} pico-units are more than SQLite can count")


async def _post(money: MoneyTransaction, wallet: Wallet, transaction: Transaction) -> None:
    await money.save([wallet.balance], [transaction], (), list(wallet.changed.values()))
