"""What the money machine is built of: actions that take place as often as their weight says, and books that fail."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeVar, cast

import msgspec
from hypothesis import strategies as st

T = TypeVar("T")


class Action(msgspec.Struct):
    """What may happen, and with what."""

    name: str
    when: Callable[[Any], bool]
    arguments: dict[str, st.SearchStrategy[Any]]


ACTIONS: list[Action] = []
"""Each as often as its weight."""


def action(
    weight: int, when: Callable[[Any], object] = lambda _: True, **arguments: st.SearchStrategy[Any]
) -> Callable[[T], T]:
    """Let a method be a step. Rules of Hypothesis would not do: of those it leaves out many in each run, and then what
    takes three of them to happen hardly ever does."""

    def declare(method: T) -> T:
        ACTIONS.extend([Action(cast(Any, method).__name__, lambda machine: bool(when(machine)), arguments)] * weight)
        return method

    return declare


class Crash(Exception):
    """The end of the process, as far as its transaction is concerned."""


class Fragile:
    """Books that work for so many calls."""

    def __init__(self, books: Any, left: Iterator[int]) -> None:
        self._books = books
        self._left = left

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._books, name)
        if not callable(found):
            return Fragile(found, self._left)

        async def call(*arguments: Any, **named: Any) -> Any:
            if next(self._left, None) is None:
                raise Crash
            return await found(*arguments, **named)

        return call
