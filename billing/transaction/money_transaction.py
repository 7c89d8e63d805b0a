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

from billing.budgets.store import BudgetStore
from billing.events.rollups import RollupDelta
from billing.events.rows import EventRows
from billing.holds.store import HoldStore
from billing.integrity.hash_chain import ChainBatch
from billing.ledger.entries import Balance, Transaction
from billing.ledger.wallet import OpenGrant

Made = TypeVar("Made")


class EventsAlreadyWritten(Exception):
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


class OutboxMessage(msgspec.Struct, frozen=True):
    """What goes to the outbox: a topic, and the payload as JSON."""

    id: UUID
    tenant_id: UUID
    topic: str
    payload: str


class RefusedSettlement(msgspec.Struct, frozen=True):
    """A record that cannot be settled, whole, with the cause."""

    id: UUID
    request_id: UUID
    cause: str
    body: bytes


class MoneyTransaction(Protocol):
    """One transaction. The methods are in the order in which they may be called."""

    @property
    def holds(self) -> HoldStore:
        """What is about holds."""

    @property
    def budgets(self) -> BudgetStore:
        """What is about budgets."""

    async def now(self) -> int:
        """The database's clock."""

    async def lock_attempts(self) -> None:
        """Be the only one, until the end, who settles what may have been recorded as a lost attempt too."""

    async def currencies(self, tenants: Collection[UUID]) -> dict[UUID, str]:
        """The currencies of the balances there are; neither ever changes."""

    async def closed_periods(self, periods: Collection[str]) -> set[str]:
        """Which of these billing periods are closed. None of the others closes before this transaction ends."""

    async def chain(self, batches: Sequence[ChainBatch]) -> None:
        """Continue the hash chains with new events, in the order of tenant and period."""

    async def existing_attempts(self, ids: Collection[UUID]) -> dict[UUID, int]:
        """Which of these events are there, and of which attempt each is."""

    async def units_left(self, event: UUID) -> dict[str, int]:
        """What an event and its adjustments come to, in units by meter."""

    async def write_events(self, rows: EventRows, meanwhile: Callable[[], Made]) -> Made:
        """Insert new events; return what `meanwhile` returns, which is called while the database is busy with them.
        Raises EventsAlreadyWritten if one is not new."""

    async def roll_up(self, rolled: Sequence[RollupDelta]) -> None:
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
        notices: Sequence[OutboxMessage] = (),
        grants: Sequence[OpenGrant] = (),
    ) -> None:
        """Write locked balances and grants as they are now, with the entries and notices of what made them so."""

    async def refuse(self, refusals: Sequence[RefusedSettlement]) -> None:
        """Keep records that cannot be settled; one that is kept already is passed over."""
