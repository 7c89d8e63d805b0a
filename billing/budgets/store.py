"""What of the books is about budgets. Whoever calls this has locked the balances of the tenants concerned, which locks
their budgets too."""

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
    """Budgets in the transaction of the books that they belong to."""

    async def in_force(self, tenants: Collection[UUID]) -> list[BudgetLimit]:
        """The tenants' budgets."""

    async def opened(self, wanted: Sequence[tuple[BudgetLimit, int]]) -> list[BudgetWindow]:
        """The windows of these budgets that begin at these instants; made if they are not there yet."""

    async def windows(self, ids: Collection[UUID]) -> list[BudgetWindow]:
        """Windows by their ids."""

    async def save(self, windows: Sequence[BudgetWindow]) -> None:
        """Write windows as they are now. The database refuses what is not covered."""

    async def charged(self, request: UUID) -> str:
        """In which windows (`billing.holds.records.join`) a settled request was counted."""

    async def charge(self, tenants: Mapping[UUID, tuple[UUID, str]]) -> None:
        """Record in which windows (`billing.holds.records.join`) settled requests were counted, and whose they are."""


def fresh(wanted: Sequence[tuple[BudgetLimit, int]]) -> list[BudgetWindow]:
    """Windows in which nothing was used yet."""
    return [
        BudgetWindow(id=new_id(), starts_at=starts_at, **msgspec.structs.asdict(terms)) for terms, starts_at in wanted
    ]
