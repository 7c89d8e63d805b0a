"""Copies between a GPU and host memory in streams of their own, beside the steps.

Both directions of the bus are busy at once, and steps do not wait for them. What keeps copies apart from each other and
from what is computed, block by block:

- The streams begin behind what the device was given before, which may still write to blocks that were given back.
- A block comes back when the former content of its place has left, and when it is itself in host memory.
- A step waits, on the device, before it writes to a block that is still being copied (`before`).

Nobody reads a block that comes back before it was verified, nor one in host memory before it is there: the scheduler
learns of both from `finished`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import torch

from engine.execution.model_runner import BlockCopies, ModelRunner
from engine.execution.stopwatch import Stopwatch
from engine.kernels.host_words import to_host, write_to_host
from engine.scheduling.step_work import Step, Work
from prompt_cache.kv.block_keys import BLOCK_TOKENS
from prompt_cache.kv.grouped_pool import ABSENT, Block

Place: TypeAlias = tuple[int, int]
"""A layer group, and the number of a block in it."""

Pair: TypeAlias = tuple[Block, Block]

_PIECE = 16
"""Blocks that are copied between two events."""
_TELLING = 4
"""Of fewer blocks the time is that of launches."""


@dataclass
class _Copying:
    """The copies of one step."""

    step: Step
    watches: list[tuple[int, Stopwatch]] = field(default_factory=list)
    """(blocks, what times them) for each direction."""
    events: list[torch.cuda.Event] = field(default_factory=list)
    """When all of these have come, all is done."""
    differ: list[tuple[list[int], torch.Tensor]] = field(default_factory=list)
    """For each layer group: indices of the step's `back`, and on the host whether they came back otherwise."""


