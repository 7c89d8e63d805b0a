"""Passes on how long replicas had adapters ready, from their heartbeats to the database, for billing.

Every worker hears every replica, and passes on the same counts: they only grow, so that nothing is counted twice. What
was counted of adapters that were deleted meanwhile is let go of. What cannot be written yet is kept: a replica tells
the count of an hour that is over for a minute only.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import structlog

from file_store.adapter_residency import AdapterResidency, ResidencyCount
from file_store.adapters import AdapterStore
from gateway.fleet.replica_link import ReplicaLink
from protocol.adapters import project_of
from storage.database.database import DatabaseUnavailable

log = structlog.get_logger("gateway.adapter_residency")

EVERY_S = 10.0
"""Seconds between two reports: what a replica that dies has not reported is not billed."""
_MOST_REMEMBERED = 20_000
_SECOND = 1_000_000
_HOUR_MS = 3_600_000
_MOST_HOUR = 1 << 33
"""No hour begins later, in seconds since the Unix epoch."""


class ResidencyRecorder:
    """Reads the heartbeats of these replicas."""

    def __init__(self, links: Sequence[ReplicaLink], adapters: AdapterStore, residency: AdapterResidency) -> None:
        self._links = links
        self._adapters = adapters
        self._residency = residency
        self._passed_on: dict[tuple[str, int, int, str], int] = {}
        """The count of a replica, epoch, hour and adapter that was written last."""
        self._unwritten: dict[tuple[str, int, int, str], int] = {}
        """The counts that have grown since."""

    async def run(self) -> None:
        """Pass on what has grown, again and again."""
        while True:
            await asyncio.sleep(EVERY_S)
            try:
                await self.pass_on()
            except DatabaseUnavailable as error:
                log.warning("what adapters take up is passed on later", cause=str(error))
            except Exception:  # this must not end: nothing would be billed any more
                log.exception("what adapters take up cannot be written", dropped=len(self._unwritten))
                self._unwritten.clear()

    async def pass_on(self) -> None:
        """Write the counts that have grown. Raises DatabaseUnavailable."""
        for link in self._links:
            if link.hello is not None and link.beat is not None:
                for one in link.beat.adapters:
                    self._keep((link.replica, link.hello.epoch, one.hour, one.name), one.milliseconds)
        grown = dict(self._unwritten)
        owners = {name: key for *_, name in grown if (key := project_of(name)) is not None}
        known = await self._adapters.of_digests(set(owners.values()))
        await self._residency.report(
            [
                ResidencyCount(replica, epoch, hour * _SECOND, known[owners[name]], count)
                for (replica, epoch, hour, name), count in grown.items()
                if name in owners and owners[name] in known
            ]
        )
        if len(self._passed_on) > _MOST_REMEMBERED:
            self._passed_on.clear()  # then some are written again
        self._passed_on |= grown
        self._unwritten = {key: count for key, count in self._unwritten.items() if count > grown.get(key, 0)}

    def _keep(self, key: tuple[str, int, int, str], count: int) -> None:
        """Keep a count to be written, if it has grown."""
        replica, _, hour, name = key
        if count > _HOUR_MS or not 0 <= hour < _MOST_HOUR:
            log.error("a replica tells an impossible count", replica=replica, adapter=name, hour=hour, count=count)
            if not 0 <= hour < _MOST_HOUR:
                return
            count = _HOUR_MS
        if count <= self._passed_on.get(key, 0):
            return
        self._unwritten[key] = count
        if len(self._unwritten) > _MOST_REMEMBERED:
            lost = next(iter(self._unwritten))
            log.error("the database is away too long: a count of an adapter's hour is lost", lost=lost)
            del self._unwritten[lost]
