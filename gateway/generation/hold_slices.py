"""Tops up the hold of a long answer slice by slice while the answer is generated.

The replica gets credit only for what is held, and waits there: nothing is generated, delivered or journaled that is not
paid for, however late the money comes. The next slice is asked for when half of the last one is left, so that the
replica seldom waits.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import structlog

from billing.holds.records import Hold
from billing.money import InvalidMoney
from billing.reservation.decisions import HoldEnded, InsufficientFunds
from gateway.admission.admission import Admission
from gateway.admission.prepared_request import PreparedRequest
from storage.database.database import DatabaseUnavailable

log = structlog.get_logger("gateway.generation.hold_slices")

_PAUSE_S = 0.5
_TIMEOUT_S = 10.0
"""How long an unavailable database is asked again. Then the answer ends where the held money ends."""


class HoldSlices:
    """The paid part of one request: `paid` output tokens of each choice. `changed` is called when `paid` has grown or
    is `final`."""

    def __init__(
        self, admission: Admission, prepared: PreparedRequest, hold: Hold, changed: Callable[[], None]
    ) -> None:
        self.paid = prepared.held_output
        self.final = False
        """Whether no more slices follow."""
        self.waited_us = 0
        """How long the slices so far were waited for."""
        self._max_tokens = prepared.sampling.max_tokens
        self._admission = admission
        self._prepared = prepared
        self._hold = hold
        self._changed = changed
        self._longest = 0
        self._task: asyncio.Task[None] | None = None

    def reached(self, tokens: int) -> None:
        """Note that a choice has so many tokens; ask for the next slice if it is time to."""
        self._longest = max(self._longest, tokens)
        if self._needs_more and self._task is None:
            self._task = asyncio.create_task(self._top_up())

    async def stop(self) -> None:
        """Ask for no more slices."""
        self.final = True
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    @property
    def _needs_more(self) -> bool:
        half = self._admission.slice_tokens // 2
        return not self.final and self.paid < self._max_tokens and self._longest >= self.paid - half

    async def _top_up(self) -> None:
        try:
            while self._needs_more:
                more = min(self._max_tokens, self.paid + self._admission.slice_tokens)
                begun = time.monotonic_ns()
                paid = await self._pay_for(more)
                self.waited_us += (time.monotonic_ns() - begun) // 1000
                if paid:
                    self.paid = more
                else:
                    self.final = True
                self._changed()
        finally:
            self._task = None

    async def _pay_for(self, output: int) -> bool:
        end = time.monotonic() + _TIMEOUT_S
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
