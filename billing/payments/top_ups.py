"""Top-ups: money that a tenant pays in advance, on a page the first time, by its saved card afterwards.

    created ──▶ sent ──▶ granted
                 ├─────▶ needs_customer   a page replaces it: the card's bank asks for its owner
                 ├─────▶ declined
                 ├─────▶ canceled         the page expired
                 └─────▶ unknown          no answer: the same request again, with the same key

Credit is put in by `billing.payments.cash` alone, when the provider says that the money came; then the state is
`granted`, whatever it was before. One automatic top-up of a tenant is in flight at a time, by an index.
"""

from __future__ import annotations

from typing import Any, Literal
from uuid import UUID

import msgspec
from sqlalchemy import func, select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncSession

from billing.integrity.recorded_tables import TOP_UPS
from billing.invoices.advances import TopUpQuote, credit_for
from billing.invoices.parties.parties import InvalidParty
from billing.money import format_minor, minor_to_pico
from billing.payments.auto_top_ups import AutoTopUps
from billing.payments.cash import CashBook
from billing.payments.customers import Customers
from billing.payments.errors import InvalidTopUp, PaymentRefused, UnknownPayment
from billing.payments.jobs import queue_job
from billing.payments.notices import DECLINED, NEEDS_CUSTOMER, tell_of_top_up
from billing.payments.provider import MoneyIn, PaymentFact, PaymentProvider, ProviderRefused, ProviderUnavailable
from billing.payments.recording import change_recorded, insert_recorded
from billing.tables.payments import payment_dispute, top_up
from storage.database.base import new_id
from storage.database.database import Database, DatabaseUnavailable
from storage.free_text import REASON
from storage.reported_error import ReportedError

TopUpKind = Literal["checkout", "automatic"]
TopUpState = Literal["created", "sent", "granted", "needs_customer", "declined", "unknown", "canceled"]
LEAST, MOST = 100, 10_000_000
"""Minor units of a top-up, in currencies of two digits: 1.00 to 100,000.00."""
MOST_OPEN = 20
"""Pages of a tenant that can be paid at a time."""
PAGE_S = 23 * 3600
"""How long a page can be paid on; Stripe's longest is 24 hours."""
IN_FLIGHT: tuple[TopUpState, ...] = ("created", "sent", "unknown")
_TOP_UP = top_up.c
_SECOND = 1_000_000


class TopUp(msgspec.Struct, frozen=True):
    """A top-up. `amount`: the money, in minor units; `credit_pico`: what it buys, without VAT that is due in advance.
    Instants are in microseconds since the Unix epoch."""

    id: UUID
    tenant_id: UUID
    provider: str
    kind: TopUpKind
    amount: int
    currency: str
    credit_pico: int
    state: TopUpState
    payment_id: str | None
    session_id: str | None
    url: str
    method_id: str
    code: str
    replaces: UUID | None
    created_at: int
    updated_at: int


_COLUMNS = [_TOP_UP[name] for name in TopUp.__struct_fields__]


