"""The statements that move money, in each database's fastest way: one transaction in which everything changes together.

On PostgreSQL they go to the driver, with arrays for rows; on SQLite through SQLAlchemy. What is decided between them is
decided once, by those who call this.

So that no two transactions wait for each other, all lock in one order: lost attempts, that periods stay open, then
usage events, holds that end, rollups, chains, balances; each by its key. Who locked a tenant's balance has locked its
budgets. A balance is locked as late as possible, since everyone who reserves waits for it; what depends on it is
computed in a later statement, which sees what the lock waited for. New holds that are asked about one by one come after
their balances: nobody else can wait for a hold that is not there yet.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Protocol, TypeVar
from uuid import UUID

import msgspec

from billing.budgets.books import BudgetBooks
from billing.chain import Batch
from billing.event_rows import EventRows
from billing.holds.books import HoldBooks
from billing.ledger import Balance, Transaction
from billing.rollups import Rolled
from billing.wallet import OpenGrant

Made = TypeVar("Made")


class EventsThere(Exception):
    """Some of the events are in the database already, maybe since a moment ago: nothing of this transaction counts."""


class Grant(msgspec.Struct, frozen=True):
    """Money put in: given if its kind is promo, else paid; for one model or project only where one is named."""

    id: UUID
    tenant_id: UUID
    amount_pico: int
    currency: str
    kind: str
    reason: str
    priority: int = 100
    expires_at: int | None = None
    model: str | None = None
    project_id: UUID | None = None


class Notice(msgspec.Struct, frozen=True):
    """What goes to the outbox: a topic, and the payload as JSON."""

    id: UUID
    tenant_id: UUID
    topic: str
    payload: str


class Refusal(msgspec.Struct, frozen=True):
    """A record that cannot be settled, whole, with the cause."""

    id: UUID
    request_id: UUID
    cause: str
    body: bytes


class Books(Protocol):
    """One transaction. The methods are in the order in which they may be called."""

    @property
    def holds(self) -> HoldBooks:
        """What is about holds."""

    @property
    def budgets(self) -> BudgetBooks:
        """What is about budgets."""

    async def now(self) -> int:
        """The database's clock."""

    async def lock_attempts(self) -> None:
        """Be the only one, until the end, who settles what may have been recorded as a lost attempt too."""

    async def currencies(self, tenants: Collection[UUID]) -> dict[UUID, str]:
        """The currencies of the balances there are; neither ever changes."""

    async def closed_periods(self, periods: Collection[str]) -> set[str]:
        """Which of these billing periods are closed. None of the others closes before this transaction ends."""

    async def chain(self, batches: Sequence[Batch]) -> None:
        """Continue the hash chains with new events, in the order of tenant and period."""

    async def events_there(self, ids: Collection[UUID]) -> dict[UUID, int]:
        """Which of these events are there, and of which attempt each is."""

    async def units_left(self, event: UUID) -> dict[str, int]:
        """What an event and its adjustments come to, in units by meter."""

    async def write_events(self, rows: EventRows, meanwhile: Callable[[], Made]) -> Made:
        """Insert new events; return what `meanwhile` returns, which is called while the database is busy with them.
        Raises EventsThere if one is not new."""

    async def roll_up(self, rolled: Sequence[Rolled]) -> None:
        """Add to the hourly rollups."""

    async def write_grant(self, grant: Grant) -> bool:
        """Insert a grant; False if it is there already."""

    async def lock(self, tenants: Collection[UUID]) -> dict[UUID, Balance]:
        """The balances, locked until the end; those without one are absent."""

    async def grants(self, tenants: Collection[UUID], *, spent: bool = False) -> list[OpenGrant]:
        """What is left of the grants of locked balances, in any order; with those that are used up if `spent`."""

    async def posted(self, transaction: UUID) -> bool:
        """Whether the ledger has this transaction: under the locked balance, nobody else is posting it."""

    async def save(
        self,
        balances: Sequence[Balance],
        transactions: Sequence[Transaction] = (),
        notices: Sequence[Notice] = (),
        grants: Sequence[OpenGrant] = (),
    ) -> None:
        """Write locked balances and grants as they are now, with the entries and notices of what made them so."""

    async def refuse(self, refusals: Sequence[Refusal]) -> None:
        """Keep records that cannot be settled; one that is kept already is passed over."""
