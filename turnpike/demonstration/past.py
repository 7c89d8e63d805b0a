"""Work in the past: every clock of a process's admin services stands at the same instant of a month that is over."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy import literal

from storage.database import clock
from storage.database.base import Count
from turnpike.admin_services import AdminServices

SECOND = 1_000_000
MINUTE = 60 * SECOND
HOUR = 60 * MINUTE
DAY = 24 * HOUR


class Past:
    """The clocks, which only go forward. Instants are microseconds since the Unix epoch."""

    def __init__(self, admin: AdminServices) -> None:
        self._admin = admin
        self.now = 0

    def move_to(self, instant: int) -> None:
        """Stand at this instant from now on, or where it stands if that is later. SQLite's clock counts
        milliseconds, and so does this one."""
        self.now = max(self.now, instant // 1000 * 1000)
        clock.stand_at(self.now)
        self._admin.database.clock = literal(self.now, Count())


@contextmanager
def in_the_past(admin: AdminServices) -> Iterator[Past]:
    """Stand in the past until the end."""
    present = admin.database.clock
    with clock.standing():
        try:
            yield Past(admin)
        finally:
            admin.database.clock = present
            admin.prices.forget()
