"""Hooks in the transaction that takes holds: other rooms decide there too, for instance leases.

A hook may change the hold's terms and amount, or refuse it. What it writes is committed with the hold, or not at all.
Billing does not know what a hook decides. A request with a hook always gets a hold of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeVar

from sqlalchemy.ext.asyncio import AsyncSession

from billing.holds.records import Hold, HoldRequest

HookInput = TypeVar("HookInput")
HookInput_contra = TypeVar("HookInput_contra", contravariant=True)


class HookDecisions(Protocol[HookInput_contra]):
    """What a hook decides in one transaction."""

    def decide(self, request: HoldRequest, hook_input: HookInput_contra) -> HoldRequest | Exception:
        """The request, perhaps with other terms or another amount; or the error that refuses it. Changes nothing:
        `took` does."""

    def decide_again(self, hold: Hold, hook_input: HookInput_contra) -> Hold | Exception:
        """An open hold with new terms and the same amount, or the error that refuses it. Called when the first
        decision does not stand. Changes nothing: `took` does."""

    def took(self, hook_input: HookInput_contra) -> None:
        """The hold that was decided last is taken. Later decisions of the transaction depend on it."""

    async def save(self) -> None:
        """Write the decisions whose holds are taken."""


class HoldHook(Protocol[HookInput_contra]):
    """Takes part in each transaction that takes holds."""

    async def begin(
        self, session: AsyncSession, now: int, hook_inputs: Sequence[HookInput_contra]
    ) -> HookDecisions[HookInput_contra]:
        """Read what the decisions depend on. The balances of all requests' tenants are locked; `now` is the time of the
        transaction."""
