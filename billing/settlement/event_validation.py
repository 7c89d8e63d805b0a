"""Validating events before they are written: each cost is recomputed from the price version that the event names.

A batch is recomputed as one product of tokens and prices. An event with another cost, a meter without a price or a
product near 2⁶³ is recomputed alone by its price version, which raises what is wrong.
"""

from __future__ import annotations

from collections.abc import Mapping
from uuid import UUID

import numpy as np
from numpy.typing import NDArray

from billing.events.columns import EventColumns
from billing.events.partitions import are_ordered_by_time, is_ordered_by_time
from billing.prices import PriceMissing, PriceVersion
from billing.prices.formulas import SUM_OF_METERS
from billing.usage import DIMENSIONS, UsageEvent

_MOST = 2**63 - 1
_LANE = DIMENSIONS.index("lane")


def find_invalid_events(
    columns: EventColumns, versions: Mapping[int, PriceVersion], currencies: Mapping[UUID, str]
) -> dict[int, str]:
    """The places of the events that cannot be true, each with the cause. `versions` and `currencies` are those of the
    events that exist."""
    if not columns.events:
        return {}
    valid = (
        are_ordered_by_time(columns.ids)
        & _same_currency(columns, versions, currencies)
        & _recomputed(columns, versions)
    )
    causes = {place: _cause(columns.events[place], versions, currencies) for place in np.flatnonzero(~valid).tolist()}
    return {place: cause for place, cause in causes.items() if cause is not None}


def _same_currency(
    columns: EventColumns, versions: Mapping[int, PriceVersion], currencies: Mapping[UUID, str]
) -> NDArray[np.bool_]:
    """Whether each event's price is in the currency that its tenant has."""
    codes = {currency: code for code, currency in enumerate(dict.fromkeys(currencies.values()))}
    has = {tenant.int: codes[currency] for tenant, currency in currencies.items()}
    priced, version = np.unique(columns.numbers["price_version"], return_inverse=True)
    wanted = [codes.get(versions[id].currency, -1) if id in versions else -1 for id in priced.tolist()]
    owned = np.array([has.get(owner[0], -2) for owner in columns.owners], np.int64)
    same: NDArray[np.bool_] = np.array(wanted, np.int64)[version] == owned[columns.owner]
    return same


def _recomputed(columns: EventColumns, versions: Mapping[int, PriceVersion]) -> NDArray[np.bool_]:
    """Whether each event has the tier and the cost that recomputation gives; False if not decided here."""
    numbers, meters = columns.numbers, columns.meters
    pairs, pair = np.unique(numbers["price_version"] * len(columns.kinds) + columns.kind, return_inverse=True)
    tiers: list[tuple[int, Mapping[str, int]]] = []
    bounds: list[list[int]] = []
    first: list[int] = []
    for number in pairs.tolist():
        version = versions.get(number // len(columns.kinds))
        of_lane = (
            version.tiers(columns.kinds[number % len(columns.kinds)][_LANE])[::-1]
            if version and version.formula == SUM_OF_METERS
            else []
        )
        first.append(len(tiers))
        tiers += of_lane or [(_MOST, {})]
        bounds.append([context_from for context_from, _ in of_lane[1:]])
    longest = max(map(len, bounds))
    higher = np.array([lower + [_MOST] * (longest - len(lower)) for lower in bounds], np.int64)
    tokens = np.stack([numbers[meter] for meter in meters], axis=1)
    if int(np.abs(tokens).max()) * max(sum(prices.values()) for _, prices in tiers) > _MOST:
        return np.zeros(len(columns), np.bool_)
    prompt = tokens.sum(axis=1) - numbers["output"]
    tier = np.array(first, np.int64)[pair] + (prompt[:, None] >= higher[pair]).sum(axis=1)
    context_from = np.array([context_from for context_from, _ in tiers], np.int64)[tier]
    price = np.array([[prices.get(meter, 0) for meter in meters] for _, prices in tiers], np.int64)[tier]
    unpriced = np.array([[meter not in prices for meter in meters] for _, prices in tiers], np.bool_)[tier]
    valid: NDArray[np.bool_] = (
        (context_from == numbers["context_from"])
        & (context_from <= prompt)
        & ((tokens * price).sum(axis=1) == numbers["cost_pico"])
        & ~(unpriced & (tokens != 0)).any(axis=1)
    )
    return valid


def _cause(event: UsageEvent, versions: Mapping[int, PriceVersion], currencies: Mapping[UUID, str]) -> str | None:
    """Why an event cannot be true; None if it can."""
    version, currency = versions.get(event.price_version), currencies.get(event.tenant_id)
    if version is None:
        return f"price version {event.price_version} does not exist"
    if currency is None:
        return "the tenant has no balance"
    if currency != version.currency:
        return f"the price is in {version.currency}, the balance in {currency}"
    return _wrong_cost(event, version)


def _wrong_cost(event: UsageEvent, version: PriceVersion) -> str | None:
    if not is_ordered_by_time(event.id):
        return "its id is not a UUIDv7 of our time"
    try:
        tier, cost = version.rate(event.usage, event.lane)
    except PriceMissing as error:
        return str(error)
    if cost == event.cost_pico and tier == event.context_from:
        return None
    recorded = f"the cost is {event.cost_pico} in the context tier from {event.context_from}"
    return f"{recorded}, and recomputes to {cost} from {tier}"
