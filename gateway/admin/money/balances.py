"""/admin/v1/tenants/{tenant}/balance: what a tenant has, its credit line, its account statement, and corrections of
usage."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

from billing.accounts.adjustments import adjust
from billing.accounts.balances import Balances
from billing.accounts.statements import StatementLine, statement_page
from billing.calendar import format_instant, period_of
from billing.exports.account import AccountLineKind, AccountStatement, account_statements
from billing.ledger.entries import Balance
from billing.money import format_pico
from gateway.admin.operation import Ok, Query, operation
from gateway.admin.refusals import amount_at, uuid_at
from gateway.http.pending import PENDING_STATUS, ChangeObject
from gateway.http.policies import demands
from gateway.http.shapes import Instant, PageQuery, Pico, TenantId, show
from gateway.request_context import public_name
from gateway.services import Gateway
from tenancy.tables import Tenant

REQUEST_PREFIX = "req_"


class CreditLine(Struct, frozen=True, forbid_unknown_fields=True):
    """How much may be used before it is paid, as a decimal string; 0: prepaid. `dry_run`: only check."""

    amount: str
    dry_run: bool = False


class Correction(Struct, frozen=True, forbid_unknown_fields=True):
    """Units to add to what a request used (less than zero: to take away), by meter. `id`: a UUIDv7 of your own; used
    again, the correction counts once. `dry_run`: only check."""

    request: str
    units: dict[str, Annotated[int, Meta(ge=-(2**40), le=2**40)]]
    reason: str = "correction"
    id: str | None = None
    dry_run: bool = False


class BalanceObject(Struct, frozen=True, kw_only=True):
    """A tenant's money, as decimal strings in its currency. `available` may still be reserved: what was put in, less
    what was used and is held, and the credit line. `restricted` is for one model or project, beside that."""

    object: Literal["balance"] = "balance"
    tenant_id: TenantId
    currency: str
    available: Pico
    held: Pico
    restricted: Pico
    credit_line: Pico
    credit: Pico
    used: Pico
    prepaid: Pico
    promo: Pico
    receivable: Pico
    overdraft: Pico


class StatementLineObject(Struct, frozen=True, kw_only=True):
    """What changed the balance. `balance` is the one after it; `invoiced` is what invoices ask for beyond usage."""

    object: Literal["statement.line"] = "statement.line"
    id: str
    at: str
    kind: str
    period: str
    memo: str
    amount: str
    balance: str
    invoiced: str
    carried: str


class Statement(Struct, frozen=True, kw_only=True):
    """Lines in the order of posting; `next` is the `after` of the next page."""

    object: Literal["list"] = "list"
    currency: str
    data: list[StatementLineObject]
    has_more: bool
    next: str | None


class AccountLineObject(Struct, frozen=True, kw_only=True):
    """What changed an account. `amount` is more than 0 where it is for the tenant, `balance` less than 0 where the
    tenant owes it. `number`: the document's, or the paid invoice's; `reference`: the payment's, or the reason."""

    object: Literal["account.line"] = "account.line"
    at: Instant
    kind: AccountLineKind
    number: str | None
    reference: str | None
    amount: Pico
    balance: Pico


class AccountObject(Struct, frozen=True, kw_only=True):
    """A tenant's account in one currency over a month, from its opening to its closing balance."""

    object: Literal["account"] = "account"
    tenant_id: TenantId
    period: str
    currency: str
    opening: Pico
    closing: Pico
    lines: list[AccountLineObject]


class Accounts(Struct, frozen=True, kw_only=True):
    """A tenant's statements of account, one for each currency."""

    object: Literal["list"] = "list"
    data: list[AccountObject]


class AdjustmentObject(Struct, frozen=True, kw_only=True):
    """A correction of a request's usage, as an event of its own. `cost` is less than zero where money is given back."""

    object: Literal["usage.adjustment"] = "usage.adjustment"
    id: str
    request: str
    period: str
    units: dict[str, int]
    cost: Pico
    currency: str
    dry_run: bool


_TENANT = "/admin/v1/tenants/{tenant:str}"


