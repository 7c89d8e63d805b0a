"""What the money machine is built of: actions by their weight, books that fail, and the tally of a run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, TypeVar, cast
from uuid import UUID

import msgspec
from hypothesis import strategies as st

from billing.verification.audit import audit_money
from storage.database.database import Database

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


class Tally:
    """What a run came to."""

    def __init__(self) -> None:
        self.steps = 0
        self.tenants = 0
        self.done: Counter[str] = Counter()
        """How often each action took place."""
        self.overdrawn: set[UUID] = set()
        """Tenants whose usage came after its hold had ended and its money was promised to others, or whose credit line
        was lowered below what was used of it."""
        self.unexplained: set[UUID] = set()
        """Those of them who owe more than any credit line covered that they had."""

    async def check_books(self, database: Database) -> None:
        """The books are right; those who are overdrawn are named but for what a lowered line explains, and nobody
        else."""
        found = await audit_money(database)
        assert {finding.what for finding in found} <= {"a balance is below zero"}, found
        assert self.unexplained <= {finding.subject for finding in found} <= self.overdrawn
