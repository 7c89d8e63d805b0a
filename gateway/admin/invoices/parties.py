"""/admin/v1/sellers and /admin/v1/tenants/{tenant}/buyer: who invoices are from, and who they are for."""

from __future__ import annotations

from datetime import date
from typing import Any, Literal

import msgspec
from litestar import Request, Response, get, patch
from litestar.handlers import HTTPRouteHandler
from litestar.params import FromPath
from msgspec import UNSET, Struct, UnsetType

from billing.invoices.errors import NoProfile
from billing.invoices.parties.changing import changed_buyer, changed_seller
from billing.invoices.parties.dated import BUYER_FACTS, DatedParty
from billing.invoices.parties.parties import (
    Buyer,
    Detail,
    InvalidParty,
    Party,
    Role,
    Seller,
    Treatment,
    format_rate,
    parse_rate,
    vat_warning,
)
from billing.invoices.parties.store import Parties
from gateway.admin.access import principal_of, visible_tenant
from gateway.admin.refusals import refusals
from gateway.dialects.query_parameters import Parameters
from gateway.endpoints.request_body import read_management_body
from gateway.errors import InvalidField, NotAllowed, NotFound
from gateway.http.operations import describes, page
from gateway.http.policies import demands
from gateway.http.responses import json_response
from gateway.http.shapes import Page
from gateway.services import Gateway
from tenancy.directory import tenant_public_id

_PLATFORMS_FIELDS = ("seller", "payment_days", "treatment", "exemption", "valid_from")
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
    valid_from: str | UnsetType = UNSET
    reason: str = ""
    dry_run: bool = False


