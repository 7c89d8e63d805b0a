"""What the records of the replica's journal add up to: running requests, ended ones, fenced gateway epochs, totals."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import msgspec

from engine.server.journal_records import Acked, AnyRecord, Begun, Delivered, Ended, Fenced, Opened, Progress, Totals
from protocol.requests import Counts, Done

_MAX_FENCED = 4096
"""So many gateway epochs are refused: those that were fenced last."""


@dataclass
class JournaledRequest:
    """A request that has begun and not ended. `gateway_epoch` is that which sent it."""

    id: str
    attempt: int
    counts: Counts
    delivered: int = 0
    claim: bytes = b""
    gateway_epoch: str = ""

    def crashed(self) -> Done:
        """Its end, if its replica died: the counts as last journaled."""
        return Done(self.id, self.attempt, "crash", self.counts, 0, self.delivered, replayed=True, claim=self.claim)


class JournalState:
    """Follows the records one by one. Not thread-safe."""

    def __init__(self) -> None:
        self.running: dict[int, JournaledRequest] = {}
        """handle -> request."""
        self.handles: dict[tuple[str, int], int] = {}
        """(id, attempt) -> handle, of the running requests."""
        self.unacknowledged: dict[int, Done] = {}
        """sequence -> `Done`."""
        self.gateway_epochs: dict[int, str] = {}
        """sequence -> gateway epoch, of the unacknowledged."""
        self.fenced: dict[str, None] = {}
        self.totals = Totals(0, Counts())

    def apply(self, record: AnyRecord) -> bool:
        """Follow a record; False if it is about something that is not known, so that a record before it was lost."""
        match record:
            case Begun(handle, id, attempt, claim, epoch):
                self.running[handle] = JournaledRequest(id, attempt, Counts(), claim=claim, gateway_epoch=epoch)
                self.handles[id, attempt] = handle
            case Progress():
                known = [(handle, counts) for handle, counts in record.counts if handle in self.running]
                for handle, counts in known:
                    self.running[handle].counts = counts
                return len(known) == len(record.counts)
            case Delivered():
                if record.handle not in self.running:
                    return False
                self.running[record.handle].delivered = record.delivered
            case Ended():
                self._end(record)
            case Totals():
                self.totals = record
            case Acked():
                self.unacknowledged.pop(record.sequence, None)
                self.gateway_epochs.pop(record.sequence, None)
            case Fenced():
                self.fenced |= dict.fromkeys(record.epochs)
                while len(self.fenced) > _MAX_FENCED:
                    del self.fenced[next(iter(self.fenced))]
        return True

    def _end(self, record: Ended) -> None:
        done = record.done
        if self.running.pop(record.handle, None) is not None:
            self.handles.pop((done.id, done.attempt), None)
        self.unacknowledged[done.sequence] = done
        self.gateway_epochs[done.sequence] = record.gateway_epoch
        sums = map(
            sum, zip(msgspec.structs.astuple(self.totals.counts), msgspec.structs.astuple(done.counts), strict=True)
        )
        self.totals = Totals(self.totals.requests + 1, Counts(*sums))

    def requests_of(self, gateway_epoch: str) -> list[tuple[str, int]]:
        """(id, attempt) of the requests of a gateway epoch that run, or ended and are not acknowledged.

        Among them are those of which an older version of the journal did not note the gateway epoch.
        """
        epochs = (gateway_epoch, "")
        running = [
            (request.id, request.attempt) for request in self.running.values() if request.gateway_epoch in epochs
        ]
        ended = [self.unacknowledged[sequence] for sequence, epoch in self.gateway_epochs.items() if epoch in epochs]
        return running + [(done.id, done.attempt) for done in ended]

    def records(self, opened: Opened) -> Iterator[AnyRecord]:
        """The records of a new file, which add up to this state; `opened` comes first."""
        yield opened
        if self.fenced:
            yield Fenced(list(self.fenced))
        for sequence in sorted(self.unacknowledged):
            yield Ended(0, self.unacknowledged[sequence], self.gateway_epochs[sequence])
        yield self.totals  # after the unacknowledged, which it includes
        for handle, request in self.running.items():
            yield Begun(handle, request.id, request.attempt, request.claim, request.gateway_epoch)
            yield Progress([(handle, request.counts)])
            yield Delivered(handle, request.delivered)
