"""An event loop with virtual time, in which a seed picks which of the ready tasks goes on.

Nothing waits: when nothing is ready, the clock jumps to the next timer. Work for threads is done inline, at a moment
and with an end that the seed picks; that of one thread in its order. Sockets are those of `simulation.network`.
"""

from __future__ import annotations

import asyncio
import hashlib
import heapq
import itertools
import random
from asyncio import events, tasks
from collections.abc import Callable, Coroutine
from contextvars import Context, ContextVar, copy_context
from typing import TYPE_CHECKING, Any

from simulation.nodes import Killed, Node, node_of

if TYPE_CHECKING:
    from simulation.network import Network

_STEP_NS = 3_000
"""How long a step of a task takes."""
_name: ContextVar[str] = ContextVar("task_name", default="")


class Stuck(Exception):
    """Nothing can happen any more, or too much happens: somebody waits for ever."""


_numbers = itertools.count()


class _Task(asyncio.Task[Any]):
    """A task that sets hold in an order that no memory address decides."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        self.number = next(_numbers)
        super().__init__(*arguments, **named)

    def __hash__(self) -> int:
        return self.number


class _Future(asyncio.Future[Any]):
    """The same of a future."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        self.number = next(_numbers)
        super().__init__(*arguments, **named)

    def __hash__(self) -> int:
        return self.number


class SimulatedLoop(asyncio.SelectorEventLoop):
    """The loop of one world. `chance` picks; `trace` becomes a digest of all that happened, in order."""

    def __init__(self, chance: random.Random, network: Network, most_steps: int = 3_000_000) -> None:
        super().__init__()
        self.chance = chance
        self.network = network
        self.lines: list[str] | None = None
        """What the trace is a digest of, if it is wanted."""
        self.now_ns = 1_000_000_000
        self.steps = 0
        self.trace = hashlib.blake2b(digest_size=16)
        self.shuffle = 0.5
        """How often a task is taken out of turn."""
        self.slowness = 1.0
        """A factor of the time that threads take."""
        self.on_step: Callable[[Node], None] = lambda node: None
        self._most_steps = most_steps
        self._free_at: dict[int, float] = {}
        self._executors: list[Any] = []
        self.set_task_factory(self._make_task)

    def time(self) -> float:
        """Seconds since the world began."""
        return self.now_ns / 1e9

    def create_future(self) -> asyncio.Future[Any]:
        """A future of this loop."""
        return _Future(loop=self)

    def note(self, *facts: object) -> None:
        """Let the trace have these facts."""
        line = repr((self.now_ns, *facts))
        self.trace.update(line.encode())
        if self.lines is not None:
            self.lines.append(line)

    def _make_task(
        self, loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, Any], *, context: Context | None = None
    ) -> asyncio.Task[Any]:
        context = copy_context() if context is None else context
        name = getattr(work, "__qualname__", type(work).__name__)
        context.run(_name.set, name)
        task = _Task(work, loop=loop, name=name, context=context)
        node = node_of(context)
        if node is not None:
            node.kept.append(task)
        return task

    def _run_once(self) -> None:
        ready, scheduled = self._ready, self._scheduled  # type: ignore[attr-defined]
        while scheduled and scheduled[0]._cancelled:
            heapq.heappop(scheduled)._scheduled = False
        if not ready:
            if not scheduled:
                raise Stuck("nothing is left that could happen")
            self.now_ns = max(self.now_ns, round(scheduled[0]._when * 1e9))
        while scheduled and scheduled[0]._when * 1e9 <= self.now_ns + 1:
            timer = heapq.heappop(scheduled)
            timer._scheduled = False
            if not timer._cancelled:
                ready.append(timer)
        if not ready:
            return
        handle = self._next(ready)
        if handle._cancelled:
            return
        node = node_of(handle._context)
        if node is not None and not node.alive:
            node.kept.append(handle)
            return
        self.steps += 1
        if self.steps > self._most_steps:
            raise Stuck(f"after {self.steps} steps and {self.time():.0f} s")
        self.now_ns += _STEP_NS
        self.note(handle._context.get(_name), node.name if node is not None else "")
        handle._run()
        if node is not None and node.alive:
            node.steps += 1
            self.on_step(node)

    def _next(self, ready: Any) -> Any:
        """The next callback: the first, or a task that the seed picks before it. What transports call keeps order."""
        if len(ready) > 1 and _is_step(ready[0]) and self.chance.random() < self.shuffle:
            place = self.chance.randrange(min(len(ready), 12))
            if _is_step(ready[place]):
                handle = ready[place]
                del ready[place]
                return handle
        return ready.popleft()

    # ------------------------------------------------ threads

    def run_in_executor(self, executor: Any, work: Callable[..., Any], *arguments: Any) -> Any:
        """Do the work of a thread inline, after a while; it is seen to be done after another."""
        return self.in_turn(executor if getattr(executor, "_max_workers", 0) == 1 else None, work, *arguments)

    def in_turn(self, thread: Any, work: Callable[..., Any], *arguments: Any, slow: float = 1.0) -> Any:
        """The same; what has one `thread` is done in order."""
        future: asyncio.Future[Any] = self.create_future()
        begin = self.time() + self._pause(slow)
        if thread is not None:
            if id(thread) not in self._free_at:
                self._executors.append(thread)  # so that no other gets its id
            begin = max(begin, self._free_at.get(id(thread), 0.0))
            end = self._free_at[id(thread)] = begin + self._pause(slow)
        else:
            end = begin + self._pause(slow)
        self.call_at(begin, self._do, future, end, work, arguments)
        return future

    def _pause(self, slow: float) -> float:
        pause = self.chance.expovariate(5_000.0) * self.slowness * slow
        return pause * 100 if self.chance.random() < 0.01 else pause

    def _do(self, future: asyncio.Future[Any], end: float, work: Callable[..., Any], arguments: Any) -> None:
        if future.cancelled():
            return
        try:
            result = work(*arguments)
        except Killed:
            return
        except BaseException as error:
            self.call_at(end, _fail, future, error)
        else:
            self.call_at(end, _succeed, future, result)

    # ------------------------------------------------ sockets and signals

    async def create_unix_connection(self, protocol_factory: Any, path: Any = None, **_: Any) -> Any:  # type: ignore[override]
        """Connect to who listens on this path in the world."""
        return await self.network.connect(self, protocol_factory, str(path))

    async def create_unix_server(self, protocol_factory: Any, path: Any = None, **_: Any) -> Any:  # type: ignore[override]
        """Listen on this path in the world."""
        return self.network.listen(self, protocol_factory, str(path))

    def add_signal_handler(self, *_: Any) -> None:
        """Nobody sends signals here; nodes are killed."""

    def default_exception_handler(self, context: dict[str, Any]) -> None:
        """What no task retrieved is no event of the world."""


def _succeed(future: asyncio.Future[Any], result: Any) -> None:
    if not future.done():
        future.set_result(result)


def _fail(future: asyncio.Future[Any], error: BaseException) -> None:
    if not future.done():
        future.set_exception(error)


def _is_step(handle: events.Handle) -> bool:
    callback = handle._callback  # type: ignore[attr-defined]
    return type(callback).__name__ == "TaskStepMethWrapper" or isinstance(
        getattr(callback, "__self__", None), tasks.Task
    )
