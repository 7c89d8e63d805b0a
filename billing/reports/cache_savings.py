"""What each cache class cost and saved, exactly, at the prices at which it was billed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from billing.prices import PriceCatalog, PriceMissing
from billing.reports.usage_series import GroupKey, SeriesGroup, Sums
from billing.usage import AUTOMATIC, LEASE_CLASSES

PRICED_BY: tuple[SeriesGroup, ...] = ("model", "lane", "context_from", "price_version")
"""How usage is grouped, so that each group has one price of a meter."""
CLASSES = (AUTOMATIC, *LEASE_CLASSES)


class ClassSavings(msgspec.Struct, kw_only=True):
    """Tokens of one class. In pico-units by currency: `premium`, what writing cost beyond the uncached price, and
    `saved`, what reading cost less than it."""

    read: int = 0
    written: int = 0
    premium_pico: dict[str, int] = {}
    saved_pico: dict[str, int] = {}

    def net_pico(self) -> dict[str, int]:
        """What was saved less the premium; less than zero where writing cost more than reading saved."""
        names = {*self.premium_pico, *self.saved_pico}
        return {name: self.saved_pico.get(name, 0) - self.premium_pico.get(name, 0) for name in sorted(names)}


async def savings_by_class(prices: PriceCatalog, sums: Mapping[GroupKey, Sums]) -> dict[str, ClassSavings]:
    """The savings of usage that is grouped by PRICED_BY, by class; those that nobody used are left out. All of them
    together are what the prompts would have cost uncached, less what they cost. Raises DatabaseUnavailable."""
    found: dict[str, ClassSavings] = {}
    for (_, lane, context_from, number), used in sums.items():
        version = await prices.version(number)
        for name in CLASSES:
            read, written = used.tokens.get(f"read_{name}", 0), used.tokens.get(f"write_{name}", 0)
            if not (read or written):
                continue
            class_sums = found.setdefault(name, ClassSavings())
            class_sums.read += read
            class_sums.written += written
            whole = version.price("uncached", lane, context_from)
            saved = read * (whole - version.price(f"read_{name}", lane, context_from)) if read else 0
            premium = written * (version.price(f"write_{name}", lane, context_from) - whole) if written else 0
            for sums_of, pico in ((class_sums.saved_pico, saved), (class_sums.premium_pico, premium)):
                if pico:
                    sums_of[version.currency] = sums_of.get(version.currency, 0) + pico
    return {name: found[name] for name in CLASSES if name in found}


def total_saved(classes: Iterable[ClassSavings]) -> dict[str, int]:
    """What caching saved in all, in pico-units by currency."""
    total: dict[str, int] = {}
    for one in classes:
        for currency, pico in one.net_pico().items():
            total[currency] = total.get(currency, 0) + pico
    return total


class LeaseWorth(msgspec.Struct, frozen=True):
    """An estimate, at the prices of new requests in the standard lane: in pico-units, what reading a token under a
    class saves, and what writing it costs beyond computing it."""

    currency: str
    saved_pico: int
    premium_pico: int


async def lease_worth(
    prices: PriceCatalog, model: str, lease_class: str, tokens: int, **whose: Any
) -> LeaseWorth | None:
    """What a token of a prompt of so many is worth under a class now; None where that has no price. `whose`: the
    arguments of `PriceCatalog.current`. Raises DatabaseUnavailable."""
    try:
        version = await prices.current(model, **whose)
        tier = version.context_from(tokens, "standard")
        whole, read = (
            version.price("uncached", "standard", tier),
            version.price(f"read_{lease_class}", "standard", tier),
        )
        write = version.price(f"write_{lease_class}", "standard", tier)
    except PriceMissing:
        return None
    return LeaseWorth(version.currency, whole - read, write - whole)
