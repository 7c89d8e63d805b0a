"""Changes of sellers and billing profiles by their fields: what is not given stays as it was."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date
from typing import Any
from uuid import UUID

import msgspec

from billing.invoices.errors import NoProfile
from billing.invoices.parties.dated import AnyParty
from billing.invoices.parties.parties import Buyer, InvalidParty, Seller, check_countries, check_vat_id
from billing.invoices.parties.store import Parties
from billing.invoices.parties.vat_ids import compact

NEEDED = ("name", "address", "city", "country")
"""The fields without which there is no party."""


async def changed_seller(
    parties: Parties, seller_id: str, fields: Mapping[str, Any], valid_from: date | None = None
) -> Seller:
    """The seller of this id with these fields changed from a day on (None: today), or a new one, whose VAT on
    credit is due in advance; nothing is written. Raises InvalidParty, DatabaseUnavailable."""
    before = await seller_before(parties, seller_id, valid_from)
    default = {"prepayment": "advance"} if before is None else {}
    return _changed(Seller, before, {**default, **fields, "id": seller_id})


async def seller_before(parties: Parties, seller_id: str, valid_from: date | None = None) -> Seller | None:
    """The seller as of a day (None: today); None if there is none of this id. Raises DatabaseUnavailable."""
    try:
        dated = await parties.dated_seller(seller_id)
    except NoProfile:
        return None
    return dated.party if valid_from is None else dated.on(valid_from.isoformat())


async def changed_buyer(
    parties: Parties, tenant_id: UUID, fields: Mapping[str, Any], valid_from: date | None = None
) -> Buyer:
    """The tenant's billing profile with these fields changed from a day on (None: today), or a new one; nothing is
    written. A new one is sold to by the only seller, where there is one. Raises InvalidParty, DatabaseUnavailable."""
    before = None
    try:
        dated = await parties.dated_buyer(tenant_id)
        before = dated.party if valid_from is None else dated.on(valid_from.isoformat())
    except NoProfile:
        pass
    if before is None and "seller" not in fields:
        sellers = await parties.sellers()
        if len(sellers) != 1:
            none, many = "there is no seller yet: an operator makes one first", "say which of the sellers it is"
            raise InvalidParty("seller", many if sellers else none)
        fields = {**fields, "seller": sellers[0].id}
    return _changed(Buyer, before, fields)


def _changed(kind: type[AnyParty], before: AnyParty | None, fields: Mapping[str, Any]) -> AnyParty:
    if "vat_id" in fields:
        fields = {**fields, "vat_id": compact(fields["vat_id"])}
    if "iban" in fields:
        fields = {**fields, "iban": compact(fields["iban"])}
    for name in NEEDED:
        if before is None and name not in fields:
            raise InvalidParty(name, "it is missing")
    after = kind(**fields) if before is None else msgspec.structs.replace(before, **fields)
    check_countries(after)
    check_vat_id(after, before)
    return after
