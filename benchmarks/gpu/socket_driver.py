"""A real replica, a process of its own with random weights, driven over its Unix socket as by a gateway's worker."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import signal
import time
from collections.abc import Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from benchmarks.gpu.timed_requests import SCOPE, Run, Way
from benchmarks.replica_link import ReplicaLink
from protocol.frames import ToGateway
from protocol.replicas import Heartbeat, Hello, Scope
from protocol.requests import Abort, Done, Tokens
from turnpike.commands.engine import replica_options
from turnpike.settings.settings import Settings

_KEY = b"k" * 32
_STOP_S = 60.0
_ABORT_S = 30.0
_BEAT_S = 120.0


def _replica(settings: Settings, parent: int, facts: Connection) -> None:
    """The replica's process. It says what it runs on, once it has loaded the model."""
    import torch  # noqa: PLC0415  # the driver's own process goes without

    from benchmarks.gpu.random_weights import load_random  # noqa: PLC0415
    from engine.models.decoder import Decoder  # noqa: PLC0415
    from engine.server.replica import main  # noqa: PLC0415

    def load(*given: Any, **kept: Any) -> Decoder:
        model = load_random(*given, **kept)
        facts.send((torch.cuda.get_device_name() if settings.device == "cuda" else "cpu", str(torch.__version__)))
        return model

    raise SystemExit(main(replica_options(settings, _KEY, parent), load))


class _Link(ReplicaLink):
    """Hands on what comes of the run that is under way."""

    run: Run | None = None
    steps = 0
    """The replica's, by its last heartbeat."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, hello: Hello) -> None:
        super().__init__(reader, writer, hello)
        self.beaten = asyncio.Event()

    def heard(self, message: ToGateway) -> None:
        if isinstance(message, Tokens | Done):
            if self.run is not None:
                self.run.heard(message)
        elif isinstance(message, Heartbeat):
            self.steps = message.steps
            self.beaten.set()


class SocketDriver:
    """See `Driver`. Times are this side's: with the way over the socket in both directions."""

    way = "socket"

    def __init__(self, settings: Settings, way: Way) -> None:
        """Start the replica of these settings, which listens on a Unix socket, and connect."""
        self.outputs: dict[str, list[int]] = {}
        self._way = way
        self._sent = 0
        self._started = time.time()
        ours, theirs = multiprocessing.Pipe()
        spawned = multiprocessing.get_context("spawn")
        self._process = spawned.Process(target=_replica, args=(settings, os.getpid(), theirs))
        self._process.start()
        theirs.close()
        self._runner = asyncio.Runner()
        try:
            scope = Scope(SCOPE, b"r" * 32, b"d" * 32, retention=float(settings.cache_retention))
            path = Path(settings.listen.removeprefix("unix:"))
            self._link = self._runner.run(_Link.dial(path, _KEY, scope, alive=self._process.is_alive))
            self.ready_s = self.since_start()
            self.machine, self.torch = ours.recv()
        except BaseException:
            self._end_process()
            raise
        self.dtype = self._link.hello.model.dtype

    def since_start(self) -> float:
        """Seconds since just before the replica's process was started."""
        return time.time() - self._started

    def run(self, prompts: Sequence[list[int]], tokens: int, limit: float) -> dict[str, Any]:
        """See `Driver`. Raises ConnectionResetError if the replica ends meanwhile."""
        return self._runner.run(self._run(prompts, tokens, limit))

    async def _run(self, prompts: Sequence[list[int]], tokens: int, limit: float) -> dict[str, Any]:
        link, before = self._link, self._link.steps
        link.run = run = Run(self._sent, prompts, tokens, self._way)
        self._sent += len(prompts)
        self.outputs = run.outputs
        ends = []
        async with asyncio.timeout(limit + _ABORT_S):
            for request in run.requests:
                ends.append(link.begin(request))
                await link.flushed()
        left = limit - (time.perf_counter() - run.began)
        _, waiting = await asyncio.wait(ends, timeout=max(0.0, left))
        took = time.perf_counter() - run.began
        if waiting:
            link.send(*(Abort(one.id) for one, end in zip(run.requests, ends, strict=True) if not end.done()))
            await asyncio.wait(ends, timeout=_ABORT_S)
        for end in ends:
            if end.done():
                end.result()
            else:
                raise TimeoutError(f"a request did not end {_ABORT_S:g} s after it was aborted")
        link.beaten.clear()  # a heartbeat that comes from now on knows of the last step
        await asyncio.wait_for(link.beaten.wait(), _BEAT_S)
        return run.figures(took, link.steps - before, done=not waiting)

    def close(self) -> None:
        """See `Driver`. What the replica holds is freed when this returns."""
        self._runner.run(self._link.close())
        self._end_process()

    def _end_process(self) -> None:
        self._runner.close()
        process = self._process
        if process.is_alive() and process.pid is not None:
            os.kill(process.pid, signal.SIGTERM)
        process.join(_STOP_S)
        if process.is_alive():
            process.kill()
            process.join()
