"""The engine's thread: takes commands, steps the engine, journals what happened, then hands it on.

Nothing is handed on before its counts are written to the journal. While the journal's disk is full, all work waits for
room. When the journal cannot be written for another reason, or the engine itself fails, the thread ends and says so:
the replica then stops rather than work without a record.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import structlog

from engine.core import metrics
from engine.core.engine import Engine, Event, StepResult
from engine.server.journal import Journal
from protocol.replicas import Beat
from protocol.requests import Began, Done

logger = structlog.get_logger("engine.server.engine_loop")

Command = Callable[[], None]
_IDLE_S = 0.5
_SNAPSHOT_S = 0.2
DISK_FULL_PAUSE_S = 0.1
"""How often a journal on a full disk is tried."""


@dataclass
class EngineLoop:
    """`deliver` is called in the engine's thread with what happened, in order; `failed` when it ends by an error."""

    engine: Engine
    journal: Journal
    deliver: Callable[[Sequence[Event]], None]
    failed: Callable[[BaseException], None]
    chores: Iterator[None] = field(default_factory=lambda: iter(()))
    """What is done in the engine's thread, a step at a time, while there is no work; each takes some milliseconds."""
    gateway_of: Callable[[str, int], str] = lambda _id, _attempt: ""
    """The gateway epoch that a request came from, by its id and attempt; called in the engine's thread."""
    beat: Beat = field(init=False)
    """The latest figures, made between steps; any thread may read it."""

    def __post_init__(self) -> None:
        self._inbox: queue.SimpleQueue[Command] = queue.SimpleQueue()
        self._stopping = False
        self._has_chores = True
        self._told_to_stop = threading.Event()
        self._looked = 0.0
        self._last_progress_at: float | None = None
        self._snapshot()
        self._thread = threading.Thread(target=self._main, name="engine", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def do(self, command: Command) -> None:
        """Run a command in the engine's thread, before its next step. Any thread may call this."""
        self._inbox.put(command)

    def stop(self) -> None:
        """End the thread after what it is doing, and wait for it."""
        self._told_to_stop.set()
        self.do(self._stop)
        self._thread.join()

    def stalled_for(self) -> float:
        """Seconds since a step last ended while there is work, 0 when there is none. Any thread may call this."""
        advanced = self._last_progress_at
        return 0.0 if advanced is None else time.monotonic() - advanced

    def _stop(self) -> None:
        self._stopping = True

    def _main(self) -> None:
        try:
            while not self._stopping:
                self._take_commands()
                if self._last_progress_at is None:
                    self._last_progress_at = time.monotonic()
                result = self.engine.step()
                if result.ran or result.events:
                    self._last_progress_at = time.monotonic()
                self._record(result)
                if not self._write():
                    return
                if result.events:
                    self.deliver(result.events)
                if not self.engine.busy or time.monotonic() - self._looked > _SNAPSHOT_S:
                    self._snapshot()
        except BaseException as error:
            logger.exception("the engine stopped")
            self.failed(error)
        finally:
            self._last_progress_at = None

    def _take_commands(self) -> None:
        """Run all commands that are here; when there is no work, wait for one until a deadline is due."""
        command: Command | None = None
        if not self.engine.busy:
            self._last_progress_at = None
            wait, due = 0.0 if self._has_chores else _IDLE_S, self.engine.next_deadline
            if due is not None:
                wait = min(wait, max(0.0, due - time.time()))
            try:
                command = self._inbox.get(timeout=wait)
            except queue.Empty:
                self._do_chore()
                return
        try:
            while True:
                if command is not None:
                    command()
                command = self._inbox.get_nowait()
        except queue.Empty:
            return

    def _do_chore(self) -> None:
        try:
            next(self.chores)
        except StopIteration:
            self._has_chores = False

    def _record(self, result: StepResult) -> None:
        """Note the counts of a step in the journal; each `Done` gets its sequence number here."""
        journal = self.journal
        for index, event in enumerate(result.events):
            if isinstance(event, Began):
                gateway = self.gateway_of(event.id, event.attempt)
                journal.begin(event.id, event.attempt, result.claims.get(event.id, b""), gateway)
            elif isinstance(event, Done) and event.reason != "rejected":
                result.events[index] = journal.end(event, self.gateway_of(event.id, event.attempt))
        if result.progress:
            # Those that ended in this step have said their counts in their `Done`.
            journal.progress((now.id, now.attempt, now.counts) for now in result.progress)

    def _write(self) -> bool:
        """Write the journal, however long its disk is full. False if we were told to stop meanwhile: then what just
        happened must be handed on to nobody. Raises OSError."""
        while True:
            try:
                self.journal.write()
            except OSError:
                if not self.journal.full:
                    raise
            else:
                return True
            self._last_progress_at = time.monotonic()  # who waits for a disk does not stall
            if self._told_to_stop.wait(DISK_FULL_PAUSE_S):
                return False

    def _snapshot(self) -> None:
        engine = self.engine
        self._looked = time.monotonic()
        self.beat = Beat(
            steps=engine.steps,
            running=engine.running,
            waiting=metrics.waiting(engine),
            memory=metrics.memory(engine),
            service=engine.service(),
            metrics=metrics.metrics(engine) | self.journal.metrics(),
        )
