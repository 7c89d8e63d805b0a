"""What caching saved: prompts at the uncached price, less what they cost."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from billing.prices import PriceCatalog
from billing.reports.usage_report import Result


class CacheSummary(msgspec.Struct, frozen=True):
    """Tokens of prompts, those of them that were read from the cache, and what caching saved in pico-units by currency.
    Less than zero: writing cost more than reading saved."""

    prompt: int
    read: int
    saved_pico: dict[str, int]

    @property
    def hit_rate(self) -> float | None:
        """The part of the prompts' tokens that was read; None without any."""
        return self.read / self.prompt if self.prompt else None


SAVED_BY = ("model", "lane", "context_from", "price_version")
"""How results are grouped for `cache_summary`, or finer."""


async def cache_summary(prices: PriceCatalog, results: Iterable[Result]) -> CacheSummary:
    """The summary of results that are grouped by `SAVED_BY`. Raises PriceMissing, DatabaseUnavailable."""
    prompt = read = 0
    saved: dict[str, int] = {}
    for result in results:
        usage, group = result.usage, result.group
        tokens = usage.prompt
        prompt += tokens
        read += sum(usage.read.values())
        version = await prices.version(group["price_version"])
        lane, tier = group["lane"], group["context_from"]
        whole = tokens * version.price("uncached", lane, tier) if tokens else 0
        if usage.output:
            whole += usage.output * version.price("output", lane, tier)
        (currency,) = result.costs_pico
        saved[currency] = saved.get(currency, 0) + whole - result.costs_pico[currency]
    return CacheSummary(prompt, read, saved)
