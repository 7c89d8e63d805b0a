"""A hold in slices: the money of a long answer is reserved piece by piece while it is written.

The replica is only credited what is held, and waits there: so nothing is written, delivered or journaled that is not
paid for, however late the money comes. The next slice is asked for when half of the last one is left, so that it
seldom waits.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import structlog

from billing.holds.records import Hold
from billing.money import InvalidMoney
from billing.reservation.decisions import HoldEnded, InsufficientFunds
from gateway.admission.admission import Admission, PreparedRequest
from storage.database.database import DatabaseUnavailable

log = structlog.get_logger("gateway.generation.hold_slices")

_PAUSE_S = 0.5
_PATIENCE_S = 10.0
"""How long a database that is away is asked again, before the answer ends where its money does."""


class HoldSlices:
    """What of one request is paid for: `paid` output tokens of each choice. `changed` is called when that has grown, or
    when it is `final`."""

    def __init__(
        self, admission: Admission, prepared: PreparedRequest, hold: Hold, changed: Callable[[], None]
    ) -> None:
        self.paid = prepared.held_output
        self.final = False
        """No more is to be had, although the answer might be longer."""
        self._whole = prepared.sampling.max_tokens
        self._admission = admission
        self._prepared = prepared
        self._hold = hold
        self._changed = changed
        self._longest = 0
        self._task: asyncio.Task[None] | None = None

    def reached(self, tokens: int) -> None:
        """The longest choice may be so long by now."""
        self._longest = max(self._longest, tokens)
        if self._wanting and self._task is None:
            self._task = asyncio.create_task(self._top_up())

    async def stop(self) -> None:
        """Ask for nothing more."""
        self.final = True
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    @property
    def _wanting(self) -> bool:
        half = self._admission.slice_tokens // 2
        return not self.final and self.paid < self._whole and self._longest >= self.paid - half

    async def _top_up(self) -> None:
        try:
            while self._wanting:
                more = min(self._whole, self.paid + self._admission.slice_tokens)
                if await self._covered(more):
                    self.paid = more
                else:
                    self.final = True
                self._changed()
        finally:
            self._task = None

    async def _covered(self, output: int) -> bool:
        end = time.monotonic() + _PATIENCE_S
        while True:
            try:
                self._hold = await self._admission.top_up(self._prepared, self._hold, output)
            except DatabaseUnavailable:
                if time.monotonic() >= end:
                    return False
                await asyncio.sleep(_PAUSE_S)
            except (InsufficientFunds, HoldEnded, InvalidMoney) as error:
                log.info("no further slice", request_id=str(self._prepared.request_id), cause=str(error))
                return False
            except Exception:
                log.exception("a hold could not be topped up", request_id=str(self._prepared.request_id))
                return False
            else:
                return True
