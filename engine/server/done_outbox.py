"""How requests ended, from the journal to a gateway's acknowledgement.

A `Done` is told when it is on the disk, and not before. Until it is acknowledged it is told again: to its gateway when
that is back, and after a while to any gateway, so that what was done is billed whoever is left.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Sequence

import msgspec
import structlog

from engine.server.engine_loop import DISK_FULL_PAUSE_S
from engine.server.gateway_link import GatewayLink
from engine.server.journal import Journal
from protocol.requests import Ack, Done

logger = structlog.get_logger("engine.server.done_outbox")

ORPHAN_PATIENCE_S = 5.0
"""A `Done` whose gateway is gone waits this long for the next one to connect, then goes to any that is connected."""


class DoneOutbox:
    """Those that are not acknowledged, by sequence number. `links` are the gateways that are connected."""

    def __init__(self, journal: Journal, links: Sequence[GatewayLink]) -> None:
        self._journal = journal
        self._links = links
        self._unacknowledged: dict[int, Done] = {done.sequence: done for done in journal.unacknowledged()}
        self._holders: dict[int, GatewayLink] = {}
        """Who was told, or will be when it is on the disk."""
        self._orphaned_at: dict[int, float] = dict.fromkeys(self._unacknowledged, time.monotonic())
        self._pending: dict[int, Done] = {}
        """Written, but not yet on the disk."""
        self._sync_wanted = asyncio.Event()

    def __len__(self) -> int:
        return len(self._unacknowledged)

    @property
    def pending(self) -> bool:
        """Whether some are not yet on the disk."""
        return bool(self._pending)

    @property
    def awaited(self) -> bool:
        """Whether a gateway that was told of some has yet to acknowledge them."""
        return bool(self._holders)

    def add(self, done: Done, holder: GatewayLink | None) -> None:
        """A request ended, which is written: its gateway is told as soon as it is on the disk."""
        self._unacknowledged[done.sequence] = done
        if holder is not None:
            self._holders[done.sequence] = holder
        self._pending[done.sequence] = done
        self.sync_soon()

    def acknowledge(self, ack: Ack) -> None:
        """A gateway has made this one durable."""
        done = self._unacknowledged.get(ack.sequence)
        if done is None or done.id != ack.id:
            return
        del self._unacknowledged[ack.sequence]
        self._holders.pop(ack.sequence, None)
        self._orphaned_at.pop(ack.sequence, None)
        self._journal.acknowledge(ack.sequence)

    def tell(self, id: str, attempt: int, link: GatewayLink) -> bool:
        """Tell this gateway how an attempt of a request ended (0: how all did), which was told before or will be; False
        if that is not known here."""
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

    def welcome(self, link: GatewayLink) -> None:
        """Tell a gateway that has come of all that nobody else was told; what is not yet on the disk follows then."""
        taken = self._holders.keys() | self._pending.keys()
        self._replay(link, [sequence for sequence in self._unacknowledged if sequence not in taken])

    def part(self, link: GatewayLink) -> None:
        """A gateway is gone: what it has not acknowledged waits for the next one."""
        for sequence, holder in list(self._holders.items()):
            if holder is link and sequence not in self._pending:
                self._orphan(sequence)

    def reassign_orphans(self) -> None:
        """What has waited long enough for its own gateway goes to the one that is connected longest."""
        heir = next((link for link in self._links if link.gateway), None)
        if heir is None:
            return
        overdue = time.monotonic() - ORPHAN_PATIENCE_S
        self._replay(heir, [sequence for sequence, since in self._orphaned_at.items() if since < overdue])

    def _orphan(self, sequence: int) -> None:
        self._holders.pop(sequence, None)
        self._orphaned_at[sequence] = time.monotonic()

    def _replay(self, link: GatewayLink, sequences: Iterable[int]) -> None:
        told = []
        for sequence in sequences:
            self._holders[sequence] = link
            told.append(msgspec.structs.replace(self._unacknowledged[sequence], replayed=True))
            self._orphaned_at.pop(sequence, None)
        if told:
            link.send(told)

    # ------------------------------------------------------------ the disk

    def sync_soon(self) -> None:
        """Bring the journal to the disk without delay."""
        self._sync_wanted.set()

    async def sync(self, failed: Callable[[OSError], None]) -> None:
        """Bring the journal to the disk whenever that is wanted, everything that has come together at once; for ever,
        or until the disk fails. A full disk is waited for."""
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
                failed(error)
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
        # Its gateway may have come back meanwhile.
        back = next((link for link in self._links if holder is not None and link.gateway == holder.gateway), None)
        if back is not None:
            self._replay(back, [done.sequence])
