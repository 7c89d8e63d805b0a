"""What of the books is about holds: taking them, finding them, ending them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Protocol
from uuid import UUID

import msgspec

from billing.holds.records import Hold, HoldRequest, grants_in


class Ended(msgspec.Struct, frozen=True):
    """Holds of one tenant that ended now and were reserved from the same (`billing.holds.records.join`): how many, and
    of what amount together. Which those were is said where that is more than the balance."""

    tenant_id: UUID
    requests: int
    amount_pico: int
    budgets: str = ""
    ids: Collection[UUID] = ()

    @property
    def of_balance(self) -> int:
        """What they held together of the balance."""
        return self.amount_pico - self.requests * sum(self.grants.values())

    @property
    def counts_on_grants(self) -> bool:
        """Whether each was reserved from grants for one model or project too."""
        return "=" in self.budgets

    @property
    def grants(self) -> dict[UUID, int]:
        """How much each counted on of which grants."""
        return grants_in(self.budgets)


class HoldBooks(Protocol):
    """Holds in the transaction of the books that they belong to (`billing.books`, where the order of locks stands)."""

    async def open_now(self, requests: Collection[UUID]) -> list[Hold]:
        """Those of the requests' holds that are open."""

    async def locked(self, requests: Collection[UUID]) -> list[Hold]:
        """Like `open_now`, and locked until the end: before their balances, as whoever ends them does."""

    async def ended(self, requests: Collection[UUID]) -> set[UUID]:
        """Those of the requests that had a hold which ended, whatever became of it."""

    async def take(self, made: Sequence[tuple[HoldRequest, Hold]], held: Mapping[UUID, int]) -> None:
        """Insert new holds, and add to what is held of locked balances. The database refuses what is not covered."""

    async def amend(self, changed: Collection[Hold]) -> None:
        """Let locked holds be of these amounts, from these sources; balances and grants are saved apart."""

    async def budgets_of_ended(self, requests: Collection[UUID]) -> dict[UUID, str]:
        """The budgets of those of the requests that were released or expired and had any."""

    async def end(self, requests: Collection[UUID], state: str) -> list[Ended]:
        """Close those of the requests' holds that are open, as `settled`, `released` or `expired`: each ends once."""

    async def overdue(self, now: int, most: int) -> list[UUID]:
        """At most so many open holds whose time had passed at `now`; not those that someone else is ending."""
