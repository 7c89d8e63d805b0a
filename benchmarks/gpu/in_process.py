"""The engine in a thread of the benchmark's own process, its journal on disk, without a socket: for profiles."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity

from benchmarks.gpu.random_weights import load_random
from benchmarks.gpu.timed_requests import SCOPE, Driver, Run, Way
from benchmarks.gpu.workloads import workloads
from engine.core.output_processor import Event
from engine.execution.cuda.experts import experts_touched
from engine.execution.cuda.runner import CudaRunner
from engine.server.engine_loop import EngineLoop
from engine.server.journal import Journal
from engine.startup.assembly import assemble
from protocol.replicas import Scope
from protocol.requests import Done, Tokens
from turnpike.commands.engine import replica_options
from turnpike.settings.settings import Settings

SCOPES = {SCOPE: Scope(SCOPE, b"root" * 8, b"key")}


def process_started() -> float:
    """When this process began, in seconds since the Unix epoch."""
    ticks = int(Path("/proc/self/stat").read_text().rsplit(")", 1)[1].split()[19])
    up = float(Path("/proc/uptime").read_text().split()[0])
    return time.time() - up + ticks / os.sysconf("SC_CLK_TCK")


class InProcessDriver:
    """See `Driver`. Sends requests to an engine in its thread, and waits for their ends."""

    way = "in process"

    def __init__(self, settings: Settings, way: Way) -> None:
        options = replica_options(settings, b"")
        assembled = assemble(options, load_random)
        self.engine = assembled.engine
        self.machine = torch.cuda.get_device_name() if settings.device == "cuda" else "cpu"
        self.torch = str(torch.__version__)
        self.dtype = assembled.model.dtype
        self._events = threading.Condition()
        self._open: set[str] = set()
        self.outputs: dict[str, list[int]] = {}
        self._run: Run | None = None
        self._failure: BaseException | None = None
        self._way = way
        self._sent = 0
        self._started = process_started()
        journal = Journal(options.data)
        self.loop = EngineLoop(self.engine, journal, self._deliver, self._failed, chores=assembled.warm_up)
        self.loop.start()
        self.ready_s = self.since_start()

    def since_start(self) -> float:
        """Seconds since this process began."""
        return time.time() - self._started

    def run(self, prompts: Sequence[list[int]], tokens: int, limit: float) -> dict[str, Any]:
        """See `Driver`."""
        self._run = run = Run(self._sent, prompts, tokens, self._way)
        self._sent += len(prompts)
        self.outputs, self._open = run.outputs, set(run.outputs)
        steps = self.engine.steps
        for request in run.requests:
            self.loop.do(lambda request=request: self.engine.add(request, SCOPES))  # type: ignore[misc]
        with self._events:
            done = self._events.wait_for(lambda: not self._open or self._failure is not None, limit)
        took = time.perf_counter() - run.began
        if self._failure is not None:
            raise self._failure
        if not done:
            for name in list(self._open):
                self.loop.do(lambda name=name: self.engine.abort(name) and None)  # type: ignore[misc]
            with self._events:
                self._events.wait_for(lambda: not self._open, 30)
        return {**run.figures(took, self.engine.steps - steps, done=done), **self._touched()}

    def _touched(self) -> dict[str, float]:
        """How many experts of a layer the last step had, if the model has experts that our kernels compute."""
        runner = self.engine.executor.runner
        experts = experts_touched(runner.fused.mixtures()) if isinstance(runner, CudaRunner) else None
        return {} if experts is None else {"experts_touched": round(experts, 1)}

    def close(self) -> None:
        """See `Driver`."""
        self.loop.stop()

    def _deliver(self, events: Sequence[Event]) -> None:
        ended = False
        for event in events:
            if self._run is not None and isinstance(event, Tokens | Done):
                self._run.heard(event)
            if isinstance(event, Done):
                with self._events:
                    self._open.discard(event.id)
                ended = True
        if ended:
            with self._events:
                self._events.notify_all()

    def _failed(self, error: BaseException) -> None:
        with self._events:
            self._failure = error
            self._events.notify_all()


def profile(driver: Driver, name: str, limit: float) -> None:
    """Print where the GPU's time goes in a run, by kernel, and how much of the run it was busy."""
    prompts, tokens = workloads(7)[name]
    tokens = 24 if name in ("single_decode", "batch32") else tokens
    # Others, so that nothing of what is measured is cached.
    driver.run(workloads(8)[name][0][:8], 4, limit)
    with torch.profiler.profile(activities=[ProfilerActivity.CUDA]) as trace:
        took = driver.run(prompts, tokens, limit)["s"]
    rows = [(event.key, event.self_device_time_total / 1e3, event.count) for event in trace.key_averages()]
    busy = sum(ms for _, ms, _ in rows)
    print(f"profile of {name}: {took * 1e3:.0f} ms, GPU busy {busy:.0f} ms")
    for key, ms, count in sorted(rows, key=lambda row: -row[1])[:14]:
        print(f"  {ms:9.1f} ms {count:7d} x {ms / max(count, 1) * 1e3:8.1f} us  {key[:70]}", flush=True)
