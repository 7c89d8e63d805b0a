"""Sends each `Done` when it is on the disk, and again until a gateway acknowledges it.

Again means: when its own gateway connects anew, and after a while to any other gateway, so that what was done is
billed.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Sequence

import msgspec
import structlog

from engine.server.gateway_link import GatewayLink
from engine.server.journal import Journal
from engine.server.journaled_delivery import DISK_FULL_PAUSE_S
from protocol.requests import Ack, Done

logger = structlog.get_logger("engine.server.done_outbox")

ORPHAN_TIMEOUT_S = 5.0
"""A `Done` without a gateway waits this long for the next one to connect, then goes to one that is connected."""


class DoneOutbox:
    """Every `Done` that is not acknowledged, by sequence number. `links` are the connected gateways."""

    def __init__(self, journal: Journal, links: Sequence[GatewayLink]) -> None:
        self._journal = journal
        self._links = links
        self._unacknowledged: dict[int, Done] = {done.sequence: done for done in journal.unacknowledged()}
        self._holders: dict[int, GatewayLink] = {}
        """sequence -> the link that it was sent on, or will be when it is on the disk."""
        self._orphaned_at: dict[int, float] = dict.fromkeys(self._unacknowledged, time.monotonic())
        self._pending: dict[int, Done] = {}
        """Those that are written and not on the disk yet."""
        self._sync_wanted = asyncio.Event()

    def __len__(self) -> int:
        return len(self._unacknowledged)

    @property
    def pending(self) -> bool:
        """Whether a `Done` is not on the disk yet."""
        return bool(self._pending)

    @property
    def awaited(self) -> bool:
        """Whether a gateway has yet to acknowledge a `Done` that was sent to it."""
        return bool(self._holders)

    def add(self, done: Done, holder: GatewayLink | None) -> None:
        """A request ended, and the journal has its record. It is sent to `holder`, its gateway, as soon as it is on
        the disk."""
        self._unacknowledged[done.sequence] = done
        if holder is not None:
            self._holders[done.sequence] = holder
        self._pending[done.sequence] = done
        self.sync_soon()

    def acknowledge(self, ack: Ack) -> None:
        """A gateway has made a `Done` durable."""
        done = self._unacknowledged.get(ack.sequence)
        if done is None or done.id != ack.id:
            return
        del self._unacknowledged[ack.sequence]
        self._holders.pop(ack.sequence, None)
        self._orphaned_at.pop(ack.sequence, None)
        self._journal.acknowledge(ack.sequence)

    def resend(self, id: str, attempt: int, link: GatewayLink) -> bool:
        """Send this gateway the `Done` of an attempt again (0: of all attempts), or as soon as it is on the disk.
        Returns False if none is known."""
        ended = [
            sequence
            for sequence, done in self._unacknowledged.items()
            if done.id == id and attempt in (0, done.attempt)
        ]
        for sequence in self._pending.keys() & set(ended):
            self._holders[sequence] = link
        self._replay(link, [sequence for sequence in ended if sequence not in self._pending])
        return bool(ended)

    # ------------------------------------------------------------ gateways come and go

    def gateway_connected(self, link: GatewayLink) -> None:
        """Send a new gateway each `Done` that no other gateway has; those that are not on the disk yet follow."""
        held = self._holders.keys() | self._pending.keys()
        self._replay(link, [sequence for sequence in self._unacknowledged if sequence not in held])

    def gateway_disconnected(self, link: GatewayLink) -> None:
        """Keep what this gateway has not acknowledged for another link."""
        for sequence, holder in list(self._holders.items()):
            if holder is link and sequence not in self._pending:
                self._orphan(sequence)

    def reassign_orphans(self) -> None:
        """Send what has waited long enough for its own gateway to the one that has been connected longest."""
        link = next((link for link in self._links if link.gateway), None)
        if link is None:
            return
        overdue = time.monotonic() - ORPHAN_TIMEOUT_S
        self._replay(link, [sequence for sequence, since in self._orphaned_at.items() if since < overdue])

    def _orphan(self, sequence: int) -> None:
        self._holders.pop(sequence, None)
        self._orphaned_at[sequence] = time.monotonic()

    def _replay(self, link: GatewayLink, sequences: Iterable[int]) -> None:
        replayed = []
        for sequence in sequences:
            self._holders[sequence] = link
            replayed.append(msgspec.structs.replace(self._unacknowledged[sequence], replayed=True))
            self._orphaned_at.pop(sequence, None)
        if replayed:
            link.send(replayed)

    # ------------------------------------------------------------ the disk

    def sync_soon(self) -> None:
        """Have the journal brought to the disk without delay."""
        self._sync_wanted.set()

    async def sync(self, on_failure: Callable[[OSError], None]) -> None:
        """Bring the journal to the disk when asked to, for all that has come meanwhile at once. Runs until cancelled,
        or until the disk fails: then it calls `on_failure`. It waits for a full disk."""
        while True:
            await self._sync_wanted.wait()
            self._sync_wanted.clear()
            ended = list(self._pending.values())
            try:
                await asyncio.get_running_loop().run_in_executor(None, self._journal.sync)
            except OSError as error:
                if self._journal.full:
                    await asyncio.sleep(DISK_FULL_PAUSE_S)
                    self.sync_soon()
                    continue
                logger.exception("the journal cannot be written")
                on_failure(error)
                return
            for done in ended:
                del self._pending[done.sequence]
                self._send(done)

    def _send(self, done: Done) -> None:
        if done.sequence not in self._unacknowledged:
            return
        holder = self._holders.get(done.sequence)
        if holder is not None and holder.open:
            holder.send([done])
            return
        self._orphan(done.sequence)
        # Its gateway may have connected again meanwhile.
        new_link = next((link for link in self._links if holder is not None and link.gateway == holder.gateway), None)
        if new_link is not None:
            self._replay(new_link, [done.sequence])
