"""Prices: price books, price sheets and their approval, and price versions, which never change once made."""

from billing.prices.catalog import PriceCatalog
from billing.prices.errors import UnknownPriceVersion
from billing.prices.version import ALWAYS_PRICED, EVERY_LANE, LANES, PriceMissing, PriceVersion, Rows, in_every_lane

__all__ = [
    "ALWAYS_PRICED",
    "EVERY_LANE",
    "LANES",
    "PriceCatalog",
    "PriceMissing",
    "PriceVersion",
    "Rows",
    "UnknownPriceVersion",
    "in_every_lane",
]
