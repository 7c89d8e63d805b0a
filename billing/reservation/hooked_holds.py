"""Taking holds with a hook (`billing.reservation.hold_hooks`): one transaction for all queued requests."""

from __future__ import annotations

from typing import Generic

from billing.holds.records import Hold, HoldRequest
from billing.reservation.hold_hooks import HoldHook, HookInput
from billing.reservation.hold_service import HoldService
from storage.database.batcher import MicroBatcher

_MAX_BATCH = 128


class HookedHolds(Generic[HookInput]):
    """Takes holds with this hook: one transaction for all queued requests."""

    def __init__(self, holds: HoldService, hook: HoldHook[HookInput]) -> None:
        self._holds = holds
        self._hook = hook
        self._batcher: MicroBatcher[tuple[HoldRequest, HookInput], Hold] = MicroBatcher(self._take, _MAX_BATCH)
        self._again: MicroBatcher[tuple[Hold, HookInput], Hold] = MicroBatcher(self._take_again, _MAX_BATCH)

    async def reserve(self, request: HoldRequest, hook_input: HookInput) -> Hold:
        """As `HoldService.reserve`, but the hook may change the amount and the terms. Raises the hook's errors, too."""
        return await self._batcher.submit((request, hook_input))

    async def decide_again(self, hold: Hold, hook_input: HookInput) -> Hold:
        """Let the hook decide the terms of an open hold anew, and store them in it. Raises HoldEnded,
        DatabaseUnavailable and the hook's errors."""
        return await self._again.submit((hold, hook_input))

    async def close(self) -> None:
        """Finish what is being reserved; take no more requests."""
        await self._batcher.close()
        await self._again.close()

    async def _take(self, asked: list[tuple[HoldRequest, HookInput]]) -> list[Hold | Exception]:
        return await self._holds.take_with(asked, self._hook)

    async def _take_again(self, asked: list[tuple[Hold, HookInput]]) -> list[Hold | Exception]:
        return await self._holds.decide_again(asked, self._hook)
