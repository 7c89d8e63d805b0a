"""Prices: what each meter of a model costs, in versions that never change once made."""

from billing.prices.catalog import PriceCatalog
from billing.prices.errors import UnknownPriceVersion
from billing.prices.version import ALWAYS_PRICED, EVERY_LANE, LANES, PriceMissing, PriceVersion, Rows, everywhere

__all__ = [
    "ALWAYS_PRICED",
    "EVERY_LANE",
    "LANES",
    "PriceCatalog",
    "PriceMissing",
    "PriceVersion",
    "Rows",
    "UnknownPriceVersion",
    "everywhere",
]
