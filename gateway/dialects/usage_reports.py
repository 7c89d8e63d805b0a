"""What the usage and cost reports of all vendors share: the queries that they are parsed into, and exact costs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal
from uuid import UUID

from msgspec import Struct

from billing.money import format_pico
from billing.reports.cost_report import LIMITS, CostGroup, LineItem
from billing.reports.usage_report import Group
from storage.database.base import from_instant

Width = Literal["1m", "1h", "1d"]


class UsageQuery(Struct, frozen=True, kw_only=True):
    """The arguments of `usage_buckets`, under their names there. Instants are in microseconds since the Unix epoch."""

    start_at: int
    end_at: int | None
    width: Width
    project_ids: list[UUID] | None
    key_ids: list[UUID] | None
    models: list[str] | None
    lanes: list[str] | None = None
    group_by: list[Group]
    batch: bool | None = None
    limit: int | None
    page: str | None


class CostQuery(Struct, frozen=True, kw_only=True):
    """The arguments of `cost_buckets`, likewise."""

    start_at: int
    end_at: int | None
    project_ids: list[UUID] | None = None
    key_ids: list[UUID] | None = None
    line_items: set[LineItem] | None = None
    group_by: list[CostGroup]
    limit: int | None
    limits: tuple[int, int] = LIMITS
    page: str | None


class Cost(Struct, frozen=True):
    """What a request or a group of requests cost, exactly. No vendor has it.

    `amount` is a decimal string in units of `currency` (ISO 4217).
    """

    currency: str
    amount: str


def expiry_text(instant: int) -> str:
    """An instant, in microseconds since the Unix epoch, in whole seconds of RFC 3339."""
    return from_instant(instant).strftime("%Y-%m-%dT%H:%M:%SZ")


def costs_by_currency(costs_pico: Mapping[str, int]) -> list[Cost]:
    """A `Cost` for each currency, ordered by currency. `costs_pico`: currency -> pico-units."""
    return [Cost(currency, format_pico(pico)) for currency, pico in sorted(costs_pico.items())]


def id_text(value: Any) -> str | None:
    """An id as text; None for a group that has none."""
    return None if value is None else str(value)
