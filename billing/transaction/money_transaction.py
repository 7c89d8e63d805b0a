"""One transaction over money: the interface that both databases implement, and the order in which it locks.

On PostgreSQL its statements go to the driver, with arrays for rows; on SQLite through SQLAlchemy. What is decided
between them is decided once, by those who call this.
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
    """Some of the events are in the database already: this transaction must be rolled back."""


class Grant(msgspec.Struct, frozen=True):
    """Money put in: given if its kind is promo, else paid. With a model or a project, for that alone."""

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
    """A row of the outbox: a topic, and the payload as JSON."""

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
    """One transaction, in which everything changes together or not at all.

    All transactions take their locks in one order, so that no two wait for each other:

    1. lost attempts (`lock_attempts`)
    2. that billing periods stay open (`closed_periods`)
    3. usage events (`write_events`)
    4. holds that end or change (`holds`)
    5. hourly rollups (`roll_up`)
    6. hash chains (`chain`)
    7. balances (`lock`); with a tenant's balance, its grants and budgets are locked (`grants`, `budgets`, `save`)

    Rows of one kind are locked in the order of their keys. A balance is locked as late as possible, since everyone who
    reserves waits for it; what depends on it is computed in a later statement, which sees what the lock waited for. New
    holds are written after their balances are locked: nobody else can wait for a hold that is not there yet.
    """

    @property
    def holds(self) -> HoldStore:
        """The holds of this transaction."""

    @property
    def budgets(self) -> BudgetStore:
        """The budgets of this transaction."""

    async def now(self) -> int:
        """The database's clock."""

    async def lock_attempts(self) -> None:
        """Take the lock of those who settle what may have been recorded as a lost attempt too."""

    async def currencies(self, tenants: Collection[UUID]) -> dict[UUID, str]:
        """The currency of each tenant that has a balance. It never changes."""

    async def closed_periods(self, periods: Collection[str]) -> set[str]:
        """Those of these billing periods that are closed. None of the others closes before this transaction ends."""

    async def chain(self, batches: Sequence[ChainBatch]) -> None:
        """Continue the hash chains with new events, in the order of tenant and period."""

    async def existing_attempts(self, ids: Collection[UUID]) -> dict[UUID, int]:
        """The attempt of each of these events that exists."""

    async def units_left(self, tenant: UUID, event: UUID) -> dict[str, int]:
        """The sum of an event of this tenant and its adjustments, in units by meter."""

    async def write_events(self, rows: EventRows, meanwhile: Callable[[], Made]) -> Made:
        """Insert new events, and call `meanwhile` while the database is busy with them; return its result. Raises
        EventsAlreadyWritten if an event is not new."""

    async def roll_up(self, rolled: Sequence[RollupDelta]) -> None:
        """Add to the hourly rollups."""

    async def write_grant(self, grant: Grant) -> bool:
        """Insert a grant; False if it is there already."""

    async def lock(self, tenants: Collection[UUID]) -> dict[UUID, Balance]:
        """The balances of these tenants, locked until the end; a tenant without one is absent."""

    async def grants(self, tenants: Collection[UUID], *, spent: bool = False) -> list[OpenGrant]:
        """The grants of tenants whose balances are locked, in any order; those that are used up only if `spent`."""

    async def is_posted(self, transaction: UUID) -> bool:
        """Whether the ledger has this transaction. While its tenant's balance is locked, nobody else posts it."""

    async def save(
        self,
        balances: Sequence[Balance],
        transactions: Sequence[Transaction] = (),
        notices: Sequence[OutboxMessage] = (),
        grants: Sequence[OpenGrant] = (),
    ) -> None:
        """Write locked balances and grants, with the ledger's transactions and the notices of what changed them."""

    async def refuse(self, refusals: Sequence[RefusedSettlement]) -> None:
        """Keep records that cannot be settled. One that is kept already is skipped."""
