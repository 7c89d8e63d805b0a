"""Prices: what each meter of a model costs, in versions that never change once made."""

from billing.prices.book import PriceBook
from billing.prices.errors import UnknownPriceVersion
from billing.prices.version import ALWAYS_PRICED, EVERY_LANE, LANES, PriceMissing, PriceVersion, Rows, everywhere

__all__ = [
    "ALWAYS_PRICED",
    "EVERY_LANE",
    "LANES",
    "PriceBook",
    "PriceMissing",
    "PriceVersion",
    "Rows",
    "UnknownPriceVersion",
    "everywhere",
]
