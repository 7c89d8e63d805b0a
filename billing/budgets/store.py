"""Budgets in a money transaction. The caller has locked the balances of the tenants concerned, which locks their
budgets too."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Protocol
from uuid import UUID

import msgspec

from billing.budgets.windows import BudgetLimit, BudgetWindow
from storage.database.base import new_id

WINDOW = BudgetWindow.__struct_fields__
TERMS = BudgetLimit.__struct_fields__


class BudgetStore(Protocol):
    """The budgets of a money transaction."""

    async def in_force(self, tenants: Collection[UUID]) -> list[BudgetLimit]:
        """The tenants' budgets."""

    async def opened(self, wanted: Sequence[tuple[BudgetLimit, int]]) -> list[BudgetWindow]:
        """The windows of these budgets that begin at these instants; created if they do not exist."""

    async def windows(self, ids: Collection[UUID]) -> list[BudgetWindow]:
        """Windows by their ids."""

    async def save(self, windows: Sequence[BudgetWindow]) -> None:
        """Write windows as they are now. The database refuses what is not covered."""

    async def charged(self, request: UUID) -> tuple[UUID, ...]:
        """The windows in which a settled request was counted."""

    async def record_charges(self, charges: Mapping[UUID, tuple[UUID, tuple[UUID, ...]]]) -> None:
        """Record settled requests' tenants, and the windows in which each was counted."""


def fresh(wanted: Sequence[tuple[BudgetLimit, int]]) -> list[BudgetWindow]:
    """New windows."""
    return [
        BudgetWindow(id=new_id(), starts_at=starts_at, **msgspec.structs.asdict(limit)) for limit, starts_at in wanted
    ]