class TopUps:
    """Makes top-ups and follows them. Methods raise DatabaseUnavailable."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._customers, self._cash, self._auto = Customers(database), CashBook(database), AutoTopUps(database)

    async def get(self, tenant_id: UUID, top_up_id: UUID) -> TopUp:
        """One of a tenant's top-ups. Raises UnknownPayment."""
        query = select(*_COLUMNS).where(_TOP_UP.tenant_id == tenant_id, _TOP_UP.id == top_up_id)
        async with self._database.reading() as session:
            row = (await session.execute(query)).one_or_none()
        if row is None:
            raise UnknownPayment("there is no such top-up")
        return TopUp(*row)

    async def find(self, top_up_id: UUID) -> TopUp | None:
        """A top-up of any tenant, for whoever does what is due."""
        async with self._database.reading() as session:
            # all tenants: the job has the row's id
            row = (await session.execute(select(*_COLUMNS).where(_TOP_UP.id == top_up_id))).one_or_none()
        return None if row is None else TopUp(*row)

    async def list(self, tenant_id: UUID, *, limit: int, after: UUID | None = None) -> list[TopUp]:
        """A tenant's top-ups, the newest first."""
        query = select(*_COLUMNS).where(_TOP_UP.tenant_id == tenant_id)
        if after is not None:
            query = query.where(_TOP_UP.id < after)
        async with self._database.reading() as session:
            return [TopUp(*row) for row in await session.execute(query.order_by(_TOP_UP.id.desc()).limit(limit))]

    async def create(
        self, tenant_id: UUID, provider: str, amount: int, currency: str, *, top_up_id: UUID | None = None
    ) -> TopUp:
        """A top-up that the tenant pays on a page; the same one under the same id. Raises InvalidTopUp and
        PaymentRefused."""
        check_amount("amount", amount)
        identity = top_up_id or new_id()
        priced = await credit_for(self._database, tenant_id, amount, currency)
        async with self._database.transaction() as session:
            await self._database.lock_rows_of(session, top_up, identity)
            # all tenants: an id is one for all of them
            there = (await session.execute(select(*_COLUMNS).where(_TOP_UP.id == identity))).one_or_none()
            if there is not None:
                if (there.tenant_id, there.currency) != (tenant_id, currency) or not 0 <= amount - there.amount <= 1:
                    raise InvalidTopUp("id", "it is another top-up's")
                return TopUp(*there)
            waiting = select(func.count()).where(_TOP_UP.tenant_id == tenant_id, _TOP_UP.state.in_(IN_FLIGHT))
            if int(await session.scalar(waiting) or 0) >= MOST_OPEN:
                raise PaymentRefused(f"{MOST_OPEN} top-ups wait to be paid already: pay one, or wait for a day")
            row = _row(identity, tenant_id, provider, "checkout", priced)
            await self._insert(session, row)
        return await self.get(tenant_id, identity)

    async def _insert(self, session: AsyncSession, row: dict[str, Any]) -> None:
        now = self._database.clock
        await insert_recorded(session, TOP_UPS, "top_up.created", row | {"created_at": now, "updated_at": now})
        await queue_job(self._database, session, "top_up", str(row["id"]))

    async def charge_due(self, provider: str) -> int:
        """Begin the automatic top-ups of tenants whose money is below their threshold; returns how many."""
        begun = 0
        for due in await self._auto.due(provider):
            try:
                priced = await credit_for(self._database, due.tenant_id, due.amount, due.currency)
            except DatabaseUnavailable:
                raise
            except ReportedError as error:  # it is of this tenant alone: nobody else waits for it
                async with self._database.transaction() as session:
                    await self._auto.pause(session, due.tenant_id, f"no top-up can be made: {error}"[:REASON])
                continue
            try:
                async with self._database.transaction() as session:
                    row = _row(new_id(), due.tenant_id, provider, "automatic", priced)
                    await self._insert(session, row | {"method_id": due.method_id})
            except IntegrityError:
                continue  # another worker was faster
            begun += 1
        return begun

    # ------------------------------------------------------------ at the provider

    async def send(self, provider: PaymentProvider, top_up_id: UUID, *, old: bool = False) -> TopUp | None:
        """Ask the provider for what a top-up needs: a page, or the money. May be repeated. `old`: the provider may have
        forgotten the key, so what was made is looked for first. Raises ProviderUnavailable."""
        row = await self.find(top_up_id)
        if row is None or row.state not in IN_FLIGHT:
            return row
        tenant, customer = await self._customers.get(row.tenant_id)
        try:
            if row.payment_id is not None:
                await self.follow(provider, await provider.payment(row.payment_id))
            elif row.kind == "checkout":
                await self._open_page(provider, row, customer, old=old)
            elif await self._auto.is_suspended(row.tenant_id):
                await self._end(row, "canceled", "suspended")
            elif await self._is_disputed(row.tenant_id):
                await self._end(row, "declined", "dispute")
            else:
                await self._charge(provider, row, customer, row.method_id or tenant.method_id, old=old)
        except ProviderUnavailable:
            if row.state == "created" or (row.kind == "automatic" and row.state == "sent"):
                await self._change(row, {"state": "unknown"}, "top_up.unanswered")
            raise
        except ProviderRefused as error:
            await self._end(row, "declined", error.code or "refused")
        return await self.get(row.tenant_id, row.id)

    async def _open_page(self, provider: PaymentProvider, row: TopUp, customer: str, *, old: bool) -> None:
        if row.session_id is not None:
            session = await provider.session(row.session_id)
        else:
            since, made = row.created_at // _SECOND, None
            if old:
                made = await provider.find_checkout(customer, str(row.id), since - 60)
            session = made or await provider.create_checkout(
                customer,
                top_up=str(row.id),
                amount=row.amount,
                currency=row.currency,
                expires_at=since + PAGE_S,
                key=f"topup:{row.id}",
            )
        if session.payment:
            await self._change(row, {"state": "sent", "session_id": session.id, "url": ""}, "top_up.sent")
            await self.follow(provider, await provider.payment(session.payment))
        elif session.status == "expired":
            await self._end(row, "canceled", "expired")
        elif row.session_id is None:
            values = {"state": "sent", "session_id": session.id, "url": session.url}
            await self._change(row, values, "top_up.sent")

    async def _charge(self, provider: PaymentProvider, row: TopUp, customer: str, method: str, *, old: bool) -> None:
        if not method:
            await self._end(row, "declined", "no_payment_method")
            return
        fact = await provider.find_payment(customer, str(row.id), row.created_at // _SECOND - 60) if old else None
        if fact is None:
            fact = await provider.charge(
                customer,
                method=method,
                top_up=str(row.id),
                amount=row.amount,
                currency=row.currency,
                key=f"topup:{row.id}:{method}",
            )
        await self._change(row, {"state": "sent", "payment_id": fact.id, "method_id": method}, "top_up.sent")
        await self.follow(provider, fact)

    async def follow(self, provider: PaymentProvider, fact: PaymentFact) -> bool:  # noqa: PLR0911  # a line a state
        """Let a top-up become what its payment is. False if the payment points to none of ours."""
        row = await self._of_payment(provider.name, fact)
        if fact.status == "succeeded":
            if row is None and not fact.top_up:
                return False
            money = MoneyIn(
                provider=provider.name,
                id=fact.id,
                amount=fact.received,
                currency=fact.currency,
                at=await self._database.now(),
                reference=fact.top_up,
            )
            await self._cash.take_top_up(money, None if row is None else row.id, fact.customer)
            return True
        if row is None:
            return bool(fact.top_up)
        if row.state not in IN_FLIGHT or fact.status in ("processing", "open"):
            return True
        if row.kind == "checkout":  # the page takes another card
            if fact.code and fact.code != row.code:
                await self._change(row, {"code": fact.code[:100]}, "top_up.declined_once")
            return True
        if fact.status == "needs_customer":
            after = await provider.cancel_payment(fact.id)
            if after.status == "succeeded":
                return await self.follow(provider, after)
            await self._replace_by_page(row, after)
        elif fact.status == "canceled":
            await self._end(row, "canceled", fact.code)
        else:
            await provider.cancel_payment(fact.id)
            await self._end(row, "declined", fact.code or "card_declined")
        return True

    async def _of_payment(self, provider: str, fact: PaymentFact) -> TopUp | None:
        identity = _uuid(fact.top_up)
        async with self._database.reading() as session:
            # all tenants: the provider's id says whose it is
            by_payment = (_TOP_UP.provider == provider) & (_TOP_UP.payment_id == fact.id)
            row = (await session.execute(select(*_COLUMNS).where(by_payment))).one_or_none()
            if row is None and identity is not None:
                row = (await session.execute(select(*_COLUMNS).where(_TOP_UP.id == identity))).one_or_none()
        return None if row is None else TopUp(*row)

    async def _replace_by_page(self, row: TopUp, fact: PaymentFact) -> None:
        """The card's bank asks for its owner: a page takes the place of the automatic top-up."""
        try:
            priced = await credit_for(self._database, row.tenant_id, row.amount, row.currency)
        except InvalidParty:
            await self._end(row, "declined", fact.code or "authentication_required")
            return
        page = _row(new_id(), row.tenant_id, row.provider, "checkout", priced)
        async with self._database.transaction() as session:
            if not await self._still_in_flight(session, row):
                return
            values = {"state": "needs_customer", "code": fact.code or "authentication_required"}
            await self._write(session, row, values | {"payment_id": fact.id}, "top_up.needs_customer")
            await self._insert(session, page | {"replaces": row.id})
            await self._auto.declined(session, row.tenant_id, "authentication_required")
            await tell_of_top_up(self._database, session, NEEDS_CUSTOMER, row, replaced_by=str(page["id"]))

    async def _end(self, row: TopUp, state: TopUpState, code: str) -> None:
        async with self._database.transaction() as session:
            if not await self._still_in_flight(session, row):
                return
            await self._write(session, row, {"state": state, "code": code[:100], "url": ""}, f"top_up.{state}")
            if state == "declined":
                await tell_of_top_up(self._database, session, DECLINED, row, code=code)
            if row.kind == "automatic" and code != "suspended":
                await self._auto.declined(session, row.tenant_id, code)

    async def _change(self, row: TopUp, values: dict[str, Any], action: str) -> None:
        async with self._database.transaction() as session:
            if await self._still_in_flight(session, row):
                await self._write(session, row, values, action)

    async def _write(self, session: AsyncSession, row: TopUp, values: dict[str, Any], action: str) -> None:
        await change_recorded(session, TOP_UPS, action, row.id, values | {"updated_at": self._database.clock})

    async def _still_in_flight(self, session: AsyncSession, row: TopUp) -> bool:
        """Whether nothing has become of it meanwhile; it is locked then."""
        query = select(_TOP_UP.state).where(_TOP_UP.tenant_id == row.tenant_id, _TOP_UP.id == row.id)
        return await session.scalar(self._database.locked(query)) in IN_FLIGHT

    async def _is_disputed(self, tenant_id: UUID) -> bool:
        dispute = payment_dispute.c
        query = select(dispute.id).where(dispute.tenant_id == tenant_id, dispute.state.in_(("open", "withdrawn")))
        async with self._database.reading() as session:
            return await session.scalar(query.limit(1)) is not None


def check_amount(field: str, amount: int) -> None:
    """Raise InvalidTopUp for an amount that is no top-up's."""
    if not LEAST <= amount <= MOST:
        least, most = format_minor(LEAST, "USD"), format_minor(MOST, "USD")
        raise InvalidTopUp(field, f"it is not between {least} and {most}")


def _row(identity: UUID, tenant_id: UUID, provider: str, kind: TopUpKind, priced: TopUpQuote) -> dict[str, Any]:
    row: dict[str, Any] = {"id": identity, "tenant_id": tenant_id, "provider": provider, "kind": kind}
    credit = minor_to_pico(priced.net, priced.currency)
    return row | {"amount": priced.gross, "currency": priced.currency, "credit_pico": credit, "state": "created"}


def _uuid(text: str) -> UUID | None:
    try:
        return UUID(text)
    except ValueError:
        return None
