"""Lists, a page at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Generic, Literal, Self, TypeVar

from msgspec import Struct

from gateway.errors import InvalidField

Item = TypeVar("Item")
Row = TypeVar("Row")


class PageQuery(Struct, frozen=True):
    """Which page of a list is asked for. `after`: the id of the last object of the page before."""

    limit: int
    after: str | None

    def rest(
        self, rows: Sequence[Row], id_of: Callable[[Row], Any], read: Callable[[str], Any], what: str
    ) -> Sequence[Row]:
        """The rows behind `after`, of a list that is whole. Raises InvalidField if none has this id."""
        if self.after is None:
            return rows
        last = read(self.after)
        for place, row in enumerate(rows, 1):
            if id_of(row) == last:
                return rows[place:]
        raise InvalidField("after", f"there is no such {what}")


class Page(Struct, Generic[Item], frozen=True, kw_only=True):
    """A page of a list. `has_more`: there are more objects behind it."""

    object: Literal["list"] = "list"
    data: list[Item]
    has_more: bool

    @classmethod
    def of(cls, objects: Sequence[Item], limit: int) -> Self:
        """The page of the first `limit` objects, of at least one more if there are more."""
        return cls(data=list(objects[:limit]), has_more=len(objects) > limit)
