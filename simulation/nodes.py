"""The processes of a world. What a process does, it does in a context that names it; a dead one does nothing more."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextvars import Context, ContextVar, copy_context
from typing import Any


class Killed(BaseException):
    """The process died in the middle of a system call: nothing in it goes on."""


class Node:
    """One process, from its start to its death. A restarted process is another node."""

    def __init__(self, name: str, skew_ns: int = 0) -> None:
        self.name = name
        self.alive = True
        self.skew_ns = skew_ns
        """By how much its wall clock is ahead."""
        self.steps = 0
        self.dies_at_step: int | None = None
        """It is killed when so many steps of it were done: between two awaits."""
        self.dies_at_write: int | None = None
        """It is killed in the middle of this file operation."""
        self.file_operations = 0
        self.on_death: list[Callable[[], None]] = []
        """What the machine does when the process is gone: closes its sockets, files and database connections."""
        self.kept: list[Any] = []
        """Its tasks. A coroutine that is collected would run its `finally`, which a killed process does not."""
        self.context: Context = copy_context()
        self.context.run(_present.set, self)

    def start(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Run this in the process."""
        return self.context.run(asyncio.get_running_loop().create_task, work)

    def die(self) -> None:
        """End at once: no handler, no `finally`."""
        if self.alive:
            self.alive = False
            for release in self.on_death:
                release()


_present: ContextVar[Node | None] = ContextVar("node", default=None)


def present_node() -> Node | None:
    """The process whose code runs now; None: the world's own."""
    return _present.get()


def node_of(context: Context) -> Node | None:
    """The process of a context."""
    return context.get(_present)
