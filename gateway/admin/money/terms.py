"""/admin/v1/tenants/{tenant}/terms: contracts that change the list prices, each from a period on."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Struct

from audit_log.actors import THIS_MACHINE
from billing.calendar import period_of
from billing.money import format_pico
from billing.prices.grid import amount
from billing.rating.contract_store import Contract, Contracts
from billing.rating.rated_lines import preview_commitment
from billing.rating.terms import ContractTerms, parse_terms
from gateway.admin.operation import Call, Ok, Query, operation
from gateway.admin.refusals import refusals
from gateway.dialects.query_parameters import Parameters
from gateway.errors import InvalidField
from gateway.http.pending import PENDING_STATUS, ChangeObject
from gateway.http.policies import demands
from gateway.http.shapes import Instant, Page, PageQuery, Pico, TenantId, show
from gateway.services import Gateway
from storage.free_text import REASON, check_text
from tenancy.tables import Tenant


class StepObject(Struct, frozen=True, forbid_unknown_fields=True):
    """A price per 1,000,000 units, up to so many units; the last step has no end."""

    price: str
    up_to: int | None = None


class TiersObject(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Prices by the units of a meter in a month: each part at its step's price, or all at the last step's."""

    kind: Literal["graduated", "volume"]
    model: str
    meter: str
    lane: str = "standard"
    steps: tuple[StepObject, ...]


class DiscountObject(Struct, frozen=True, forbid_unknown_fields=True):
    """Hundredths of a percent off the usage of these models, or of all."""

    basis_points: int
    models: tuple[str, ...] = ()


class MinimumObject(Struct, frozen=True, forbid_unknown_fields=True):
    """The least that a month's invoice asks for, also without any use. In force from the day `first` to the day `last`;
    a month of which it is in force for some days owes their part, unless it is not `prorated`."""

    amount: str
    first: str = ""
    last: str = ""
    prorated: bool = True


class CommitmentPaymentObject(Struct, frozen=True, forbid_unknown_fields=True):
    """What came for a commitment in another way than by its invoices. It stays in later terms of the commitment."""

    amount: str
    reference: str
    reason: str


class CommitmentObject(Struct, frozen=True, forbid_unknown_fields=True):
    """An amount for usage of the months from `first` to `last`, which pays what was funded.

    `invoiced`: the first month's invoice asks for it, less its payments; where it is raised, a later one for the rest.
    """

    amount: str
    first: str
    last: str
    invoiced: bool = True
    payments: tuple[CommitmentPaymentObject, ...] = ()


class TermsObject(Struct, frozen=True, forbid_unknown_fields=True):
    """All terms of a tenant; without any, list prices apply."""

    tiers: tuple[TiersObject, ...] = ()
    discounts: tuple[DiscountObject, ...] = ()
    minimum: MinimumObject | None = None
    commitment: CommitmentObject | None = None


class NewTerms(Struct, frozen=True, forbid_unknown_fields=True):
    """Terms from a month on, this one without it. They replace all that were set for it. `dry_run`: only check."""

    terms: TermsObject
    from_period: str | None = None
    reason: str = ""
    dry_run: bool = False


class CommitmentMonthObject(Struct, frozen=True, kw_only=True):
    """A month of a commitment: what its invoice asks for, what has been funded until then, what the commitment pays.

    `drawn` is of the month's usage until now, none for a month to come; `left` is what can still be drawn after that.
    `sent`: the month's invoice was issued, and says so.
    """

    period: str
    sent: bool
    asked: Pico
    funded: Pico
    drawn: Pico | None
    left: Pico


class ContractObject(Struct, frozen=True, kw_only=True):
    """Terms as they were set; `number` is none for terms that are only checked, and for list prices.

    `schedule`: the months of the commitment as they will be; only of terms that are checked.
    """

    object: Literal["terms"] = "terms"
    number: int | None
    tenant_id: TenantId
    from_period: str
    terms: TermsObject
    author: str
    reason: str
    created_at: Instant | None
    schedule: list[CommitmentMonthObject] | None = None


class ContractList(Page[ContractObject], frozen=True):
    """All that was set, the latest first; rows never change, later ones follow."""


_PATH = "/admin/v1/tenants/{tenant:str}/terms"


