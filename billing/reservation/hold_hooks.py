"""Holds with a companion: who else decides about a request in the transaction that takes its hold.

A companion's decision may depend on what others did before it, and change what the hold says, so that both hold
together or not at all. Billing does not know what it is about. Such a request always gets a hold of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeVar

from sqlalchemy.ext.asyncio import AsyncSession

from billing.holds.records import Hold, HoldRequest

Wish = TypeVar("Wish")
Wish_contra = TypeVar("Wish_contra", contravariant=True)


class CompanionDecisions(Protocol[Wish_contra]):
    """What a companion decides in one transaction."""

    def decide(self, request: HoldRequest, wish: Wish_contra) -> HoldRequest | Exception:
        """The request to take a hold for, with other terms or another amount; or the error that says why there is to be
        none. Nothing changes until it is taken."""

    def decide_again(self, hold: Hold, wish: Wish_contra) -> Hold | Exception:
        """The hold with other terms, of the same amount, since what was decided with it does not stand; or the error
        that says why there are none. Nothing changes until it is taken."""

    def took(self, wish: Wish_contra) -> None:
        """The hold of the request that was decided last is taken: those decided after it see what was decided."""

    async def save(self) -> None:
        """Write what was decided for the requests whose holds are taken."""


class HoldCompanion(Protocol[Wish_contra]):
    """Decides more about requests, in the transaction that takes their holds."""

    async def begin(
        self, session: AsyncSession, now: int, wishes: Sequence[Wish_contra]
    ) -> CompanionDecisions[Wish_contra]:
        """Read what the decisions depend on. The balances of all requests' tenants are locked, and `now` is their
        time."""
