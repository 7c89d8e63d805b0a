"""Virtual replicas with caches, for policies of routing: what is computed, waited for, decoded, in simulated seconds.

A replica works in steps. A step computes up to `budget` tokens of prompts, in the order of arrival, beside one token of
each request that decodes; it takes a fixed time, and more for each token and row. A prompt reads what the replica's
memory holds of it when its turn comes, from host memory at a price a token. Memory forgets what was unused for longest,
the end of a prefix before its beginning. Requests of the batch lane have their turn where no other waits.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from protocol.requests import Lane


@dataclass(frozen=True, slots=True)
class Machine:
    """A replica's speed and memory. Times in seconds, memory in tokens; `block`: tokens of a block."""

    token_s: float = 100e-6
    step_s: float = 8e-3
    row_s: float = 100e-6
    fetch_s: float = 5e-6
    budget: int = 2048
    hbm: int = 400_000
    dram: int = 1_600_000
    block: int = 512

    def slower(self, factor: float) -> Machine:
        """One that takes `factor` times as long for everything."""
        times = (self.token_s * factor, self.step_s * factor, self.row_s * factor, self.fetch_s * factor)
        return Machine(*times, self.budget, self.hbm, self.dram, self.block)


@dataclass(slots=True, eq=False)
class Job:
    """A request, and what became of it. `blocks` are its prompt's whole blocks; `output` 0: only the prompt is wanted.
    `first`: when its first token came."""

    at: float
    tokens: int
    blocks: tuple[int, ...]
    output: int
    lane: Lane = "standard"
    replica: int = -1
    computed: int = 0
    fetched: int = 0
    left: int = 0
    begun: bool = False
    first: float = math.nan
    ended: float = math.nan
    state: object = None
    """The policy's."""


class Memory:
    """The blocks of one replica, in device and host memory."""

    def __init__(self, machine: Machine) -> None:
        self._device: OrderedDict[int, None] = OrderedDict()
        self._host: OrderedDict[int, None] = OrderedDict()
        self._most = machine.hbm // machine.block, machine.dram // machine.block

    def match(self, blocks: Sequence[int]) -> tuple[int, int]:
        """How many first blocks are held, and how many of these in host memory."""
        host = 0
        for count, block in enumerate(blocks):
            if block in self._host:
                host += 1
            elif block not in self._device:
                return count, host
        return len(blocks), host

    def use(self, blocks: Sequence[int]) -> None:
        """All of these are on the device now, the most recently used ones."""
        device, host = self._device, self._host
        for block in reversed(blocks):
            host.pop(block, None)
            device[block] = None
            device.move_to_end(block)
        while len(device) > self._most[0]:
            gone, _ = device.popitem(last=False)
            host[gone] = None
        while len(host) > self._most[1]:
            host.popitem(last=False)

    def clear(self) -> None:
        self._device.clear()
        self._host.clear()