class SellerChange(PartyChange, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Fields of a seller to be changed. `rates`: country -> VAT in percent, all of them. A seller that exists needs a
    `reason`."""

    registration: str | UnsetType = UNSET
    payment: list[str] | UnsetType = UNSET
    currency: str | UnsetType = UNSET
    series: str | UnsetType = UNSET
    credit_series: str | UnsetType = UNSET
    number_format: str | UnsetType = UNSET
    rates: dict[str, str] | UnsetType = UNSET


class BuyerChange(PartyChange, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Fields of a billing profile to be changed. Seller, payment days, treatment and exemption are set by the platform
    alone."""

    seller: str | UnsetType = UNSET
    purchase_order: str | UnsetType = UNSET
    payment_days: int | UnsetType = UNSET
    treatment: Treatment | UnsetType = UNSET
    exemption: str | UnsetType = UNSET
    detail: Detail | UnsetType = UNSET


class PartyObject(Struct, frozen=True, kw_only=True):
    """What both parties have. `warning`: about its VAT id, empty if there is none."""

    name: str
    address: list[str]
    postal_code: str
    city: str
    country: str
    vat_id: str
    email: str
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
    versions: list[SellerVersion]


class SellerList(Page[SellerObject], frozen=True):
    """Sellers, ordered by id."""


class BuyerObject(PartyObject, frozen=True, kw_only=True):
    """A tenant's billing profile, as of today. `versions`: what changed of the facts that tax follows from, from which
    day on, past and to come; none if nothing ever did."""

    object: Literal["buyer"] = "buyer"
    tenant_id: str
    seller: str
    purchase_order: str
    payment_days: int
    treatment: Treatment
    exemption: str
    detail: Detail
    versions: list[BuyerVersion]


_SELLER, _BUYER = msgspec.json.Decoder(SellerChange), msgspec.json.Decoder(BuyerChange)
_EXAMPLE: dict[str, Any] = {
    "name": "Example Ltd",
    "address": ["1 High Street"],
    "city": "Berlin",
    "country": "DE",
}


def party_routes(gateway: Gateway) -> list[HTTPRouteHandler]:
    """The routes, for one worker."""
    client_timeout = gateway.services.options.client_timeout
    parties = Parties(gateway.services.database)

    @get("/admin/v1/sellers", opt=demands("sellers.read") | describes(SellerList, query=page()))
    async def list_sellers(request: Request[Any, Any, Any]) -> Response[bytes]:
        """The legal entities that sell."""
        parameters = Parameters.of(request)
        limit, after = parameters.page_size(), parameters.text("after")
        parameters.reject_unknown()
        found = [each for each in await parties.dated_sellers() if after is None or each.party.id > after]
        listed = [_seller(seller) for seller in found[:limit]]
        return json_response(SellerList(data=listed, has_more=len(found) > limit))

    @get("/admin/v1/sellers/{seller:str}", opt=demands("sellers.read") | describes(SellerObject))
    async def retrieve_seller(request: Request[Any, Any, Any], seller: FromPath[str]) -> Response[bytes]:
        """One seller."""
        try:
            return json_response(_seller(await parties.dated_seller(seller)))
        except NoProfile as error:
            raise NotFound(f"There is no seller {seller[:80]!r}.") from error

    @patch(
        "/admin/v1/sellers/{seller:str}",
        opt=demands("sellers.write") | describes(SellerObject, body=SellerChange(**_EXAMPLE)),
    )
    async def change_seller(request: Request[Any, Any, Any], seller: FromPath[str]) -> Response[bytes]:
        """Make a seller, or change the fields that are given. Issued documents keep what they say."""
        body = await read_management_body(request, client_timeout, _SELLER)
        with refusals():
            valid_from = _valid_from(body)
            changed = await changed_seller(parties, seller, _fields(body), valid_from)
            if body.dry_run:
                return json_response(_seller(DatedParty(changed)))
            await parties.set_seller(changed, valid_from=valid_from, reason=body.reason)
            return json_response(_seller(await parties.dated_seller(seller)))

    @get("/admin/v1/tenants/{tenant:str}/buyer", opt=demands("parties.read") | describes(BuyerObject))
    async def retrieve_buyer(request: Request[Any, Any, Any], tenant: FromPath[str]) -> Response[bytes]:
        """The tenant's billing profile."""
        owner = await visible_tenant(gateway, request, tenant, "parties.read")
        try:
            return json_response(_buyer(tenant_public_id(owner.id), await parties.dated_buyer(owner.id)))
        except NoProfile as error:
            raise NotFound("The tenant has no billing profile yet.") from error

    @patch(
        "/admin/v1/tenants/{tenant:str}/buyer",
        opt=demands("parties.write")
        | describes(BuyerObject, body=BuyerChange(**_EXAMPLE), errors={"no_billing_profile": 409}),
    )
    async def change_buyer(request: Request[Any, Any, Any], tenant: FromPath[str]) -> Response[bytes]:
        """Make the tenant's billing profile, or change the fields that are given."""
        owner = await visible_tenant(gateway, request, tenant, "parties.write")
        body = await read_management_body(request, client_timeout, _BUYER)
        if not principal_of(request).may("parties.write"):
            for name in _PLATFORMS_FIELDS:
                if getattr(body, name) is not UNSET:
                    raise NotAllowed(f"$.{name}: the platform's finance sets this.", path=f"$.{name}")
        with refusals():
            valid_from = _valid_from(body)
            changed = await changed_buyer(parties, owner.id, _fields(body), valid_from)
            if body.dry_run:
                return json_response(_buyer(tenant_public_id(owner.id), DatedParty(changed)))
            await parties.set_buyer(owner.id, changed, valid_from=valid_from, reason=body.reason)
            return json_response(_buyer(tenant_public_id(owner.id), await parties.dated_buyer(owner.id)))

    return [list_sellers, retrieve_seller, change_seller, retrieve_buyer, change_buyer]


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


def _party(role: Role, party: Party) -> dict[str, Any]:
    names = ("name", "address", "postal_code", "city", "country", "vat_id", "email")
    return {name: getattr(party, name) for name in names} | {"warning": vat_warning(role, party)}


def _valid_from(body: PartyChange) -> date | None:
    """The day from which facts hold. Raises InvalidParty."""
    if body.valid_from is UNSET:
        return None
    try:
        return date.fromisoformat(body.valid_from)
    except ValueError:
        raise InvalidParty("valid_from", f"{body.valid_from[:40]!r} is not a day such as 2027-01-01") from None


def _seller(dated: DatedParty[Seller]) -> SellerObject:
    names = ("id", "registration", "payment", "currency", "series", "credit_series", "number_format")
    seller = dated.party
    return SellerObject(
        **_party("seller", seller),
        **{name: getattr(seller, name) for name in names},
        rates=_rates(seller),
        versions=[
            SellerVersion(valid_from=day or None, country=then.country, vat_id=then.vat_id, rates=_rates(then))
            for day, then in dated.versions()
        ],
    )


def _rates(seller: Seller) -> dict[str, str]:
    return {country: format_rate(rate) for country, rate in seller.rates.items()}


def _buyer(tenant: str, dated: DatedParty[Buyer]) -> BuyerObject:
    names = ("seller", "purchase_order", "payment_days", "treatment", "exemption", "detail")
    return BuyerObject(
        tenant_id=tenant,
        **_party("buyer", dated.party),
        **{name: getattr(dated.party, name) for name in names},
        versions=[
            BuyerVersion(valid_from=day or None, **{name: getattr(then, name) for name in BUYER_FACTS})
            for day, then in dated.versions()
        ],
    )
