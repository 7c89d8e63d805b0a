"""The time by this process: the system's, unless the process stands in another one.

A demonstration (`turnpike.demonstration`) makes a month that has passed. It does so by the same calls as in production,
in a process of its own that stands at one instant after another. What writes a time into a row reads it here, or from
the database's clock (`Database.clock`), which whoever stands elsewhere sets beside this.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from itertools import count
from uuid import UUID

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class _Standing:
    """Where the process stands: microseconds since the Unix epoch, and the numbers of the ids made there."""

    def __init__(self) -> None:
        self.instant = 0
        self.millisecond = -1
        self.numbers = count()


_standing: _Standing | None = None


def instant() -> int:
    """Now, in microseconds since the Unix epoch."""
    return time.time_ns() // 1000 if _standing is None else _standing.instant


def moment() -> datetime:
    """Now, as an aware datetime in UTC."""
    return _EPOCH + timedelta(microseconds=instant())


def made_id() -> UUID | None:
    """While the process stands in another time: a UUIDv7 of that time and a number, so that the same acts make the same
    ids. None otherwise."""
    if _standing is None:
        return None
    millisecond = _standing.instant // 1000
    if millisecond != _standing.millisecond:
        _standing.millisecond, _standing.numbers = millisecond, count(1)
    return UUID(int=millisecond << 80 | 7 << 76 | 2 << 62 | next(_standing.numbers))


def stand_at(when: int) -> None:
    """Move to this instant; only within `standing`."""
    if _standing is None:
        raise RuntimeError("this process does not stand in another time")
    _standing.instant = when


@contextmanager
def standing() -> Iterator[None]:
    """Stand in another time, from the Unix epoch on, until the end."""
    global _standing  # noqa: PLW0603  # one process, one time
    _standing = _Standing()
    try:
        yield
    finally:
        _standing = None
