"""What the events alone say of the replicas' journals: each request that ended has the next number of its epoch.

A replica's sequence numbers are (epoch << 32) + count. So a number that no event has is a request that was lost, or is
not settled yet, and one that two events have is a request that was counted twice.
"""

from __future__ import annotations

import msgspec
from sqlalchemy import func, literal_column, select
from sqlalchemy.ext.asyncio import AsyncSession

from billing.tables.money import usage_event

_EPOCH = 1 << 32


class Sequences(msgspec.Struct, frozen=True):
    """The journal numbers of one epoch of a replica that have events in one period.

    `first` and `last`: the least and the greatest. `events`: how many events have a number. `missing`: numbers without
    an event, as ranges [from, to]; numbers below `first` too, if the epoch began in this period.
    """

    replica: str
    epoch: int
    first: int
    last: int
    events: int
    repeated: int
    missing: list[tuple[int, int]]

    @property
    def lost(self) -> int:
        """How many numbers have no event."""
        return sum(last - first + 1 for first, last in self.missing)


async def sequences_of(session: AsyncSession, period: str) -> list[Sequences]:
    """The journals' numbers of a period, over all tenants: by replica and epoch."""
    of = usage_event.c
    # as text: a parameter would come twice, and be two expressions to group by
    epoch = of.sequence.op("/")(literal_column(str(_EPOCH)))
    ends = func.min(of.sequence), func.max(of.sequence), func.count(), func.count(of.sequence.distinct())
    numbered = select(of.replica, epoch, *ends).where(of.sequence > 0)
    query = numbered.where(of.period == period).group_by(of.replica, epoch).order_by(of.replica, epoch)
    found = []
    for replica, number, first, last, events, distinct in (await session.execute(query)).all():
        here = (of.replica == replica, of.sequence >= number * _EPOCH, of.sequence < (number + 1) * _EPOCH)
        began = (await session.execute(select(func.min(of.period)).where(*here))).scalar_one() == period
        low = number * _EPOCH + 1 if began else first
        inside = (*here, of.sequence >= low, of.sequence <= last)
        there = (await session.execute(select(func.count(of.sequence.distinct())).where(*inside))).scalar_one()
        gaps = await _gaps(session, inside, low) if there < last - low + 1 else []
        found.append(Sequences(replica, number, first, last, events, events - distinct, gaps))
    return found


async def missing_between(session: AsyncSession, replica: str, since: int, until: int) -> int:
    """How many numbers no event has, in all epochs of a replica from `since` on and before `until`, up to the greatest
    number that an event has."""
    of = usage_event.c  # all tenants: a journal is everybody's
    epoch = of.sequence.op("/")(literal_column(str(_EPOCH)))
    numbered = select(epoch, func.max(of.sequence), func.count(of.sequence.distinct())).where(of.replica == replica)
    query = numbered.where(of.sequence > since * _EPOCH, of.sequence < until * _EPOCH).group_by(epoch)
    return sum(last - number * _EPOCH - events for number, last, events in await session.execute(query))


async def _gaps(session: AsyncSession, inside: tuple[object, ...], low: int) -> list[tuple[int, int]]:
    """The numbers from `low` on that no event has: [from, to] each."""
    of = usage_event.c  # all tenants: a journal is everybody's
    before = func.lag(of.sequence, 1, low - 1).over(order_by=of.sequence)
    steps = select(of.sequence, before.label("before")).where(*inside).subquery()  # type: ignore[arg-type]
    query = select(steps.c.before + 1, steps.c.sequence - 1).where(steps.c.sequence > steps.c.before + 1)
    return [(first, last) for first, last in (await session.execute(query.order_by(steps.c.sequence))).all()]
