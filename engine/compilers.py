"""Grammars compiled beside the step loop: a few at a time, so that a slow one holds up none that is quick, each text
once however many ask for it, and none that nobody waits for any more."""

from __future__ import annotations

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import msgspec

from engine.grammar.guide import Grammars
from engine.loop import Command
from engine.protocol.requests import Extend, Generate

THREADS = 4
"""So many slow grammars are needed to hold up the others."""
_CLOCKS_S = 0.01
"""Waiting is by another clock than deadlines are: so much later both say that one is over."""


@dataclass
class _Compilation:
    done: asyncio.Future[object]
    waiting: int = 0


class Compilers:
    """Threads that compile; called from one event loop."""

    def __init__(self, threads: int = THREADS) -> None:
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="grammar")
        self._under_way: dict[str, _Compilation] = {}

    async def compile(self, grammars: Grammars, text: str) -> None:
        """Return when `grammars` has compiled this one and remembers it. Raises InvalidGrammar."""
        compilation = self._under_way.get(text)
        if compilation is None:
            events = asyncio.get_running_loop()
            compilation = _Compilation(events.run_in_executor(self._threads, grammars.compiled, text))
            self._under_way[text] = compilation
            compilation.done.add_done_callback(lambda _: self._under_way.pop(text, None))
        compilation.waiting += 1
        try:
            await asyncio.shield(compilation.done)
        finally:
            compilation.waiting -= 1
            if not compilation.waiting and not compilation.done.done():
                del self._under_way[text]
                compilation.done.cancel()

    def close(self) -> None:
        """Begin no other; what is under way is not waited for."""
        self._threads.shutdown(wait=False, cancel_futures=True)


@dataclass
class Compiling:
    """A request whose grammar is being compiled, and what it was told meanwhile."""

    message: Generate
    task: asyncio.Task[None] | None = None
    timeout: asyncio.Timeout | None = None
    changes: list[Command] = field(default_factory=list)

    def until(self, events: asyncio.AbstractEventLoop) -> float | None:
        """When its time is over, by the clock of `events`."""
        deadline = self.message.deadline
        return None if deadline is None else events.time() + deadline - time.time() + _CLOCKS_S

    def extend(self, message: Extend, events: asyncio.AbstractEventLoop) -> None:
        """Wait for longer if the deadline is later now."""
        before = self.message.deadline
        if before is None or message.deadline is None or message.deadline <= before:
            return
        self.message = msgspec.structs.replace(self.message, deadline=message.deadline)
        if self.timeout is not None:
            self.timeout.reschedule(self.until(events))