class StreamedCopies(BlockCopies):
    """Copies in streams: out what a step waits for, out all else, and back; see the module."""

    beside = True

    def __init__(self, runner: ModelRunner, observe: Callable[[int, float], None]) -> None:
        super().__init__(runner, observe)
        self._first = torch.cuda.Stream(runner.device)  # type: ignore[no-untyped-call]
        self._out = torch.cuda.Stream(runner.device)  # type: ignore[no-untyped-call]
        self._back = torch.cuda.Stream(runner.device)  # type: ignore[no-untyped-call]
        self._copying: deque[_Copying] = deque()
        self._on_device: dict[Place, torch.cuda.Event] = {}
        """Blocks of the device that are being copied, and what comes when they are no longer."""
        self._in_host: dict[Place, torch.cuda.Event] = {}
        """Blocks of host memory that are being filled."""

    @property
    def pending(self) -> bool:
        return bool(self._copying)

    def begin(self, step: Step) -> None:
        main = torch.cuda.current_stream(self.runner.device)
        copying = _Copying(step)
        if step.out:
            self._begin_out(copying, main.record_event())
        if step.fresh and self.runner.clears:
            self._wait_for(main, self._on_device.values())
            self.runner.clear(step.fresh)
        if step.back:
            self._begin_back(copying, main.record_event())
        if step.copies:
            self._copying.append(copying)

    def _begin_out(self, copying: _Copying, given: torch.cuda.Event) -> None:
        step = copying.step
        needed = set(_written(step.work))
        first = [pair for pair in step.out if not needed.isdisjoint(_places(pair[0]))]
        if first:
            # The step waits for these, but not for what earlier steps copy out.
            given = self._copy_out(copying, first, self._first, given)
        if len(first) < len(step.out):
            rest = [pair for pair in step.out if needed.isdisjoint(_places(pair[0]))] if first else step.out
            # What comes back begins with the tail of a prompt, whose places were given to it last.
            self._copy_out(copying, rest[::-1] if step.back else rest, self._out, given)

    def _copy_out(
        self, copying: _Copying, pairs: Sequence[Pair], stream: torch.cuda.Stream, given: torch.cuda.Event
    ) -> torch.cuda.Event:
        """Copy these in this stream, once `given` has come. Returns what comes when it is done."""
        runner = self.runner
        with torch.inference_mode(), torch.cuda.stream(stream):
            stream.wait_event(given)
            # Also for who copied the same block before: whoever waits for this copy then need not wait for that one.
            self._wait_for(stream, self._in_the_way([(here, there) for there, here in pairs]))
            with Stopwatch(runner.device) as watch:
                for group, numbers in runner.by_group(pairs):
                    runner.checksums[group].enter(numbers, runner.memories[group])
                for piece in _pieces(pairs):
                    for group, numbers in runner.by_group(piece):
                        if stream is self._first:
                            # Not queued behind the copies of earlier steps.
                            for block, kept in numbers:
                                write_to_host(runner.memories[group].data[block], runner.dram[group].data[kept])
                        else:
                            runner.dram[group].copy(runner.memories[group], numbers)
                    left: torch.cuda.Event = stream.record_event()
                    for there, here in piece:
                        self._on_device.update((place, left) for place in _places(there))
                        self._in_host.update((place, left) for place in _places(here))
        copying.events.append(left)
        copying.watches.append((len(pairs), watch))
        return left

    def _begin_back(self, copying: _Copying, given: torch.cuda.Event) -> None:
        runner, stream, pairs = self.runner, self._back, copying.step.back
        with torch.inference_mode(), torch.cuda.stream(stream):
            stream.wait_event(given)
            # What it waits for before it begins is not counted as copying.
            self._wait_for(stream, self._in_the_way(pairs[:_PIECE]))
            with Stopwatch(runner.device) as watch:
                for piece in _pieces(pairs):
                    self._wait_for(stream, self._in_the_way(piece))
                    for group, numbers in runner.by_group(piece):
                        runner.memories[group].copy(runner.dram[group], numbers)
                for group, numbers in runner.by_group(pairs):
                    places = [at for at, (there, here) in enumerate(pairs) if ABSENT not in (there[group], here[group])]
                    differing = runner.checksums[group].differing(numbers, runner.memories[group]).int()
                    copying.differ.append((places, to_host(differing)[0]))
            came = stream.record_event()
        for _, here in pairs:
            self._on_device.update((place, came) for place in _places(here))
        copying.events.append(came)
        copying.watches.append((len(pairs), watch))

    def _in_the_way(self, pairs: Sequence[Pair]) -> list[torch.cuda.Event]:
        """What must have come before these are copied: pairs (block of host memory, block of the device)."""
        events = [self._in_host.get(place) for there, _ in pairs for place in _places(there)]
        events += [self._on_device.get(place) for _, here in pairs for place in _places(here)]
        return [event for event in events if event is not None]

    def finished(self, *, wait: bool = False) -> list[tuple[Step, list[int]]]:
        done: list[tuple[Step, list[int]]] = []
        while self._copying and (wait or all(map(_has_come, self._copying[0].events))):
            wait = False
            copying = self._copying.popleft()
            for event in copying.events:
                event.synchronize()
            for blocks, watch in copying.watches:
                if blocks >= _TELLING:
                    self.observe(blocks, watch.microseconds())
            bad = {places[at] for places, told in copying.differ for at in told.nonzero().flatten().tolist()}
            done.append((copying.step, sorted(bad)))
        if done:
            self._on_device, self._in_host = _still(self._on_device), _still(self._in_host)
        return done

    def before(self, works: Sequence[Work]) -> None:
        if not self._on_device:
            return
        main = torch.cuda.current_stream(self.runner.device)
        self._wait_for(main, [event for place in _written(works) if (event := self._on_device.get(place))])

    @staticmethod
    def _wait_for(stream: torch.cuda.Stream, events: Iterable[torch.cuda.Event]) -> None:
        for event in {id(event): event for event in events}.values():
            stream.wait_event(event)


def _has_come(event: torch.cuda.Event) -> bool:
    come: bool = event.query()  # type: ignore[no-untyped-call]
    return come


def _still(places: dict[Place, torch.cuda.Event]) -> dict[Place, torch.cuda.Event]:
    """Those of which the event has not come."""
    coming = {id(event) for event in {id(event): event for event in places.values()}.values() if not _has_come(event)}
    return {place: event for place, event in places.items() if id(event) in coming}


def _written(works: Sequence[Work]) -> Iterator[Place]:
    """The blocks of the device that computing these works writes to."""
    for work in works:
        table = work.request.table
        # A decoded token is followed by another one, which may be computed ahead.
        last = min((work.start + work.count) // BLOCK_TOKENS, len(table) - 1)
        for index in range(work.start // BLOCK_TOKENS, last + 1):
            yield from _places(table[index])


def _pieces(pairs: Sequence[Pair]) -> Iterator[Sequence[Pair]]:
    return (pairs[first : first + _PIECE] for first in range(0, len(pairs), _PIECE))


def _places(block: Block) -> Iterable[Place]:
    return ((group, number) for group, number in enumerate(block) if number != ABSENT)
