"""/admin/v1/sellers and /admin/v1/tenants/{tenant}/buyer: who invoices are from, and who they are for."""

from __future__ import annotations

from datetime import date
from typing import Any, Literal

from msgspec import UNSET, Struct, UnsetType

from billing.invoices.errors import NoProfile
from billing.invoices.parties.changing import changed_buyer, changed_seller
from billing.invoices.parties.dated import DatedParty
from billing.invoices.parties.parties import (
    Buyer,
    Detail,
    InvalidParty,
    Party,
    Prepayment,
    Profile,
    Seller,
    Treatment,
    format_rate,
    parse_rate,
    prepayment_of,
    vat_warning,
)
from billing.invoices.parties.store import Parties
from gateway.admin.operation import Call, operation
from gateway.errors import InvalidField, NotAllowed, NotFound
from gateway.http.pending import PENDING_STATUS, ChangeObject
from gateway.http.policies import demands
from gateway.http.shapes import Page, PageQuery, TenantId, show
from gateway.services import Gateway
from tenancy.tables import Tenant

_PLATFORMS_FIELDS = ("seller", "payment_days", "treatment", "exemption", "einvoice", "valid_from")
"""Fields of a billing profile that a tenant does not set itself: they decide what it is asked for, and when."""
_OF_THE_CHANGE = ("dry_run", "valid_from", "reason")


