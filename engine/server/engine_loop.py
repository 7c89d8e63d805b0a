"""The engine's thread: runs commands, steps the engine, journals what happened, and has it delivered.

Nothing is delivered before its counts are in the journal (`journaled_delivery`). While the journal's disk is full, all
work waits for room. If the journal cannot be written for another reason, or the engine itself fails, the thread ends
and calls `failed`: the replica then stops rather than work without a record.
"""

from __future__ import annotations

import queue
import sys
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial

import msgspec
import structlog

from engine.core.output_processor import Event, StepResult
from engine.core.stepped_engine import SteppedEngine
from engine.server.journal import Journal
from engine.server.journaled_delivery import JournaledDelivery
from protocol.replicas import Heartbeat
from protocol.requests import WARMING, Began, Done

logger = structlog.get_logger("engine.server.engine_loop")

Command = Callable[[], None]
_IDLE_S = 0.5
_TAKE_S = 0.005
_IDLE_TAKE_S = 0.025
"""Commands are run between two steps for as long as the last step took, without what was used of it to add requests,
and for `_TAKE_S` at least: what is not read yet is in no lane. A flood takes time to be read, in which nobody gets a
token: while a device idles meanwhile, `_IDLE_TAKE_S` at most. With less, a crowd that comes at once is cut into more
and smaller steps, and is served later."""
_SNAPSHOT_S = 0.2
SAVE_S = 5.0
"""Seconds that a stop may take to save what is retained."""


