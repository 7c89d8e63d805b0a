"""A replica of a world: its real protocol, scheduler, KV pool, counts and journal; a script in place of the model."""

from __future__ import annotations

import asyncio
import hashlib
import random
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import engine.server.replica as replica_module
from engine.core.engine import Engine, EngineLimits
from engine.core.output_processor import Event
from engine.scheduling.request import Request
from engine.scheduling.step_costs import FixedCosts
from engine.scheduling.step_work import Step, StepPipeline, Work, WorkOutcome
from engine.server.engine_loop import Command, EngineLoop
from engine.server.journal import Journal
from engine.server.journaled_delivery import DISK_FULL_PAUSE_S
from engine.server.replica import Replica
from engine.startup.assembly import AssembledEngine
from engine.startup.options import ReplicaOptions
from gateway.served_models.served_model import ServedModel as GatewayModel
from prompt_cache.kv.block_keys import BLOCK_TOKENS
from prompt_cache.kv.grouped_pool import GroupedPool
from protocol.replicas import Capacity, Layout, ServedModel

LINK_KEY = b"k" * 32
CONTEXT = 512
_BLOCKS = 40
_WORDS = ("the", "quick", "brown", "fox", "jumps", "over", "lazy")
_STEP_S = 0.004
_IDLE_S = 0.5


class Script:
    """What the model would say: tokens that follow from the prompt alone. `model` has the tokenizer; `sampled` is
    called with each request of which a token is computed, and its prompt."""

    def __init__(self, model: GatewayModel, sampled: Callable[[Request, Sequence[int]], None]) -> None:
        self.sampled = sampled
        self._model = model
        self.vocabulary = 600
        self._end = next(iter(model.stop_tokens))
        self._words = [model.tokenizer.content(f" {word}")[0] for word in _WORDS]

    def answer(self, prompt: Sequence[int], choice: int = 0) -> list[int]:
        """The whole output for a prompt, its stop token at the end."""
        seed = hashlib.blake2b(repr((list(prompt), choice)).encode(), digest_size=8).digest()
        chance = random.Random(seed)
        return [chance.choice(self._words) for _ in range(chance.choice((1, 3, 8, 20, 40)))] + [self._end]

    def text(self, prompt: Sequence[int], tokens: int) -> str:
        """What the first so many tokens of the answer read like."""
        answer = [token for token in self.answer(prompt)[:tokens] if token != self._end]
        return self._model.tokenizer.decode(answer)


class ScriptedExecutor:
    """Computes steps by the script, in no time: the loop of `SimulatedEngineLoop` lets time pass."""

    attention: tuple[str, ...] = ()
    most_drafts = 0
    block_bytes = 1

    def __init__(self, script: Script) -> None:
        self.script = script
        self.vocabulary = script.vocabulary
        self.costs = FixedCosts()
        self.pipeline = StepPipeline()
        self.copies = _NoCopies()
        self.working: Sequence[Work] = ()

    def call_while_computing(self, meanwhile: Callable[[Callable[[], bool]], None]) -> None:
        """A step takes no time here."""

    def idles_between_steps(self) -> bool:
        """No device waits."""
        return False

    def run(self, works: Sequence[Work]) -> list[WorkOutcome]:
        """The outcomes of these works."""
        return [self._outcome(work) for work in works]

    def _outcome(self, work: Work) -> WorkOutcome:
        if not work.samples:
            return WorkOutcome()
        request = work.request
        asked = request.prompt - request.emitted
        answer = self.script.answer(request.tokens[:asked], request.choice)
        at = len(request.tokens) - asked
        self.script.sampled(request, request.tokens[:asked])
        return WorkOutcome(token=answer[min(at, len(answer) - 1)])


class _NoCopies:
    """No block leaves the device."""

    beside = False
    pending = False

    def __init__(self) -> None:
        self._done: deque[Step] = deque()

    def begin(self, step: Step) -> None:
        """Take note of it."""
        if step.copies:
            self._done.append(step)

    def finished(self, *, wait: bool = False) -> list[tuple[Step, list[int]]]:
        """The steps whose copies are done."""
        done = [(step, list[int]()) for step in self._done]
        self._done.clear()
        return done


