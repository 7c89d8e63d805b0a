"""Load on an HTTP/1.1 API that answers whole or in events: closed loops, arrivals at a fixed rate, or rounds.

Latency at a fixed rate counts from when a request was due, so that a stall is charged to every request that it delays.
"""

from __future__ import annotations

import asyncio
import os
import re
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Literal, cast

import uvloop
from msgspec import Struct, field

from benchmarks.processes import server_cpu_s

_TEXT = re.compile(rb'"content":\s*"[^"]')
_LAST_CHUNK = b"0\r\n\r\n"
_PATIENCE_S = 30.0


class Load(Struct, frozen=True, kw_only=True):
    """What is asked of `port`, on `core`.

    `closed`: `connections` of which each sends when it has its answer. `open`: `rate` requests a second. `rounds`:
    `connections` at once, and again when all have their answers. `process` is whose CPU time is counted.
    """

    port: int
    process: int
    core: int
    payload: bytes
    kind: Literal["closed", "open", "rounds"] = "closed"
    connections: int = 32
    rate: float = 0.0
    seconds: float = 3.0
    warmup: float = 0.5


class Measured(Struct, frozen=True, kw_only=True):
    """What came of it, all but `warmup`: seconds of each answer, seconds to its first text, CPU seconds."""

    seconds: float
    cpu_s: float
    latencies: list[float] = field(default_factory=list)
    first_texts: list[float] = field(default_factory=list)
    statuses: dict[int, int] = field(default_factory=dict)

    @property
    def answered(self) -> int:
        """Answers with status 200."""
        return self.statuses.get(200, 0)


class _Exchange(asyncio.Protocol):
    """A connection with one request at a time."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._answer: asyncio.Future[int] | None = None
        self._head = bytearray()
        self._left: int | None = None
        self._in_body = False
        self._tail = b""
        self._status = 0
        self.first_text = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is none of asyncio's classes

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        self._end(0)

    async def ask(self, payload: bytes) -> int:
        """The status of the answer, once all of it is here; 0 if the connection was lost."""
        if self._transport is None:
            return 0
        self._head.clear()
        self._in_body, self._left, self._tail, self.first_text = False, None, b"", 0.0
        self._answer = asyncio.get_running_loop().create_future()
        self._transport.write(payload)
        return await self._answer

    def data_received(self, data: bytes) -> None:
        if not self._in_body:
            self._head += data
            end = self._head.find(b"\r\n\r\n")
            if end < 0:
                return
            head, data = bytes(self._head[:end]).lower(), bytes(self._head[end + 4 :])
            self._in_body, self._status = True, int(head[9:12])
            at = head.find(b"content-length:")
            self._left = int(head[at + 15 :].split(b"\r\n", 1)[0]) if at >= 0 else None
        if not self.first_text and _TEXT.search(data):
            self.first_text = time.perf_counter()
        if self._left is not None:
            self._left -= len(data)
            if self._left <= 0:
                self._end(self._status)
            return
        self._tail = (self._tail + data)[-len(_LAST_CHUNK) :]
        if self._tail == _LAST_CHUNK:
            self._end(self._status)

    def _end(self, status: int) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_result(status)


class _Run:
    """One load, from connecting to the last answer."""

    def __init__(self, load: Load) -> None:
        self._load = load
        self._from = self._until = self._cpu = 0.0
        self._latencies: list[float] = []
        self._first_texts: list[float] = []
        self._statuses: dict[int, int] = {}
        self._free: list[_Exchange] = []

    async def measure(self) -> Measured:
        load = self._load
        self._free = [await self._connect() for _ in range(load.connections)]
        began = time.perf_counter()
        self._from, self._until = began + load.warmup, began + load.warmup + load.seconds
        meter = asyncio.create_task(self._meter_cpu())
        if load.kind == "closed":
            await asyncio.gather(*(self._repeat(line) for line in list(self._free)))
        elif load.kind == "open":
            await self._arrive(began)
        else:
            while time.perf_counter() < self._until:
                at = time.perf_counter()
                await asyncio.gather(*(self._one(line, at) for line in list(self._free)))
        await meter
        return Measured(
            seconds=load.seconds,
            cpu_s=self._cpu,
            latencies=self._latencies,
            first_texts=self._first_texts,
            statuses=self._statuses,
        )

    async def _connect(self) -> _Exchange:
        return (await asyncio.get_running_loop().create_connection(_Exchange, "127.0.0.1", self._load.port))[1]

    async def _meter_cpu(self) -> None:
        await asyncio.sleep(self._from - time.perf_counter())
        before = server_cpu_s(self._load.process)
        await asyncio.sleep(self._until - time.perf_counter())
        self._cpu = server_cpu_s(self._load.process) - before

    async def _repeat(self, line: _Exchange) -> None:
        while (now := time.perf_counter()) < self._until:
            await self._one(line, now)

    async def _arrive(self, began: float) -> None:
        running: set[asyncio.Task[None]] = set()
        number = 0
        while (due := began + number / self._load.rate) < self._until:
            await asyncio.sleep(due - time.perf_counter())
            line = self._free.pop() if self._free else await self._connect()
            task = asyncio.create_task(self._borrow(line, due))
            running.add(task)
            task.add_done_callback(running.discard)
            number += 1
        if running:
            await asyncio.wait(running, timeout=_PATIENCE_S)

    async def _borrow(self, line: _Exchange, due: float) -> None:
        await self._one(line, due)
        self._free.append(line)

    async def _one(self, line: _Exchange, due: float) -> None:
        status = await line.ask(self._load.payload)
        end = time.perf_counter()
        # rates count answers in the window; at a fixed rate what was due in it counts, however late
        counted = due >= self._from if self._load.kind == "open" else self._from <= end < self._until
        if self._load.kind == "rounds":
            counted = due >= self._from
        if not counted:
            return
        self._statuses[status] = self._statuses.get(status, 0) + 1
        if status == 200:
            self._latencies.append(end - due)
            if line.first_text:
                self._first_texts.append(line.first_text - due)


def load_when_told(pipe: Connection) -> None:
    """Run each load that comes through the pipe (`benchmarks.processes`)."""
    while True:
        load = pipe.recv()
        os.sched_setaffinity(0, {load.core})
        pipe.send(uvloop.run(_Run(load).measure()))


def memory_mib(process: int) -> float:
    """The process's proportional share of memory (PSS)."""
    lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith("Pss:")) / 1024
