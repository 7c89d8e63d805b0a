"""Holds of this gateway's earlier start that nothing was done for: no spool and no journal knows them.

A gateway that dies between the hold and `Generate` leaves a hold that only its expiry would end, a day later. After a
start, once each replica has been there and has had its time to repeat what it kept for us, what is still open from
before is given back. Should a journal know better all the same, later, recovery bills it: only a settled hold is final.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from uuid import UUID

import structlog

from billing.holds.reserving import Holds
from billing.spool import Spool
from gateway.fleet.fleet import Fleet
from gateway.recording import Recorder
from storage.database import DatabaseUnavailable

log = structlog.get_logger("gateway.leftovers")

_PAUSE_S = 1.0


class Leftovers:
    """`recovering`: whether recovery is at work. `patience`: seconds that a replica has to repeat what it kept."""

    def __init__(
        self,
        gateway: str,
        *,
        holds: Holds,
        recorder: Recorder,
        fleet: Fleet,
        spool: Spool,
        recovering: Callable[[], bool],
        patience: float,
    ) -> None:
        self._gateway = gateway
        self._holds = holds
        self._recorder = recorder
        self._fleet = fleet
        self._spool = spool
        self._recovering = recovering
        self._patience = patience
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin, before any request of this start is admitted."""
        self._task = asyncio.create_task(self._run())

    async def stop(self) -> None:
        """Leave the rest to the next start."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        open_before = await self._open()
        if not open_before:
            return
        # All are asked for by name: what this start admits is never among them.
        await self._until(lambda: all(link.hello for link in self._fleet.links))
        await asyncio.sleep(self._patience)
        await self._until(lambda: self._spool.drained and not self._recovering())
        left = {request: batch for request, batch in (await self._open()).items() if request in open_before}
        for request, batch in left.items():
            await self._recorder.release_open(request, "the gateway died before anything was done", batch)
        if left:
            log.warning("gave back the holds of requests that an earlier start never sent", holds=len(left))

    @staticmethod
    async def _until(condition: Callable[[], bool]) -> None:
        while not condition():  # noqa: ASYNC110  # the state of many things, seldom waited for
            await asyncio.sleep(_PAUSE_S)

    async def _open(self) -> dict[UUID, UUID]:
        while True:
            try:
                return await self._holds.open_of(self._gateway)
            except DatabaseUnavailable:
                await asyncio.sleep(_PAUSE_S)
