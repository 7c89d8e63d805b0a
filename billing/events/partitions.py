"""Usage events by month on PostgreSQL: a partition holds the ids of one month, and is made before its first event.

A UUIDv7 begins with its milliseconds since the Unix epoch, so that the ids of a month are a range. There is no default
partition: an event that has nowhere to go makes its month first.
"""

from __future__ import annotations

from collections.abc import Iterable
from uuid import UUID
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from billing.calendar import following_period, period_bounds, period_of
from storage.database.base import least_id
from storage.database.database import Database

_FIRST_PERIOD, _END_PERIOD = "2020-01", "2199-01"
_MILLISECONDS = 80
_LOCK = 7_233_104_872
"""PostgreSQL's advisory lock: two processes that need the same month make it one after the other."""


def is_ordered_by_time(identity: UUID) -> bool:
    """Whether this is a UUIDv7 of our time: any other has no month."""
    return identity.int >> 76 & 15 == 7 and _FIRST <= identity.int < _LAST


def are_ordered_by_time(ids: NDArray[np.uint8]) -> NDArray[np.bool_]:
    """Whether each of these ids (n × 16 bytes) is a UUIDv7 of our time."""
    milliseconds = _milliseconds(ids)
    first, last = (number >> _MILLISECONDS for number in (_FIRST, _LAST))
    true: NDArray[np.bool_] = (ids[:, 6] >> 4 == 7) & (milliseconds >= first) & (milliseconds < last)
    return true


def _milliseconds(ids: NDArray[np.uint8]) -> NDArray[np.int64]:
    """The first 48 bits of each id."""
    first = np.zeros((len(ids), 8), np.uint8)
    first[:, 2:] = ids[:, :6]
    return first.view(">i8")[:, 0].astype(np.int64)


def period_of_id(identity: UUID) -> str:
    """The period in which a UUIDv7 was made."""
    return period_of(made_at(identity))


def made_at(identity: UUID) -> int:
    """When a UUIDv7 was made, in microseconds since the Unix epoch."""
    return (identity.int >> _MILLISECONDS) * 1000


def _first_id(period: str) -> UUID:
    """The least id of a period."""
    return least_id(period_bounds(period)[0])


_FIRST, _LAST = _first_id(_FIRST_PERIOD).int, _first_id(_END_PERIOD).int

_known: WeakKeyDictionary[Database, set[str]] = WeakKeyDictionary()
"""The periods that have a partition in each database, as far as this process knows."""


async def ensure(database: Database, periods: Iterable[str]) -> None:
    """Make the partitions of these periods that are missing, each in a transaction. SQLite has none to make.

    Raises DatabaseUnavailable.
    """
    if database.dialect != "postgresql":
        return
    known = _known.setdefault(database, set())
    for period in sorted(set(periods) - known):
        await _make(database, period)
        known.add(period)


async def ensure_partitions(database: Database, ids: NDArray[np.uint8]) -> None:
    """Make the partitions that these ids (n × 16 bytes) need, but for those that have no month.

    Raises DatabaseUnavailable.
    """
    milliseconds = _milliseconds(ids[are_ordered_by_time(ids)])
    if len(milliseconds):
        periods = {period_of(int(instant) * 1000) for instant in (milliseconds.min(), milliseconds.max())}
        if len(periods) > 1:
            periods |= {period_of(instant * 1000) for instant in np.unique(milliseconds).tolist()}
        await ensure(database, periods)


async def prepare(database: Database, ahead: int = 2) -> None:
    """Make this month's partition and those of the next: the worker's job. Raises DatabaseUnavailable."""
    period = period_of(await database.now())
    await ensure(database, [period] + [period := following_period(period) for _ in range(ahead)])


# Asked of the catalog's rows: a lookup by name may be answered from what the connection remembers.
_THERE = """
    SELECT true FROM pg_inherits JOIN pg_class ON pg_class.oid = inhrelid
    WHERE inhparent = 'usage_fact'::regclass AND relname = $1
"""


async def _make(database: Database, period: str) -> None:
    name = f"usage_fact_{period.replace('-', '_')}"
    async with database.direct() as connection:
        if await connection.fetchval(_THERE, name):
            return
        await connection.execute("SELECT pg_advisory_xact_lock($1)", _LOCK)
        if await connection.fetchval(_THERE, name):
            return
        # Made beside the table and then attached, which stops no one who reads or writes the other months for long.
        await connection.execute(f"CREATE TABLE {name} (LIKE usage_fact INCLUDING ALL)")
        await connection.execute(
            f"CREATE TRIGGER immutable BEFORE UPDATE OR DELETE OR TRUNCATE ON {name} "
            "FOR EACH STATEMENT EXECUTE FUNCTION refuse_change()"
        )
        lower, upper = _first_id(period), _first_id(following_period(period))
        await connection.execute(
            f"ALTER TABLE usage_fact ATTACH PARTITION {name} FOR VALUES FROM ('{lower}') TO ('{upper}')"
        )
