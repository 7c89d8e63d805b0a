"""Compiles grammars beside the step loop: tried in a child process first, fair between flows, each text once.

A few are compiled at a time: two of a flow, and only one of a flow whose grammars took long. Some places are kept from
such heavy flows, so that slow grammars hold up only those of their own flow. A grammar that no request waits for any
more is not begun, and its trial is ended. A thread of this process, which cannot be ended, compiles on to its end.
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

from engine.grammar.guide import Grammar, InvalidGrammar
from engine.grammar.llguidance_grammar import LlguidanceGrammars
from engine.grammar.refused_grammars import RefusedGrammars
from engine.grammar.trial import TrialVerdict
from engine.grammar.trial_client import TrialLost

PLACES = 6
_LIGHT_PLACES, _HEAVY_PLACES, _KEPT_PLACES = 2, 1, 1
"""How many places a flow may have, and a heavy one; and how many are kept free of heavy flows."""
MAX_WAITING = 256
"""Grammars of one flow that may wait."""
_HEAVY_S, _FORGET = 0.5, 0.1
"""Seconds of compiling that make a flow heavy, and how many are forgotten each second."""


class TooManyWaiting(Exception):
    """This flow has as many grammars waiting as it may have."""


class Judge(Protocol):
    """Tries grammars in a process where they do no harm."""

    async def try_grammar(self, text: str) -> TrialVerdict:
        """The verdict on a grammar. Raises TrialLost. When it is cancelled the trial is ended."""
        ...


@dataclass
class _Flow:
    """`turns`: those that wait; `began`: when those that are compiled began; `spent`: seconds of compiling up to
    `seen`, less those forgotten."""

    turns: deque[asyncio.Future[None]] = field(default_factory=deque)
    began: list[float] = field(default_factory=list)
    spent: float = 0.0
    seen: float = 0.0

    def used(self, now: float) -> float:
        self.spent = max(0.0, self.spent - _FORGET * (now - self.seen))
        self.seen = now
        return self.spent + sum(now - began for began in self.began)


class CompileSlots:
    """Decides which grammar is compiled next: of the flow that used the least, within the places of each flow."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._flows: dict[str, _Flow] = {}

    @contextlib.asynccontextmanager
    async def turn(self, name: str) -> AsyncIterator[None]:
        """Hold a place for one grammar of this flow. Raises TooManyWaiting."""
        flow = self._flows.setdefault(name, _Flow(seen=self._clock()))
        if len(flow.turns) >= MAX_WAITING:
            raise TooManyWaiting
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        flow.turns.append(turn)
        self._assign_places()
        try:
            await turn
        except asyncio.CancelledError:
            if turn in flow.turns:
                flow.turns.remove(turn)
            else:  # it has got its place meanwhile
                self._release_place(flow)
            raise
        try:
            yield
        finally:
            self._release_place(flow)

    def _release_place(self, flow: _Flow) -> None:
        now = self._clock()
        flow.used(now)
        flow.spent += now - flow.began.pop(0)
        self._assign_places()

    def _assign_places(self) -> None:
        now = self._clock()
        used = {name: flow.used(now) for name, flow in self._flows.items()}
        for name in [name for name, flow in self._flows.items() if not (used[name] or flow.turns or flow.began)]:
            del self._flows[name]
        free = PLACES - sum(len(flow.began) for flow in self._flows.values())
        for name, flow in sorted(self._flows.items(), key=lambda entry: used[entry[0]]):
            places = _HEAVY_PLACES if used[name] > _HEAVY_S else _LIGHT_PLACES
            while flow.turns and len(flow.began) < places and free > (_KEPT_PLACES if used[name] > _HEAVY_S else 0):
                free -= 1
                flow.began.append(now)
                flow.turns.popleft().set_result(None)


@dataclass
class _Compilation:
    task: asyncio.Task[Grammar] | None = None
    waiting: int = 0
    in_thread: bool = False


class GrammarQueue:
    """Compiles the grammars of one replica. All calls come from one event loop."""

    def __init__(self, grammars: LlguidanceGrammars, judge: Judge, refusals: RefusedGrammars) -> None:
        self._grammars = grammars
        self._judge = judge
        self._refusals = refusals
        self._turns = CompileSlots()
        self._threads = ThreadPoolExecutor(PLACES, thread_name_prefix="grammar")
        self._under_way: dict[tuple[str, str], _Compilation] = {}

    async def compile(self, text: str, flow: str) -> Grammar:
        """The compiled grammar. Raises InvalidGrammar, TooManyWaiting, TrialLost."""
        if (grammar := self._known(text)) is not None:
            return grammar
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
            # A thread cannot be ended: it keeps its place until it has compiled.
            if not (compilation.waiting or compilation.in_thread or compilation.task.done()):
                self._under_way.pop(key, None)
                compilation.task.cancel()

    async def close(self) -> None:
        """Begin no more compilations. What a thread compiles is not waited for."""
        tasks = [compilation.task for compilation in self._under_way.values() if compilation.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._refusals.close()

    def _known(self, text: str) -> Grammar | None:
        grammar = self._grammars.known(text)
        if isinstance(grammar, InvalidGrammar):
            raise InvalidGrammar(str(grammar))
        return grammar

    async def _compile(self, text: str, flow: str, compilation: _Compilation) -> Grammar:
        digest = self._grammars.compiler.digest(text)
        problem = self._refusals.problem(digest)
        if problem is not None:
            raise InvalidGrammar(problem)
        async with self._turns.turn(flow):
            if (grammar := self._known(text)) is not None:  # another flow had it compiled meanwhile
                return grammar
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
                self._refusals.survived(digest)

    async def _try(self, text: str) -> TrialVerdict:
        try:
            return await self._judge.try_grammar(text)
        except TrialLost:
            # The system may have killed the child for lack of memory: try once more.
            return await self._judge.try_grammar(text)

    def _ended(self, key: tuple[str, str], task: asyncio.Task[Grammar]) -> None:
        compilation = self._under_way.get(key)
        if compilation is not None and compilation.task is task:
            del self._under_way[key]
        if not task.cancelled():
            task.exception()  # retrieved, since those who asked may be gone
