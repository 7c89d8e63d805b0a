"""What a miss cost: the difference between what its tokens were billed as and what reading them would have cost."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from msgspec import Struct

from billing.prices import PriceMissing, PriceVersion
from billing.usage import AUTOMATIC
from prompt_cache.history.diagnosis import Diagnosis, Miss
from prompt_cache.history.records import RequestRecord
from prompt_cache.promise.lease_decisions import LIFE_S
from prompt_cache.promise.rule_sets import leases_of

_SECOND = 1_000_000


class LongerLease(Struct, frozen=True):
    """The shortest class of the dialect that would still have been alive. Writing under it would have cost
    `premium_pico` more, and reading would have saved `saved_pico`."""

    lease: str
    premium_pico: int
    saved_pico: int


class MissPrice(Struct, frozen=True):
    """What a miss cost beyond reading, in pico-units; and the class that would have hit, where its lease had ended."""

    cost_pico: int
    longer: LongerLease | None = None


def price_misses(record: RequestRecord, diagnosis: Diagnosis, price: PriceVersion) -> list[MissPrice]:
    """The price of each miss, in order. Their sum is what the prompt would have cost less, had all of them been reads.

    A miss whose tokens nothing could have read costs nothing more. Raises PriceMissing.
    """
    rates = _rates(record, price)
    return [
        MissPrice(_cost(record, miss, rates, miss.lease), _longer(record, miss, rates)) for miss in diagnosis.misses
    ]


def _rates(record: RequestRecord, price: PriceVersion) -> Mapping[str, int]:
    """The price of each meter in micro-units per million, which is pico-units per token."""
    for context_from, prices in price.tiers(record.lane):
        if context_from <= record.tokens:
            return prices
    raise PriceMissing(record.model)


def billed_as(record: RequestRecord) -> Iterator[tuple[int, str]]:
    """The parts of the prompt by the meter that they were billed as, each with the token at which it ends."""
    start = read = 0
    for part in record.parts:
        until = min(part.until, record.tokens)
        if until > start:
            yield until, f"{part.kind}_{part.lease}"
            read += until - start if part.kind == "read" else 0
            start = until
    automatic = min(record.tokens, start + max(0, record.billed_read - read))
    if automatic > start:
        yield automatic, f"read_{AUTOMATIC}"
    if record.tokens > automatic:
        yield record.tokens, "uncached"


def _cost(record: RequestRecord, miss: Miss, rates: Mapping[str, int], lease: str) -> int:
    if not lease:
        return 0
    read = _read_rate(rates, lease)
    cost = start = 0
    for until, meter in billed_as(record):
        tokens = min(until, miss.end) - max(start, miss.start)
        if tokens > 0:
            if meter not in rates:
                raise PriceMissing(record.model, meter)
            cost += tokens * (rates[meter] - read)
        start = until
    return cost


def _read_rate(rates: Mapping[str, int], lease: str) -> int:
    return rates.get(f"read_{lease}", rates[f"read_{AUTOMATIC}"])


def _longer(record: RequestRecord, miss: Miss, rates: Mapping[str, int]) -> LongerLease | None:
    if miss.cause != "lease_expired" or miss.at is None or miss.lease not in LIFE_S:
        return None
    began = miss.at - LIFE_S[miss.lease] * _SECOND
    for lease in sorted(leases_of(record.surface), key=lambda name: LIFE_S[name]):
        priced = f"read_{lease}" in rates and f"write_{lease}" in rates
        if priced and began + LIFE_S[lease] * _SECOND > record.at:
            written = rates.get(f"write_{miss.lease}", rates[f"write_{lease}"])
            premium = miss.tokens * (rates[f"write_{lease}"] - written)
            return LongerLease(lease, premium, _cost(record, miss, rates, lease))
    return None
