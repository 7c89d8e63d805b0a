"""Taking holds with a companion (`billing.reservation.companions`), all queued requests in one transaction."""

from __future__ import annotations

from typing import Generic

from billing.holds.records import Hold, HoldRequest
from billing.reservation.companions import HoldCompanion, Wish
from billing.reservation.hold_service import HoldService
from storage.database.batcher import MicroBatcher

_MAX_BATCH = 128


class AccompaniedHolds(Generic[Wish]):
    """Takes holds with this companion, all queued requests in one transaction."""

    def __init__(self, holds: HoldService, companion: HoldCompanion[Wish]) -> None:
        self._holds = holds
        self._companion = companion
        self._batcher: MicroBatcher[tuple[HoldRequest, Wish], Hold] = MicroBatcher(self._take, _MAX_BATCH)
        self._again: MicroBatcher[tuple[Hold, Wish], Hold] = MicroBatcher(self._take_again, _MAX_BATCH)

    async def reserve(self, request: HoldRequest, wish: Wish) -> Hold:
        """As `HoldService.reserve`; the hold may be of another amount and have other terms. Raises what the companion
        decides, too."""
        return await self._batcher.submit((request, wish))

    async def decide_again(self, hold: Hold, wish: Wish) -> Hold:
        """The open hold with the terms that the companion decides now, which are frozen in it. Raises HoldEnded,
        DatabaseUnavailable, and what the companion decides."""
        return await self._again.submit((hold, wish))

    async def close(self) -> None:
        """Finish what is being reserved; take no more requests."""
        await self._batcher.close()
        await self._again.close()

    async def _take(self, asked: list[tuple[HoldRequest, Wish]]) -> list[Hold | Exception]:
        return await self._holds.take_with(asked, self._companion)

    async def _take_again(self, asked: list[tuple[Hold, Wish]]) -> list[Hold | Exception]:
        return await self._holds.decide_again(asked, self._companion)
