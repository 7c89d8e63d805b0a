"""What replicas' journals say against the events: requests that wait, that are lost, and journals that are.

A journal's numbers are those of its replica's epochs since it began, up to where the next journal of that replica
began. What no event has is not lost while the journal has it and no gateway has acknowledged it, nor while the journal
does not answer. A journal in whose place another one answers is gone, until it is back or a person declares it lost.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal

import msgspec
from sqlalchemy import func, select
from sqlalchemy.ext.asyncio import AsyncSession

from billing.replica_journals.sequences import Sequences
from billing.tables.books import journal_loss, replica_journal
from billing.tables.money import usage_event

_BITS = 32
_FOR_EVER = (1 << 31) - 1
JournalState = Literal["answers", "away", "gone", "lost"]


class JournalReport(msgspec.Struct, frozen=True):
    """What a replica says of its journal: how many requests ended since it began in epoch `since`, and how many of them
    no gateway has acknowledged. `journal` is its identity."""

    replica: str
    requests: int
    unacknowledged: int = 0
    journal: str = ""
    since: int = 0


class JournalComparison(msgspec.Struct, frozen=True):
    """A replica's journal against the events, of all periods: requests that ended, as far as it says so, and that have
    an event. `away`: it does not answer; `gone`: another one answers in its place; `lost`: a person declared it so."""

    replica: str
    requests: int | None
    events: int
    unacknowledged: int = 0
    journal: str = ""
    since: int = 0
    state: JournalState = "answers"

    @property
    def lost(self) -> int:
        """Requests that ended there, have no event, and are not waiting either."""
        return 0 if self.requests is None else max(0, self.requests - self.unacknowledged - self.events)

    @property
    def doubled(self) -> int:
        """Events beyond the requests that ended there."""
        return 0 if self.requests is None else max(0, self.events - self.requests)

    @property
    def waiting(self) -> int:
        """Requests that wait there for a gateway and have no event."""
        return 0 if self.requests is None else min(self.unacknowledged, max(0, self.requests - self.events))


class Missing(msgspec.Struct):
    """How many journal numbers of a period have no event, by why.

    `unacknowledged`: the request waits in a journal, or may wait in one that does not answer. `declared_lost`: its
    journal was declared lost. `lost`: it is in no journal.
    """

    lost: int = 0
    unacknowledged: int = 0
    declared_lost: int = 0


async def compare(session: AsyncSession, told: Iterable[JournalReport]) -> list[JournalComparison]:
    """The journals that answer, and those that gateways have met, against the events."""
    answers = list(told)
    ours, losses = replica_journal.c, set(await session.scalars(select(journal_loss.c.journal)))
    rows = (await session.execute(select(ours.journal, ours.replica, ours.since))).all()
    answering = {one.journal for one in answers if one.journal}
    replicas = {one.replica: one.since for one in answers}
    found = [
        JournalComparison(one.replica, one.requests, 0, one.unacknowledged, one.journal, one.since) for one in answers
    ]
    for row in rows:
        if row.journal not in answering and _is_named(row.journal, row.replica):
            state: JournalState = "away"
            if row.journal in losses:
                state = "lost"
            elif replicas.get(row.replica, 0) > row.since:
                state = "gone"
            found.append(JournalComparison(row.replica, None, 0, 0, row.journal, row.since, state))
    found.sort(key=lambda one: (one.replica, one.since))
    counted = []
    for one in found:
        after = [other.since for other in found if other.replica == one.replica and other.since > one.since]
        events = await events_between(session, one.replica, one.since, min(after, default=_FOR_EVER))
        counted.append(msgspec.structs.replace(one, events=events))
    return counted


def sort_out(sequences: Sequence[Sequences], journals: Sequence[JournalComparison]) -> Missing:
    """What became of the numbers that no event has."""
    missing = Missing()
    waiting = {one.journal: one.unacknowledged for one in journals}
    for each in sequences:
        of = [one for one in journals if one.replica == each.replica and one.since <= each.epoch]
        journal = max(of, key=lambda one: one.since, default=None)
        if journal is not None and journal.state == "lost":
            missing.declared_lost += each.lost
        elif journal is not None and journal.state == "away":
            missing.unacknowledged += each.lost
        else:
            waits = min(each.lost, waiting[journal.journal]) if journal is not None else 0
            if journal is not None:
                waiting[journal.journal] -= waits
            missing.unacknowledged += waits
            missing.lost += each.lost - waits
    return missing


def _is_named(journal: str, replica: str) -> bool:
    """Whether it is a journal's identity, and not what one is called that is too old to have one."""
    return journal != f"replica {replica}"


async def events_between(session: AsyncSession, replica: str, since: int, until: int) -> int:
    """How many events are of a replica's epochs from `since` on and before `until`."""
    of = usage_event.c  # all tenants: a journal is everybody's
    mine = (of.replica == replica, of.sequence > since << _BITS, of.sequence < until << _BITS)
    return int((await session.execute(select(func.count()).where(*mine))).scalar_one())
