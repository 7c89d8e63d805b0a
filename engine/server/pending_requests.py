"""Requests that wait before the engine gets them: for their adapter, their grammar, or until the disk was asked for
their prompt.

What was said about them meanwhile comes to the engine after them. The disk is asked only until a start's scan of its
folder is through, and not for long.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field

from engine.core.input_processor import Rejected
from engine.grammar.guide import Grammar, InvalidGrammar
from engine.grammar.trial_client import TrialLost
from engine.server.engine_loop import Command, EngineLoop
from engine.server.grammar_queue import GrammarQueue, TooManyWaiting
from protocol.replicas import Scope
from protocol.requests import Generate, Refusal

LOOK_S = 0.2
"""So long a request waits at most for what the disk has of its prompt."""
_CLOCK_DIFFERENCE_S = 0.01
"""Deadlines are by another clock than waiting is: this much later a deadline has passed by both."""


@dataclass
class _Pending:
    """`commands` are for the engine's thread, as soon as the engine knows the request."""

    message: Generate
    commands: list[Command] = field(default_factory=list)
    task: asyncio.Task[None] | None = None
    arrived: float = field(default_factory=time.monotonic)


class PendingRequests:
    """Called in the event loop's thread; the engine is reached through `loop`. `grammar_queue`: None where the engine
    has its grammars compiled elsewhere."""

    def __init__(self, loop: EngineLoop, grammar_queue: GrammarQueue | None) -> None:
        self._loop = loop
        self._grammar_queue = grammar_queue
        self._pending: dict[str, _Pending] = {}

    def add(
        self, message: Generate, scopes: Mapping[str, Scope], bring: Callable[[], Awaitable[None]] | None = None
    ) -> None:
        """Queue the request in the engine, as soon as its grammar is compiled and the disk was asked. `bring`:
        waits until its adapter has come."""
        pending = _Pending(message)
        looked = self._look_up(message, scopes)
        grammar = None if self._grammar_queue is None else message.grammar
        if grammar is None and looked is None and bring is None:
            self._loop.add(message.id, lambda: self._loop.engine.add(message, scopes, arrived=pending.arrived))
            return
        self._pending[message.id] = pending
        pending.task = asyncio.create_task(self._prepare(pending, scopes, looked, bring))

    def do(self, id: str, attempt: int, command: Command) -> None:
        """Run a command about a request in the engine's thread, as soon as the engine knows the request."""
        pending = self._of(id, attempt)
        if pending is None:
            self._loop.do_for(id, command)
        else:
            pending.commands.append(command)

    def cancel(self, id: str, attempt: int) -> Generate | None:
        """Drop a request that the engine does not know yet, and return it; None if there is none."""
        pending = self._of(id, attempt)
        if pending is None:
            return None
        del self._pending[id]
        if pending.task is not None:
            pending.task.cancel()
        return pending.message

    def _of(self, id: str, attempt: int) -> _Pending | None:
        """The request with this id, if it waits in this attempt; 0 stands for any."""
        pending = self._pending.get(id)
        return pending if pending is not None and attempt in (0, pending.message.attempt) else None

    def _look_up(self, message: Generate, scopes: Mapping[str, Scope]) -> asyncio.Event | None:
        """Set when the disk was asked for the prompt; None if it need not be."""
        events, looked = asyncio.get_running_loop(), asyncio.Event()

        def tell() -> None:
            with contextlib.suppress(RuntimeError):  # the event loop is closed: the replica has ended
                events.call_soon_threadsafe(looked.set)

        return looked if self._loop.engine.look_up(message, scopes, tell) else None

    async def _prepare(
        self,
        pending: _Pending,
        scopes: Mapping[str, Scope],
        looked: asyncio.Event | None,
        bring: Callable[[], Awaitable[None]] | None,
    ) -> None:
        message = pending.message
        if bring is not None:
            with contextlib.suppress(TimeoutError):  # the engine finds that the deadline has passed
                async with asyncio.timeout(_seconds_left(message)):
                    await bring()
        queue, text = self._grammar_queue, message.grammar
        grammar = None if queue is None or text is None else await self._compile(queue, message, text)
        if looked is not None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pending.arrived + LOOK_S - time.monotonic()):
                    await looked.wait()
        if self._pending.get(message.id) is pending:
            del self._pending[message.id]
            self._loop.add(message.id, lambda: self._loop.engine.add(message, scopes, grammar, arrived=pending.arrived))
            for command in pending.commands:
                self._loop.do_for(message.id, command)

    async def _compile(self, queue: GrammarQueue, message: Generate, text: str) -> Grammar | Rejected:
        try:
            async with asyncio.timeout(_seconds_left(message)):
                return await queue.compile(text, message.flow)
        except InvalidGrammar as error:
            return Rejected(f"grammar: {error}", invalid="grammar")
        except TooManyWaiting:
            return Rejected("grammar: too many of this flow wait to be compiled", Refusal("flow", 1.0))
        except TrialLost:
            return Rejected("grammar: it could not be tried", Refusal("replica", 1.0))
        except TimeoutError:  # the engine finds that the deadline has passed
            return Rejected("grammar: it was not compiled in time")


def _seconds_left(message: Generate) -> float | None:
    """Seconds until the deadline has passed by any clock; None without a deadline."""
    return None if message.deadline is None else message.deadline - time.time() + _CLOCK_DIFFERENCE_S