class SimulatedEngineLoop(EngineLoop):
    """The engine's thread as a task: commands, a step, the journal, and what happened is delivered when that has it."""

    hear: Callable[[Sequence[Event]], None] = staticmethod(lambda events: None)
    """Called with what a step brought, before the journal has it."""

    def start(self) -> None:
        """Begin."""
        self.task = asyncio.get_running_loop().create_task(self._run())

    def stop(self) -> None:
        """End after the step."""
        self._stopping = True

    def do(self, command: Command) -> None:
        """Run a command between steps."""
        super().do(command)
        self._came.set()

    def add(self, id: str, command: Command) -> None:
        """Run a command that adds a request."""
        super().add(id, command)
        self._came.set()

    def do_for(self, id: str, command: Command) -> None:
        """Run a command about a request."""
        super().do_for(id, command)
        self._came.set()

    @cached_property
    def _came(self) -> asyncio.Event:
        """Set when there is a command."""
        return asyncio.Event()

    async def _run(self) -> None:
        try:
            while not self._stopping:
                self._take_what_came()
                result = self.engine.step()
                self.hear(result.events)
                self._record(result)
                if result.events or self.journal.unwritten:
                    await self._written()
                    if result.events:
                        self.deliver(result.events)
                self._snapshot()
                await self._pause()
        except Exception as error:
            self.failed(error)

    async def _pause(self) -> None:
        """The time of a step, or until there is something to do."""
        if self.engine.busy or self._came.is_set():
            self._came.clear()
            await asyncio.sleep(_STEP_S)
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(_IDLE_S):
                await self._came.wait()

    async def _written(self) -> None:
        """Wait until the operating system has the journal's records. Raises OSError."""
        while True:
            try:
                await asyncio.get_running_loop().run_in_executor(None, self.journal.write)
            except OSError:
                if not self.journal.full:
                    raise
                await asyncio.sleep(DISK_FULL_PAUSE_S)
            else:
                return

    def _take_what_came(self) -> None:
        while not self._inbox.empty():
            while not self._first.empty():
                self._first.get_nowait()()
            self._inbox.get_nowait()[0]()
        while not self._first.empty():
            self._first.get_nowait()()


class _Nothing:
    """In place of a thread or a process beside the replica that no world needs."""

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def start(self) -> Any:
        """Nothing."""
        return asyncio.sleep(0)

    def stop(self) -> None:
        """Nothing."""

    async def close(self) -> None:
        """Nothing."""


class _NoWatchdog(_Nothing):
    def start(self) -> None:
        """Nothing."""


def install() -> None:
    """Let replicas be made of what runs in the loop."""
    replica_module.EngineLoop = SimulatedEngineLoop  # type: ignore[misc]
    replica_module.Watchdog = _NoWatchdog  # type: ignore[misc,assignment]
    replica_module.TrialClient = _Nothing  # type: ignore[misc,assignment]
    replica_module.gc = SimpleNamespace(collect=int, freeze=int, set_threshold=lambda *_: None)  # type: ignore[attr-defined]
    replica_module.sys = SimpleNamespace(setswitchinterval=lambda _: None)  # type: ignore[attr-defined]


def make_engine(script: Script, blocks: int = _BLOCKS) -> Engine:
    """The real engine over the script."""
    limits = EngineLimits(CONTEXT, max_running=8, budget=256)
    return Engine(ScriptedExecutor(script), GroupedPool([(blocks, 0)]), limits, "d" * 64)  # type: ignore[arg-type]


async def serve_replica(
    name: str, address: str, folder: Path, model: GatewayModel, script: Script, opened: Callable[[Replica], None]
) -> None:
    """Run a replica until it fails or its process dies. `opened` is called with it."""
    options = ReplicaOptions(
        model=Path("/"), address=address, data=folder, name=name, link_key=LINK_KEY, served=model.name, drain_s=2.0
    )
    loop = asyncio.get_running_loop()
    journal = await loop.run_in_executor(None, Journal, folder)
    grammars: Any = SimpleNamespace(compiler=None)
    assembled = AssembledEngine(
        make_engine(script),
        ServedModel(model.name, "d" * 64, model.text_digest, "float32", script.vocabulary),
        Layout(BLOCK_TOKENS, ()),
        Capacity((_BLOCKS,), CONTEXT, 8),
        iter(()),
        grammars,
        "exact",
    )
    replica = Replica(options, assembled, journal)
    opened(replica)
    try:
        await replica.run()
    finally:
        journal.close()


__all__ = ["LINK_KEY", "Event", "Script", "install", "make_engine", "serve_replica"]
