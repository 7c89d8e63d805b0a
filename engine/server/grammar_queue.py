"""Grammars compiled beside the step loop: tried by a child process first, fair between flows, each text once.

A few are under way at a time, of each flow two, and one of a flow whose grammars took long, for which not all places
are given: slow grammars hold up those of their own flow. What nobody waits for any more does not begin, and its trial
is ended; only what a thread of this process compiles is compiled to its end.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Protocol

import msgspec

from engine.grammar.guide import Grammar, InvalidGrammar
from engine.grammar.llguidance_grammar import LlguidanceGrammars
from engine.grammar.refused_grammars import RefusedGrammars
from engine.grammar.trial import Verdict
from engine.grammar.trial_client import TrialLost
from engine.server.engine_loop import Command
from protocol.requests import Extend, Generate

PLACES = 6
_LIGHT_PLACES, _HEAVY_PLACES, _KEPT_PLACES = 2, 1, 1
"""How many places a flow may have, and a heavy one; and how many are kept from heavy flows."""
MAX_WAITING = 256
"""Of one flow."""
_HEAVY_S, _FORGET = 0.5, 0.1
"""Seconds of compiling that make a flow a heavy one, and how much of that is forgotten in a second."""
_CLOCKS_S = 0.01
"""Waiting is by another clock than deadlines are: so much later both say that one is over."""


class TooManyWaiting(Exception):
    """This flow has as many grammars waiting as it may have."""


class Judge(Protocol):
    """Tries grammars where they do no harm."""

    async def judge(self, text: str) -> Verdict:
        """The verdict on a grammar. Raises TrialLost. When it is cancelled the trial is ended."""
        ...


@dataclass
class _Flow:
    """`turns`: who waits; `began`: when those that compile began; `spent`: seconds, up to `seen`, some forgotten."""

    turns: deque[asyncio.Future[None]] = field(default_factory=deque)
    began: list[float] = field(default_factory=list)
    spent: float = 0.0
    seen: float = 0.0

    def used(self, now: float) -> float:
        self.spent = max(0.0, self.spent - _FORGET * (now - self.seen))
        self.seen = now
        return self.spent + sum(now - began for began in self.began)


class CompileSlots:
    """Who compiles next: the flow that used least first, and never so many of one that others find no place."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._flows: dict[str, _Flow] = {}

    @contextlib.asynccontextmanager
    async def turn(self, name: str) -> AsyncIterator[None]:
        """A place for one grammar of this flow. Raises TooManyWaiting."""
        flow = self._flows.setdefault(name, _Flow(seen=self._clock()))
        if len(flow.turns) >= MAX_WAITING:
            raise TooManyWaiting
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        flow.turns.append(turn)
        self._give_out()
        try:
            await turn
        except asyncio.CancelledError:
            if turn in flow.turns:
                flow.turns.remove(turn)
            else:  # it was given just now
                self._give_back(flow)
            raise
        try:
            yield
        finally:
            self._give_back(flow)

    def _give_back(self, flow: _Flow) -> None:
        now = self._clock()
        flow.used(now)
        flow.spent += now - flow.began.pop(0)
        self._give_out()

    def _give_out(self) -> None:
        now = self._clock()
        used = {name: flow.used(now) for name, flow in self._flows.items()}
        for name in [name for name, flow in self._flows.items() if not (used[name] or flow.turns or flow.began)]:
            del self._flows[name]
        free = PLACES - sum(len(flow.began) for flow in self._flows.values())
        for name, flow in sorted(self._flows.items(), key=lambda entry: used[entry[0]]):
            most = _HEAVY_PLACES if used[name] > _HEAVY_S else _LIGHT_PLACES
            while flow.turns and len(flow.began) < most and free > (_KEPT_PLACES if used[name] > _HEAVY_S else 0):
                free -= 1
                flow.began.append(now)
                flow.turns.popleft().set_result(None)


@dataclass
class _Compilation:
    task: asyncio.Task[Grammar] | None = None
    waiting: int = 0
    in_thread: bool = False


class GrammarQueue:
    """Compiles the grammars of one replica. Called from one event loop."""

    def __init__(self, grammars: LlguidanceGrammars, judge: Judge, refusals: RefusedGrammars) -> None:
        self._grammars = grammars
        self._judge = judge
        self._refusals = refusals
        self._turns = CompileSlots()
        self._threads = ThreadPoolExecutor(PLACES, thread_name_prefix="grammar")
        self._under_way: dict[tuple[str, str], _Compilation] = {}

    async def compile(self, text: str, flow: str) -> Grammar:
        """The compiled grammar. Raises InvalidGrammar, TooManyWaiting, TrialLost."""
        if (known := self._known(text)) is not None:
            return known
        key = flow, text
        compilation = self._under_way.get(key)
        if compilation is None:
            compilation = self._under_way[key] = _Compilation()
            compilation.task = asyncio.create_task(self._compile(text, flow, compilation))
            compilation.task.add_done_callback(lambda task: self._ended(key, task))
        assert compilation.task is not None
        compilation.waiting += 1
        try:
            return await asyncio.shield(compilation.task)
        finally:
            compilation.waiting -= 1
            # A thread cannot be ended: it keeps its place, and the grammar its blame, as long as it compiles.
            if not (compilation.waiting or compilation.in_thread or compilation.task.done()):
                self._under_way.pop(key, None)
                compilation.task.cancel()

    async def close(self) -> None:
        """Begin no other; what a thread is at is not waited for."""
        tasks = [compilation.task for compilation in self._under_way.values() if compilation.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._refusals.close()

    def _known(self, text: str) -> Grammar | None:
        known = self._grammars.known(text)
        if isinstance(known, InvalidGrammar):
            raise InvalidGrammar(str(known))
        return known

    async def _compile(self, text: str, flow: str, compilation: _Compilation) -> Grammar:
        digest = self._grammars.compiler.digest(text)
        problem = self._refusals.problem(digest)
        if problem is not None:
            raise InvalidGrammar(problem)
        async with self._turns.turn(flow):
            if (known := self._known(text)) is not None:  # another flow had it compiled meanwhile
                return known
            verdict = await self._try(text)
            if not verdict.final:
                raise TrialLost(verdict.problem)
            if verdict.problem:
                self._refusals.refuse(digest, verdict.problem)
                raise InvalidGrammar(verdict.problem)
            compilation.in_thread = True
            self._refusals.attempt(digest)
            try:
                return await asyncio.get_running_loop().run_in_executor(
                    self._threads, self._grammars.compile_proven, text, verdict.prepared, verdict.ending, verdict.size
                )
            finally:
                self._refusals.passed(digest)

    async def _try(self, text: str) -> Verdict:
        try:
            return await self._judge.judge(text)
        except TrialLost:
            # The child may have been ended for want of memory, or by hand: once more.
            return await self._judge.judge(text)

    def _ended(self, key: tuple[str, str], task: asyncio.Task[Grammar]) -> None:
        compilation = self._under_way.get(key)
        if compilation is not None and compilation.task is task:
            del self._under_way[key]
        if not task.cancelled():
            task.exception()  # whoever asked may be gone


@dataclass
class PendingGrammar:
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
