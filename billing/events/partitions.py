"""Usage events by month on PostgreSQL: a partition holds the ids of one month, and is made before its first event.

A UUIDv7 begins with its milliseconds since the Unix epoch, so that the ids of a month are a range. There is no default
partition: an event that has nowhere to go makes its month first.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import TypeAlias
from uuid import UUID
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from storage.database.base import to_instant
from storage.database.database import Database

FIRST_YEAR, LAST_YEAR = 2020, 2199
_MILLISECONDS = 80
_LOCK = 7_233_104_872
"""PostgreSQL's advisory lock: two processes that need the same month make it one after the other."""

Month: TypeAlias = tuple[int, int]


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


def month_of(identity: UUID) -> Month:
    """Year and month, in UTC, of a UUIDv7."""
    return _month(identity.int >> _MILLISECONDS)


def _month(milliseconds: int) -> Month:
    moment = datetime.fromtimestamp(milliseconds // 1000, UTC)
    return moment.year, moment.month


def following(month: Month) -> Month:
    """The month after this one."""
    year, number = month
    return (year + 1, 1) if number == 12 else (year, number + 1)


def least_id(instant: int) -> UUID:
    """What is not above any UUIDv7 made at this instant (microseconds since the Unix epoch) or later."""
    return UUID(int=instant // 1000 << _MILLISECONDS)


def made_at(identity: UUID) -> int:
    """When a UUIDv7 was made, in microseconds since the Unix epoch."""
    return (identity.int >> _MILLISECONDS) * 1000


def _start(month: Month) -> UUID:
    """The least id of a month."""
    return least_id(to_instant(datetime(*month, 1, tzinfo=UTC)))


_FIRST, _LAST = _start((FIRST_YEAR, 1)).int, _start((LAST_YEAR, 1)).int

_known: WeakKeyDictionary[Database, set[Month]] = WeakKeyDictionary()
"""The months that have a partition in each database, as far as this process knows."""


async def ensure(database: Database, months: Iterable[Month]) -> None:
    """Make the partitions of these months that are missing, each in a transaction. SQLite has none to make.

    Raises DatabaseUnavailable.
    """
    if database.dialect != "postgresql":
        return
    known = _known.setdefault(database, set())
    for month in sorted(set(months) - known):
        await _make(database, month)
        known.add(month)


async def ensure_partitions(database: Database, ids: NDArray[np.uint8]) -> None:
    """Make the partitions that these ids (n × 16 bytes) need, but for those that have no month.

    Raises DatabaseUnavailable.
    """
    milliseconds = _milliseconds(ids[are_ordered_by_time(ids)])
    if len(milliseconds):
        months = {_month(int(milliseconds.min())), _month(int(milliseconds.max()))}
        if len(months) > 1:
            months |= {_month(instant) for instant in np.unique(milliseconds).tolist()}
        await ensure(database, months)


async def prepare(database: Database, ahead: int = 2) -> None:
    """Make this month's partition and those of the next: the worker's job. Raises DatabaseUnavailable."""
    moment = datetime.fromtimestamp(await database.now() // 1_000_000, UTC)
    month = (moment.year, moment.month)
    await ensure(database, [month] + [month := following(month) for _ in range(ahead)])


# Asked of the catalog's rows: a lookup by name may be answered from what the connection remembers.
_THERE = """
    SELECT true FROM pg_inherits JOIN pg_class ON pg_class.oid = inhrelid
    WHERE inhparent = 'usage_fact'::regclass AND relname = $1
"""


async def _make(database: Database, month: Month) -> None:
    name = f"usage_fact_{month[0]:04d}_{month[1]:02d}"
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
        lower, upper = _start(month), _start(following(month))
        await connection.execute(
            f"ALTER TABLE usage_fact ATTACH PARTITION {name} FOR VALUES FROM ('{lower}') TO ('{upper}')"
        )