class BalanceOperations:
    """Shows balances and their statements, sets credit lines, corrects usage."""

    def __init__(self, gateway: Gateway) -> None:
        self._database, self._prices = gateway.services.database, gateway.services.prices
        self._balances = Balances(self._database)

    @operation("GET", f"{_TENANT}/balance", demands("balance.read"))
    async def retrieve_balance(self, tenant: Tenant) -> BalanceObject:
        """What the tenant has."""
        return balance_object(await self._balances.get_or_empty(tenant.id))

    @operation(
        "PUT",
        f"{_TENANT}/credit-line",
        demands("balance.write"),
        status={BalanceObject: 200, ChangeObject: PENDING_STATUS},
        example=CreditLine(amount="500.00"),
    )
    async def set_credit_line(self, tenant: Tenant, body: CreditLine) -> BalanceObject | ChangeObject:
        """Set how much the tenant may use before it is paid. A dry run answers the balance as it would be. Raising it
        above the platform's amount waits for another operator while approvals are on, and the answer is 202."""
        amount = amount_at("$.amount", body.amount, zero=True)
        before = await self._balances.get_or_empty(tenant.id)
        if body.dry_run:
            return balance_object(before.with_credit_line(amount))
        await self._balances.set_credit_line(tenant.id, amount, before.currency)
        return balance_object(await self._balances.get_or_empty(tenant.id))

    @operation("GET", f"{_TENANT}/statement", demands("balance.read"))
    async def retrieve_statement(
        self,
        tenant: Tenant,
        page: PageQuery,
        since: Annotated[
            Instant | None, Query("Only what was posted from this instant on.", example="2026-11-01T00:00:00Z")
        ] = None,
        until: Annotated[
            Instant | None, Query("Only what was posted before this instant.", example="2026-12-01T00:00:00Z")
        ] = None,
        *,
        every: Annotated[bool, Query("Each posting of usage; else a day's usage is one line.", example=False)] = False,
    ) -> Statement:
        """What changed the balance, in the order of posting, with the balance after each line."""
        lines = await statement_page(
            self._database,
            tenant.id,
            start_at=0 if since is None else since,
            end_at=2**62 if until is None else until,
            after=uuid_at("after", page.after),
            limit=page.limit,
            days=not every,
        )
        return Statement(
            currency=await self._balances.currency_of(tenant.id),
            data=[_line(line) for line in lines.lines],
            has_more=lines.after is not None,
            next=None if lines.after is None else str(lines.after),
        )

    @operation("GET", f"{_TENANT}/account", demands("balance.read"))
    async def retrieve_account(
        self,
        tenant: Tenant,
        period: Annotated[str | None, Query("The month; by default the present one.", example="2026-11")] = None,
    ) -> Accounts:
        """The statement of account of a month: opening balance, usage by day, invoices, credit notes, payments,
        refunds, and closing balance. It agrees with the journal's months to the last of 12 places."""
        if period is None:
            period = period_of(await self._database.now())
        statements = await account_statements(self._database, tenant.id, period)
        return Accounts(data=[_account(one, period) for one in statements])

    @operation(
        "POST",
        f"{_TENANT}/adjustments",
        demands("balance.write"),
        status={AdjustmentObject: 201, Ok[AdjustmentObject]: 200},
        example=Correction(request="req_019aa1f00000700080000000000000aa", units={"output": -120}),
        errors={"idempotency_conflict": 409, "invalid_adjustment": 400},
    )
    async def adjust_usage(self, tenant: Tenant, body: Correction) -> AdjustmentObject | Ok[AdjustmentObject]:
        """Correct one request's usage by a new event, priced as the request was. Nothing is ever edited. Repeated under
        the same id it is answered with 200 and counts once."""
        event_id = uuid_at("$.request", body.request, REQUEST_PREFIX)
        assert event_id is not None, "the field is required"
        identity = uuid_at("$.id", body.id)
        repeated = identity is not None and await self._balances.posted(identity)
        event = await adjust(
            self._database,
            self._prices,
            tenant.id,
            event_id,
            body.units,
            reason=body.reason,
            adjustment_id=identity,
            dry_run=body.dry_run,
        )
        adjustment = AdjustmentObject(
            id=str(event.id),
            request=public_name(event_id),
            period=event.period,
            units=dict(event.usage.used()),
            cost=Pico(event.cost_pico),
            currency=(await self._prices.version(event.price_version)).currency,
            dry_run=body.dry_run,
        )
        return Ok(adjustment) if body.dry_run or repeated else adjustment


def balance_object(balance: Balance) -> BalanceObject:
    """A balance as answers have it."""
    return show(BalanceObject, balance, used=balance.debit)


def _account(statement: AccountStatement, period: str) -> AccountObject:
    opening, *lines, closing = statement.lines
    return AccountObject(
        tenant_id=TenantId.of(statement.tenant_id),
        period=period,
        currency=statement.currency,
        opening=Pico(opening.balance_pico),
        closing=Pico(closing.balance_pico),
        lines=[
            AccountLineObject(
                at=Instant(line.at),
                kind=line.kind,
                number=line.number or None,
                reference=line.text or None,
                amount=Pico(line.amount_pico),
                balance=Pico(line.balance_pico),
            )
            for line in lines
        ],
    )


def _line(line: StatementLine) -> StatementLineObject:
    return StatementLineObject(
        id=str(line.id),
        at=format_instant(line.posted_at),
        kind=line.kind,
        period=line.period,
        memo=line.memo,
        amount=format_pico(line.amount_pico),
        balance=format_pico(line.balance_pico),
        invoiced=format_pico(line.invoiced_pico),
        carried=format_pico(line.carry_pico),
    )