class Replica:
    """One virtual replica. `wake(at, action)` runs an action at a simulated time."""

    def __init__(self, number: int, machine: Machine, wake: Callable[[float, Callable[[], None]], None]) -> None:
        self.replica = f"replica-{number}"
        self.number = number
        self.machine = machine
        self.memory = Memory(machine)
        self.epoch = 1
        self.prefills: dict[Lane, deque[Job]] = {"interactive": deque(), "standard": deque(), "batch": deque()}
        self.decodes: list[tuple[int, int, Job]] = []
        """(steps at which it ends, serial number, request), a heap."""
        self.busy_s = 0.0
        self.computed = 0
        self.on_begin: Callable[[Job], None] = lambda job: None
        self.on_first: Callable[[Job, float], None] = lambda job, now: None
        self.on_end: Callable[[Job], None] = lambda job: None
        self._wake = wake
        self._steps = 0
        self._serial = itertools.count()
        self._token = 0
        """Which of its wake-ups counts."""
        self._running = False
        self._idle_steps: tuple[float, float] | None = None
        """Since when nothing but decodes runs, and what a step of it takes."""

    # ------------------------------------------------------------ what a policy may look at

    @property
    def queued_tokens(self) -> int:
        """Prompt tokens that are to be computed, by what memory holds now; a prefix that several wait for, once."""
        seen: set[int] = set()
        total = 0
        for jobs in self.prefills.values():
            for job in jobs:
                total += self._uncached(job, seen)
        return total

    def queued_in(self, lane: Lane) -> int:
        """As `queued_tokens`, for one lane."""
        seen: set[int] = set()
        return sum(self._uncached(job, seen) for job in self.prefills[lane])

    def _uncached(self, job: Job, seen: set[int]) -> int:
        if job.begun:
            seen.update(job.blocks)
            return job.left
        held, _ = self.memory.match(job.blocks)
        while held < len(job.blocks) and job.blocks[held] in seen:
            held += 1
        seen.update(job.blocks)
        return max(1, job.tokens - held * self.machine.block)

    def expected_match(self, blocks: Sequence[int]) -> tuple[int, int]:
        """What a request that comes now will find: what is held, or will be computed before it."""
        held, host = self.memory.match(blocks)
        coming: set[int] = set()
        for jobs in self.prefills.values():
            for job in jobs:
                coming.update(job.blocks)
        while held < len(blocks) and blocks[held] in coming:
            held += 1
        return held, host

    # ------------------------------------------------------------ work

    def submit(self, job: Job, now: float) -> None:
        """A request arrives."""
        job.replica = self.number
        self.prefills[job.lane].append(job)
        if not self._running:
            self._step(now)
        elif self._idle_steps is not None:  # it joins at the end of the step that runs
            since, took = self._idle_steps
            done = max(1, math.ceil((now - since) / took - 1e-9))
            self._idle_steps = None
            self._expect(since + done * took, lambda at: self._decoded(at, done, took))

    def _expect(self, at: float, action: Callable[[float], None]) -> None:
        self._token += 1
        token = self._token

        def act() -> None:
            if token == self._token:
                action(at)

        self._wake(at, act)

    def _step(self, now: float) -> None:
        chunk = self._next_chunk(now)
        rows, machine = len(self.decodes), self.machine
        if not chunk and not rows:
            self._running = False
            return
        self._running = True
        took = machine.step_s + rows * machine.row_s
        if chunk:
            took += sum(tokens * machine.token_s + fetch * machine.fetch_s for _, tokens, fetch in chunk)
            self._expect(now + took, lambda at: self._computed(at, chunk, took))
        else:
            steps = max(1, self.decodes[0][0] - self._steps)
            self._idle_steps = now, took
            self._expect(now + steps * took, lambda at: self._decoded(at, steps, took))

    def _next_chunk(self, now: float) -> list[tuple[Job, int, int]]:
        """(request, tokens to compute, tokens to fetch) of a step."""
        room, chunk = self.machine.budget, []
        for jobs in self.prefills.values():
            for job in jobs:
                if room <= 0:
                    return chunk
                fetch = 0
                if not job.begun:
                    held, host = self.memory.match(job.blocks)
                    # at least the last token is computed
                    job.computed = job.left = max(1, job.tokens - held * self.machine.block)
                    fetch = job.fetched = host * self.machine.block
                    job.begun = True
                    self.memory.use(job.blocks[:held])
                    self.on_begin(job)
                tokens = min(room, job.left)
                chunk.append((job, tokens, fetch))
                room -= tokens
            if chunk:
                break  # lower lanes wait
        return chunk

    def _computed(self, now: float, chunk: list[tuple[Job, int, int]], took: float) -> None:
        self._advance(now, 1, took)
        for job, tokens, _ in chunk:
            job.left -= tokens
            self.computed += tokens
            done = job.tokens - job.left
            self.memory.use(job.blocks[: done // self.machine.block])
            if job.left:
                continue
            self.prefills[job.lane].remove(job)
            job.first = now
            self.on_first(job, now)
            if job.output > 1:
                heapq.heappush(self.decodes, (self._steps + job.output - 1, next(self._serial), job))
            else:
                job.ended = now
                self.on_end(job)
        self._step(now)

    def _decoded(self, now: float, steps: int, took: float) -> None:
        self._idle_steps = None
        self._advance(now, steps, steps * took)
        self._step(now)

    def _advance(self, now: float, steps: int, took: float) -> None:
        self.busy_s += took
        self._steps += steps
        while self.decodes and self.decodes[0][0] <= self._steps:
            _, _, job = heapq.heappop(self.decodes)
            job.ended = now
            self.on_end(job)


@dataclass(slots=True)
class World:
    """Replicas under one simulated clock."""

    now: float = 0.0
    replicas: list[Replica] = field(default_factory=list)
    _events: list[tuple[float, int, Callable[[], None]]] = field(default_factory=list)
    _serial: itertools.count[int] = field(default_factory=itertools.count)

    @classmethod
    def of(cls, machines: Sequence[Machine]) -> World:
        """A world with a replica of each of these."""
        world = cls()
        world.replicas = [Replica(number, machine, world.wake) for number, machine in enumerate(machines)]
        return world

    def wake(self, at: float, action: Callable[[], None]) -> None:
        """Run an action at this time."""
        heapq.heappush(self._events, (at, next(self._serial), action))

    def run(self) -> None:
        """Let time pass until nothing is to come."""
        while self._events:
            self.now, _, action = heapq.heappop(self._events)
            action()
