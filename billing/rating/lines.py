"""Rated lines, which invoices, statements and exports share: units at a price, exact and not rounded."""

from __future__ import annotations

from typing import Literal
from uuid import UUID

import msgspec

from billing.money import MICRO, format_amount
from storage.free_text import counted

LineKind = Literal[
    "usage", "storage", "residency", "discount", "minimum", "commitment", "credit", "adjustment", "carry", "advance"
]
"""In the order of documents."""


class InvalidLine(ValueError):
    """A line whose amount is not its units × its price."""


class RatedLine(msgspec.Struct, frozen=True, kw_only=True):
    """One line of what a tenant owes for a period, in pico-units, exactly. Raises InvalidLine.

    A line with a price (micro-units per 1,000,000 units) has `units × price_micro = exact_pico`; other lines have 0
    units. `service_start` (included) and `service_end` (excluded) are microseconds since the Unix epoch.
    `corrects_period` is the closed period that late or corrected usage belongs to; None for the line's own period.
    """

    kind: LineKind
    description: str
    project_id: UUID | None = None
    model: str | None = None
    meter: str | None = None
    lane: str | None = None
    context_from: int = 0
    price_version: int | None = None
    price_micro: int | None = None
    units: int = 0
    exact_pico: int
    service_start: int
    service_end: int
    corrects_period: str | None = None

    def __post_init__(self) -> None:
        if self.price_micro is None:
            if self.units:
                raise InvalidLine(f"{self.description}: {counted(self.units, 'unit')} without a price")
        elif self.units * self.price_micro != self.exact_pico:
            raise InvalidLine(f"{self.description}: {self.units} × {self.price_micro} is not {self.exact_pico}")


def money_text(pico: int) -> str:
    """An amount as texts of lines have it, to the micro-unit."""
    return f"{'-' if pico < 0 else ''}{format_amount(abs(pico) // MICRO * MICRO)}"
