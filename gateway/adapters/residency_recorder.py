"""Passes on how long replicas had adapters ready, from their heartbeats to the database, for billing.

Every worker hears every replica, and passes on the same counts: they only grow, so that nothing is counted twice. What
was counted of adapters that were deleted meanwhile is let go of.
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


class ResidencyRecorder:
    """Reads the heartbeats of these replicas."""

    def __init__(self, links: Sequence[ReplicaLink], adapters: AdapterStore, residency: AdapterResidency) -> None:
        self._links = links
        self._adapters = adapters
        self._residency = residency
        self._passed_on: dict[tuple[str, int, int, str], int] = {}
        """The count of a replica, epoch, hour and adapter that was written last."""

    async def run(self) -> None:
        """Pass on what has grown, again and again."""
        while True:
            await asyncio.sleep(EVERY_S)
            try:
                await self.pass_on()
            except DatabaseUnavailable as error:
                log.warning("what adapters take up is passed on later", cause=str(error))

    async def pass_on(self) -> None:
        """Write the counts that have grown. Raises DatabaseUnavailable."""
        grown = {
            (link.replica, link.hello.epoch, one.hour, one.name): one.milliseconds
            for link in self._links
            if link.hello is not None and link.beat is not None
            for one in link.beat.adapters
        }
        grown = {key: count for key, count in grown.items() if count > self._passed_on.get(key, 0)}
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