class TermsOperations:
    """Shows and sets contract terms."""

    def __init__(self, gateway: Gateway) -> None:
        self._database, self._prices = gateway.services.database, gateway.services.prices
        self._contracts = Contracts(self._database, self._prices)

    @operation("GET", _PATH, demands("terms.read"))
    async def retrieve_terms(
        self,
        call: Call,
        tenant: Tenant,
        period: Annotated[str, Query("As of this month; this one without it.", example="2026-11")] = "",
    ) -> ContractObject:
        """The terms that apply to a month."""
        period = period or await self._this_period()
        await self._contracts.terms_of(tenant.id, period)  # which checks the period
        in_force = [each for each in await self._contracts.list(tenant.id) if each.from_period <= period]
        if in_force:
            return _visible(call, max(in_force, key=lambda contract: (contract.from_period, contract.id)))
        return _object(Contract(0, tenant.id, period, ContractTerms(), "", "", 0))

    @operation("GET", f"{_PATH}/history", demands("terms.read"))
    async def list_terms(self, call: Call, tenant: Tenant, page: PageQuery) -> ContractList:
        """All terms that were set, the latest first."""
        after = Parameters.of(call.request).integer("after")
        contracts = sorted(await self._contracts.list(tenant.id), key=lambda contract: -contract.id)
        rest = [contract for contract in contracts if after is None or contract.id < after]
        return ContractList.of([_visible(call, contract) for contract in rest[: page.limit + 1]], page.limit)

    @operation(
        "POST",
        _PATH,
        demands("terms.write"),
        status={ContractObject: 201, Ok[ContractObject]: 200, ChangeObject: PENDING_STATUS},
        example=NewTerms(terms=TermsObject(discounts=(DiscountObject(basis_points=1000),)), reason="contract 7"),
        errors={"price_missing": 409},
    )
    async def set_terms(
        self, call: Call, tenant: Tenant, body: NewTerms
    ) -> ContractObject | Ok[ContractObject] | ChangeObject:
        """Set all terms of a tenant from a month on. A dry run answers them with 200, without a number and with
        the months of their commitment; with 202 they wait for another person."""
        author = call.principal.name or call.principal.public_id
        with refusals({"from": "$.from_period", "reason": "$.reason", "terms": "$.terms"}, body="$.terms."):
            check_text("reason", body.reason, REASON, empty=True)
            terms = parse_terms(_given(body.terms))
            period = body.from_period or await self._this_period()
            await self._contracts.check(tenant.id, terms, period)
            if body.dry_run:
                months = await preview_commitment(self._database, self._prices, tenant.id, terms, period)
                checked = _object(Contract(0, tenant.id, period, terms, author, body.reason, 0))
                schedule = [show(CommitmentMonthObject, month) for month in months]
                return Ok(msgspec.structs.replace(checked, schedule=schedule))
            number = await self._contracts.put(tenant.id, terms, period, author, body.reason)
        return _object(next(each for each in await self._contracts.list(tenant.id) if each.id == number))

    async def _this_period(self) -> str:
        return period_of(await self._database.now())


def _given(terms: TermsObject) -> dict[str, Any]:
    """Terms as a file says them: what is absent there is not null."""
    try:
        given: dict[str, Any] = msgspec.to_builtins(terms)
    except ValueError as error:
        raise InvalidField("$.terms", str(error)) from error
    return {name: value for name, value in given.items() if value is not None}


def terms_object(terms: ContractTerms) -> TermsObject:
    """Terms with amounts and prices as decimal strings: the inverse of `parse_terms`."""
    committed = terms.commitment
    return TermsObject(
        tiers=tuple(
            TiersObject(
                kind=tiers.kind,
                model=tiers.model,
                meter=tiers.meter,
                lane=tiers.lane,
                steps=tuple(StepObject(amount(step.price_micro), step.up_to) for step in tiers.steps),
            )
            for tiers in terms.tiers
        ),
        discounts=tuple(DiscountObject(one.basis_points, one.models) for one in terms.discounts),
        minimum=None
        if terms.minimum is None
        else MinimumObject(
            format_pico(terms.minimum.amount_pico), terms.minimum.first, terms.minimum.last, terms.minimum.prorated
        ),
        commitment=None
        if committed is None
        else CommitmentObject(
            format_pico(committed.amount_pico),
            committed.first,
            committed.last,
            committed.invoiced,
            tuple(
                CommitmentPaymentObject(format_pico(one.amount_pico), one.reference, one.reason)
                for one in committed.payments
            ),
        ),
    )


def _visible(call: Call, contract: Contract) -> ContractObject:
    """Terms as whoever asks may read them. A command's author is USER@HOST, which is not for the tenant."""
    if "@" in contract.author and not call.principal.may("terms.read"):
        contract = msgspec.structs.replace(contract, author=THIS_MACHINE)
    return _object(contract)


def _object(contract: Contract) -> ContractObject:
    return ContractObject(
        number=contract.id or None,
        tenant_id=TenantId.of(contract.tenant_id),
        from_period=contract.from_period,
        terms=terms_object(contract.terms),
        author=contract.author,
        reason=contract.reason,
        created_at=Instant(contract.created_at) if contract.created_at else None,
    )