@dataclass
class EngineLoop:
    """`deliver` is called in a thread of its own with what happened, in order; `failed` when the engine's thread ends
    by an error."""

    engine: SteppedEngine
    journal: Journal
    deliver: Callable[[Sequence[Event]], None]
    failed: Callable[[BaseException], None]
    chores: Iterator[None] = field(default_factory=lambda: iter(()))
    """Done a piece at a time while there is no work; a piece takes some milliseconds."""
    gateway_epoch_of: Callable[[str, int], str] = lambda _id, _attempt: ""
    """The gateway epoch that sent a request, by its id and attempt; called in the engine's thread."""
    clock: Callable[[], float] = time.monotonic
    """Seconds."""
    beat: Heartbeat = field(init=False)
    """The latest heartbeat, made between steps; any thread may read it."""

    def __post_init__(self) -> None:
        self._inbox: queue.SimpleQueue[tuple[Command, bool]] = queue.SimpleQueue()
        """Commands in order, and whether one adds a request."""
        self._first: queue.SimpleQueue[Command] = queue.SimpleQueue()
        """Commands about requests that the engine knows: they do not wait for others to be added."""
        self._adding: Counter[str] = Counter()
        """Ids of requests that are in the inbox, and how often."""
        self._adding_lock = threading.Lock()
        self._held: tuple[Command, bool] | None = None
        """What was taken out of the inbox and has to wait for the end of a step."""
        self._failed_meanwhile: BaseException | None = None
        self._step_s = 0.0
        """How long the last step took."""
        self._meanwhile_s = 0.0
        """How much of that was used to add requests."""
        self._stopping = False
        self._has_chores = True
        self._delivery = JournaledDelivery(self.journal, self.deliver, lambda: self.do(_nothing))
        self._snapshot_at = 0.0
        self._last_progress_at: float | None = None
        self.engine.call_when_restored(lambda: self.do(_nothing))
        self.engine.executor.call_while_computing(self._add_while_computing)
        self._snapshot()
        self._thread = threading.Thread(target=self._main, name="engine", daemon=True)

    def start(self) -> None:
        """Start the threads."""
        self._delivery.start()
        self._thread.start()

    def do(self, command: Command) -> None:
        """Run a command in the engine's thread, between steps. Any thread may call this."""
        self._inbox.put((command, False))

    def add(self, id: str, command: Command) -> None:
        """Run a command that adds a request, in its turn, maybe while a step is computed. Any thread may call this."""
        with self._adding_lock:
            self._adding[id] += 1
        self._inbox.put((partial(self._add, id, command), True))

    def do_for(self, id: str, command: Command) -> None:
        """Run a command about a request between steps: after it was added, but before others are. Any thread."""
        with self._adding_lock:
            known = not self._adding[id]
        if known:
            self._first.put(command)
        self._inbox.put((_nothing if known else command, known))

    def _add(self, id: str, command: Command) -> None:
        command()
        with self._adding_lock:
            self._adding[id] -= 1
            if not self._adding[id]:
                del self._adding[id]

    def stop(self) -> None:
        """End the thread after what it is doing, and wait for it."""
        self._delivery.abandon()
        self._stopping = True
        self.do(_nothing)
        self._thread.join()

    def stalled_for(self) -> float:
        """Seconds since a step last ended while there is work, 0 when there is none. Any thread may call this."""
        advanced = self._last_progress_at
        # Waiting for the disk is no stall.
        return 0.0 if advanced is None or self._delivery.blocked else self.clock() - advanced

    def stack(self) -> str:
        """What the thread is at. Any thread may call this."""
        frame = sys._current_frames().get(self._thread.ident or 0)
        return "".join(traceback.format_stack(frame)) if frame is not None else ""

    def _main(self) -> None:
        try:
            while not self._stopping:
                self._take_commands()
                if self._last_progress_at is None:
                    self._last_progress_at = self.clock()
                began, self._meanwhile_s = self.clock(), 0.0
                result = self.engine.step()
                self._step_s = self.clock() - began
                if result.ran or result.events:
                    self._last_progress_at = self.clock()
                self._record(result)
                if result.events or self.journal.unwritten:
                    self._delivery.put(result.events)
                    self._last_progress_at = self.clock()
                self._delivery.check()
                if not self.engine.busy or self.clock() - self._snapshot_at > _SNAPSHOT_S:
                    self._snapshot()
        except BaseException as error:
            logger.exception("the engine stopped")
            self.failed(error)  # first: the replica then stops, and no full disk is waited for any longer
            self._delivery.close()
        finally:
            self._last_progress_at = None
            self._delivery.close()
            self.engine.close(SAVE_S if self._stopping else 0.0)

    def _take_commands(self) -> None:
        """Run the commands that have come, while there is work for a while only. When there is none, wait for a command
        until a timeout is due."""
        if self._failed_meanwhile is not None:
            raise self._failed_meanwhile
        command: Command | None = None
        began, longest_s = self.clock(), max(_TAKE_S, self._step_s - self._meanwhile_s)
        if self._held is None and not self.engine.busy:
            self._last_progress_at = None
            wait, due = 0.0 if self._has_chores else _IDLE_S, self.engine.next_deadline
            if due is not None:
                wait = min(wait, max(0.0, due - time.time()))
            try:
                command, _ = self._inbox.get(timeout=wait)
                began, longest_s = self.clock(), _TAKE_S
            except queue.Empty:
                self._do_chore()
                return
        try:
            while not self._stopping:
                if command is not None:
                    command()
                with suppress(queue.Empty):
                    while True:
                        self._first.get_nowait()()
                if self.engine.busy and self._is_due(self.clock() - began, longest_s):
                    return
                command, _ = self._next_command()
        except queue.Empty:
            return

    def _is_due(self, taken_s: float, longest_s: float) -> bool:
        """Whether the next step should not wait for more commands, after so long."""
        return taken_s > longest_s or (taken_s > _IDLE_TAKE_S and self.engine.executor.idles_between_steps())

    def _next_command(self) -> tuple[Command, bool]:
        """Raises queue.Empty if none has come."""
        held, self._held = self._held, None
        return held or self._inbox.get_nowait()

    def _add_while_computing(self, computed: Callable[[], bool]) -> None:
        """While the device computes a step, add the requests that have come, up to the first command of another kind:
        a request that is added changes nothing that a step has to do with."""
        began = self.clock()
        try:
            while self._held is None and not self._stopping and not computed():
                self._held = self._next_command()
                command, adds = self._held
                if adds:
                    self._held = None
                    command()
        except queue.Empty:
            return
        except BaseException as error:  # no failure of the step
            self._failed_meanwhile = error
        finally:
            self._meanwhile_s += self.clock() - began

    def _do_chore(self) -> None:
        try:
            next(self.chores)
        except StopIteration:
            self._has_chores = False

    def _record(self, result: StepResult) -> None:
        """Journal the counts of a step. Each `Done` gets its sequence number here."""
        journal = self.journal
        for index, event in enumerate(result.events):
            if event.id.startswith(WARMING):
                continue
            if isinstance(event, Began):
                gateway_epoch = self.gateway_epoch_of(event.id, event.attempt)
                journal.begin(event.id, event.attempt, result.claims.get(event.id, b""), gateway_epoch)
                if (delivered := result.delivered.get(event.id)) is not None:
                    journal.delivered(event.id, event.attempt, delivered)
            elif isinstance(event, Done) and event.reason != "rejected":
                result.events[index] = journal.end(event, self.gateway_epoch_of(event.id, event.attempt))
        if result.progress:
            # Requests that ended in this step have their counts in their `Done`; the journal ignores them here.
            journal.progress((entry.id, entry.attempt, entry.counts) for entry in result.progress)

    def _snapshot(self) -> None:
        self._snapshot_at = self.clock()
        beat = self.engine.heartbeat()
        self.beat = msgspec.structs.replace(beat, metrics=beat.metrics | self.journal.metrics())


def _nothing() -> None:
    """What wakes the thread, which then looks what there is to do."""
