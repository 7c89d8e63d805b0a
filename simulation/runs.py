"""Runs worlds by their seeds, each in a process of its own, forked from one that has all that worlds begin with.

So a seed in a row of thousands does what it does alone: nothing that a world leaves in memory reaches another one.
"""

from __future__ import annotations

import gc
import os
import random
import shutil
import tempfile
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import structlog

from gateway.served_models.served_model import load_served_model
from simulation import process_seams, world
from simulation.checkers import violations
from simulation.loop import Stuck
from simulation.world import Plan, Surroundings, World
from tests.gateway.tiny_model import make_model_folder

_BEGAN_NS = (process_seams.START_S + 3_600) * 10**9
_MEMORY = Path("/dev/shm")


class Result(msgspec.Struct):
    """What a seed came to. `trace`: a digest of every step. `told`: what happened, for people."""

    seed: int
    violations: list[str]
    trace: str
    steps: int
    virtual_s: float
    real_s: float
    requests: int
    faults: list[str]
    told: list[str] = []


class Errors:
    """What the product logged as an error while a world lived, for the report of a seed. A structlog processor."""

    def __init__(self, *, loud: bool) -> None:
        self.loud = loud
        self.lines: list[str] = []

    def __call__(self, _logger: object, level: str, event: structlog.typing.EventDict) -> str:
        """Keep one line."""
        cause = event.pop("exc_info", None)
        line = f"{level}: {event.pop('event', '')} {dict(event)}"
        if cause:
            line += f"\n{traceback.format_exc(limit=-6)}"
        if level in ("error", "exception", "critical") or self.loud:
            self.lines.append(line)
        raise structlog.DropEvent


class Worlds:
    """All that worlds begin with. `close` at the end. `alter`: called in each world's process before it begins."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="simulation-", dir=_MEMORY if _MEMORY.is_dir() else None))
        structlog.configure(processors=[Errors(loud=False)], cache_logger_on_first_use=False)
        self._model = load_served_model(make_model_folder(self.folder / "tiny"))
        world.install()
        self._template, self._accounts = world.stock(self.folder)
        self.run_here(0, Plan(clients=2, requests=2, gateways=2, replicas=2))  # what is made once is made here
        gc.enable()
        gc.collect()
        gc.freeze()

    def close(self) -> None:
        """Remove what they began with."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def run_here(
        self, seed: int, plan: Plan | None = None, *, loud: bool = False, trace_to: Path | None = None
    ) -> Result:
        """Run a world in this process, of which nothing else can be expected after that. `trace_to`: a file for all
        steps."""
        gc.disable()
        errors = Errors(loud=loud)
        structlog.configure(processors=[errors], cache_logger_on_first_use=False)
        root = self.folder / f"world-{seed}-{os.getpid()}"
        world.prepare_folder(root, self._template)
        at = Surroundings(seed, root, _BEGAN_NS)
        at.disk.install()
        at.loop.lines = None if trace_to is None else []
        one = World(
            at, plan or Plan.of(random.Random(f"{seed}/plan")), random.Random(f"{seed}/world"), self._model,
            self._accounts,
        )  # fmt: skip
        began, found = time.perf_counter(), []

        async def live() -> list[str]:
            return await violations(one, await one.run())

        try:
            found = at.run(live())
        except Stuck as error:
            found = [f"the world does not end: {error}", *one.broken_rules]
        except Exception:
            found = [f"the world failed: {traceback.format_exc(limit=-8)}"]
        real_s = time.perf_counter() - began
        if trace_to is not None:
            trace_to.write_text("\n".join(at.loop.lines or ()))
        shutil.rmtree(root, ignore_errors=True)
        told = [*map(str, one.faults), *map(repr, one.seen), *errors.lines] if found or loud else []
        return Result(
            seed, found, at.loop.trace.hexdigest(), at.loop.steps, at.loop.time(), real_s, len(one.seen),
            [fault.split(" ", 1)[1] for fault in one.faults], told,
        )  # fmt: skip

    def run(
        self, seeds: Iterable[int], jobs: int = 1, alter: Callable[[], None] | None = None, **how: Any
    ) -> Iterator[Result]:
        """The results of these seeds, as they come; `jobs` worlds live at once. `alter` is called in each process;
        `how`: see `run_here`."""
        running: dict[int, tuple[int, int]] = {}
        for seed in seeds:
            if len(running) >= jobs:
                yield self._await_one(running)
            reading, writing = os.pipe()
            child = os.fork()
            if not child:
                self._be_world(seed, writing, alter, how)
            os.close(writing)
            running[child] = seed, reading
        while running:
            yield self._await_one(running)

    def _be_world(self, seed: int, writing: int, alter: Callable[[], None] | None, how: dict[str, Any]) -> None:
        """Runs in the child, which ends here: no `finally` of what was killed in the world is run."""
        status = 1
        try:
            if alter is not None:
                alter()
            with os.fdopen(writing, "wb", closefd=False) as pipe:
                pipe.write(msgspec.json.encode(self.run_here(seed, **how)))
            status = 0
        finally:
            os._exit(status)

    @staticmethod
    def _await_one(running: dict[int, tuple[int, int]]) -> Result:
        """The result of the world that was begun first."""
        child, (seed, reading) = next(iter(running.items()))
        del running[child]
        with os.fdopen(reading, "rb") as pipe:
            data = pipe.read()
        os.waitpid(child, 0)
        if not data:
            return Result(seed, ["the process of the world ended without a word"], "", 0, 0.0, 0.0, 0, [])
        return msgspec.json.decode(data, type=Result)