class PartyChange(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Fields to be changed. `valid_from`: the day (UTC) from which facts hold that tax follows from (country, VAT id,
    rates, seller, treatment, exemption); today without it. Other fields change at once. `dry_run`: only check."""

    name: str | UnsetType = UNSET
    address: list[str] | UnsetType = UNSET
    postal_code: str | UnsetType = UNSET
    city: str | UnsetType = UNSET
    country: str | UnsetType = UNSET
    vat_id: str | UnsetType = UNSET
    email: str | UnsetType = UNSET
    endpoint: str | UnsetType = UNSET
    endpoint_scheme: str | UnsetType = UNSET
    valid_from: str | UnsetType = UNSET
    reason: str = ""
    dry_run: bool = False


class SellerChange(PartyChange, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Fields of a seller to be changed. `rates`: country -> VAT in percent, all of them. A seller that exists needs a
    `reason`. `prepayment`: when VAT on credit is due: `advance` when it is paid, the default of a new seller, or
    `multi_purpose` when it is used."""

    registration: str | UnsetType = UNSET
    payment: list[str] | UnsetType = UNSET
    currency: str | UnsetType = UNSET
    series: str | UnsetType = UNSET
    credit_series: str | UnsetType = UNSET
    number_format: str | UnsetType = UNSET
    rates: dict[str, str] | UnsetType = UNSET
    contact: str | UnsetType = UNSET
    phone: str | UnsetType = UNSET
    iban: str | UnsetType = UNSET
    bic: str | UnsetType = UNSET
    prepayment: Prepayment | UnsetType = UNSET


class BuyerChange(PartyChange, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Fields of a billing profile to be changed. Seller, payment days, treatment, exemption and the profile of its
    e-invoices are set by the platform alone."""

    seller: str | UnsetType = UNSET
    purchase_order: str | UnsetType = UNSET
    payment_days: int | UnsetType = UNSET
    treatment: Treatment | UnsetType = UNSET
    exemption: str | UnsetType = UNSET
    detail: Detail | UnsetType = UNSET
    buyer_reference: str | UnsetType = UNSET
    einvoice: Profile | Literal[""] | UnsetType = UNSET


class PartyObject(Struct, frozen=True, kw_only=True):
    """What both parties have. `warning`: about its VAT id, empty if there is none."""

    name: str
    address: list[str]
    postal_code: str
    city: str
    country: str
    vat_id: str
    email: str
    endpoint: str
    endpoint_scheme: str
    warning: str


class SellerVersion(Struct, frozen=True, kw_only=True):
    """What tax follows from, from a day on; `valid_from` is null for the first."""

    valid_from: str | None
    country: str
    vat_id: str
    rates: dict[str, str]


class BuyerVersion(Struct, frozen=True, kw_only=True):
    """What tax follows from, from a day on; `valid_from` is null for the first."""

    valid_from: str | None
    seller: str
    country: str
    vat_id: str
    treatment: Treatment
    exemption: str


class SellerObject(PartyObject, frozen=True, kw_only=True):
    """A legal entity that sells, as of today. `rates`: country -> VAT in percent. `versions`: what changed of that from
    which day on, past and to come; none if nothing ever did."""

    object: Literal["seller"] = "seller"
    id: str
    registration: str
    payment: list[str]
    currency: str
    series: str
    credit_series: str
    number_format: str
    rates: dict[str, str]
    contact: str
    phone: str
    iban: str
    bic: str
    prepayment: Prepayment
    versions: list[SellerVersion]


class SellerList(Page[SellerObject], frozen=True):
    """Sellers, ordered by id."""


class BuyerObject(PartyObject, frozen=True, kw_only=True):
    """A tenant's billing profile, as of today. `versions`: what changed of the facts that tax follows from, from which
    day on, past and to come; none if nothing ever did."""

    object: Literal["buyer"] = "buyer"
    tenant_id: TenantId
    seller: str
    purchase_order: str
    payment_days: int
    treatment: Treatment
    exemption: str
    detail: Detail
    buyer_reference: str
    einvoice: Profile | Literal[""]
    versions: list[BuyerVersion]


_EXAMPLE: dict[str, Any] = {
    "name": "Example Ltd",
    "address": ["1 High Street"],
    "city": "Berlin",
    "country": "DE",
}


class PartyOperations:
    """Shows and changes who invoices are from, and who they are for."""

    def __init__(self, gateway: Gateway) -> None:
        self._parties = Parties(gateway.services.database)

    @operation("GET", "/admin/v1/sellers", demands("sellers.read"))
    async def list_sellers(self, page: PageQuery) -> SellerList:
        """The legal entities that sell."""
        sellers = await self._parties.dated_sellers()
        rest = [dated for dated in sellers if page.after is None or dated.party.id > page.after]
        return SellerList.of([_seller(dated) for dated in rest[: page.limit + 1]], page.limit)

    @operation("GET", "/admin/v1/sellers/{seller:str}", demands("sellers.read"))
    async def retrieve_seller(self, seller: str) -> SellerObject:
        """One seller."""
        try:
            return _seller(await self._parties.dated_seller(seller))
        except NoProfile as error:
            raise NotFound(f"There is no seller {seller[:80]!r}.") from error

    @operation(
        "PATCH",
        "/admin/v1/sellers/{seller:str}",
        demands("sellers.write"),
        status={SellerObject: 200, ChangeObject: PENDING_STATUS},
        example=SellerChange(**_EXAMPLE),
    )
    async def change_seller(self, seller: str, body: SellerChange) -> SellerObject | ChangeObject:
        """Make a seller, or change the fields that are given. Issued documents keep what they say. Another account to
        be paid to waits for another operator while approvals are on, and the answer is 202."""
        valid_from = _valid_from(body)
        changed = await changed_seller(self._parties, seller, _fields(body), valid_from)
        if body.dry_run:
            return _seller(DatedParty(changed))
        await self._parties.set_seller(changed, valid_from=valid_from, reason=body.reason)
        return _seller(await self._parties.dated_seller(seller))

    @operation("GET", "/admin/v1/tenants/{tenant:str}/buyer", demands("parties.read"))
    async def retrieve_buyer(self, tenant: Tenant) -> BuyerObject:
        """The tenant's billing profile."""
        try:
            return _buyer(tenant, await self._parties.dated_buyer(tenant.id))
        except NoProfile as error:
            raise NotFound("The tenant has no billing profile yet.") from error

    @operation(
        "PATCH",
        "/admin/v1/tenants/{tenant:str}/buyer",
        demands("parties.write"),
        example=BuyerChange(**_EXAMPLE),
        errors={"no_billing_profile": 409},
    )
    async def change_buyer(self, call: Call, tenant: Tenant, body: BuyerChange) -> BuyerObject:
        """Make the tenant's billing profile, or change the fields that are given."""
        if not call.principal.may("parties.write"):
            for name in _PLATFORMS_FIELDS:
                if getattr(body, name) is not UNSET:
                    raise NotAllowed(f"$.{name}: the platform's finance sets this.", path=f"$.{name}")
        valid_from = _valid_from(body)
        changed = await changed_buyer(self._parties, tenant.id, _fields(body), valid_from)
        if body.dry_run:
            return _buyer(tenant, DatedParty(changed))
        await self._parties.set_buyer(tenant.id, changed, valid_from=valid_from, reason=body.reason)
        return _buyer(tenant, await self._parties.dated_buyer(tenant.id))


def _fields(body: SellerChange | BuyerChange) -> dict[str, Any]:
    """The fields that a body gives. Raises InvalidField."""
    fields = {name: getattr(body, name) for name in body.__struct_fields__ if name not in _OF_THE_CHANGE}
    given = {name: value for name, value in fields.items() if value is not UNSET}
    if "rates" in given:
        try:
            given["rates"] = {country: parse_rate(percent) for country, percent in given["rates"].items()}
        except InvalidParty as error:
            raise InvalidField("$.rates", error.problem) from error
    return given


def _valid_from(body: PartyChange) -> date | None:
    """The day from which facts hold. Raises InvalidParty."""
    if body.valid_from is UNSET:
        return None
    try:
        return date.fromisoformat(body.valid_from)
    except ValueError:
        raise InvalidParty("valid_from", f"{body.valid_from[:40]!r} is not a day such as 2027-01-01") from None


def _seller(dated: DatedParty[Seller]) -> SellerObject:
    return show(
        SellerObject,
        dated.party,
        warning=vat_warning("seller", dated.party),
        **_later_fields(dated.party) | {"prepayment": prepayment_of(dated.party)},
        rates=_rates(dated.party),
        versions=[
            SellerVersion(valid_from=day or None, country=then.country, vat_id=then.vat_id, rates=_rates(then))
            for day, then in dated.versions()
        ],
    )


def _later_fields(party: Party) -> dict[str, str]:
    """Fields that are absent where nobody set them: they are shown as empty."""
    absent = (name for name in party.__struct_fields__ if getattr(party, name) is UNSET)
    return dict.fromkeys(absent, "")


def _rates(seller: Seller) -> dict[str, str]:
    return {country: format_rate(rate) for country, rate in seller.rates.items()}


def _buyer(tenant: Tenant, dated: DatedParty[Buyer]) -> BuyerObject:
    return show(
        BuyerObject,
        dated.party,
        tenant_id=tenant.id,
        warning=vat_warning("buyer", dated.party),
        **_later_fields(dated.party),
        versions=[show(BuyerVersion, then, valid_from=day or None) for day, then in dated.versions()],
    )
