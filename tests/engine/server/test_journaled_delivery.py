"""Delivery waits for the journal's disk; steps do not, as long as not too much waits."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from engine.core.output_processor import Event
from engine.server import journaled_delivery
from engine.server.engine_loop import EngineLoop
from engine.server.journal import Journal
from engine.server.journaled_delivery import JournaledDelivery
from protocol.requests import Began, Counts, Done, Tokens
from tests.engine.conftest import SCOPES, Bench, generate
from tests.waiting import LONG_S


class SlowDisk(Journal):
    """Takes no record until it is let."""

    def __init__(self, folder: Path) -> None:
        self.open = threading.Event()
        self.ended = threading.Event()
        self.broken = False
        super().__init__(folder)

    def write(self) -> None:
        assert self.open.wait(LONG_S)
        if self.broken:
            raise OSError(5, "broken")
        super().write()

    def end(self, done: Done, gateway_epoch: str = "") -> Done:
        self.ended.set()
        return super().end(done, gateway_epoch)


def test_steps_go_on_while_the_disk_takes_no_record_and_nothing_is_delivered_before(
    bench: Bench, tmp_path: Path
) -> None:
    journal, came, answered = SlowDisk(tmp_path), list[Event](), threading.Event()

    def deliver(events: Sequence[Event]) -> None:
        came.extend(events)
        if any(isinstance(event, Done) for event in events):
            answered.set()

    failures: list[BaseException] = []
    bench.engine.executor.runner.on_logits = None
    loop = EngineLoop(bench.engine, journal, deliver, failures.append)
    loop.start()
    loop.do(lambda: bench.engine.add(generate("a", [5, 6, 7], 20), SCOPES))
    assert journal.ended.wait(LONG_S), "the request was computed to its end"
    assert not came
    journal.open.set()
    assert answered.wait(LONG_S)
    loop.stop()
    journal.close()
    assert isinstance(came[0], Began)
    assert [event.start for event in came if isinstance(event, Tokens)] == [*range(20)]
    assert isinstance(came[-1], Done)
    assert not failures


def test_a_journal_that_breaks_later_ends_the_engine_and_nothing_is_delivered(bench: Bench, tmp_path: Path) -> None:
    journal, came, failed = SlowDisk(tmp_path), list[Sequence[Event]](), threading.Event()
    journal.broken = True
    bench.engine.executor.runner.on_logits = None
    loop = EngineLoop(bench.engine, journal, came.append, lambda _: failed.set())
    loop.start()
    loop.do(lambda: bench.engine.add(generate("a", [5, 6, 7], 3), SCOPES))
    assert journal.ended.wait(LONG_S)
    journal.open.set()
    assert failed.wait(LONG_S)
    loop.stop()
    assert not came
    journal.broken = False
    journal.close()


def test_an_engine_that_fails_is_told_of_while_the_disk_has_no_room(bench: Bench, tmp_path: Path) -> None:
    journal, came = SlowDisk(tmp_path), list[Sequence[Event]]()
    failing, failed = threading.Event(), threading.Event()
    bench.engine.executor.runner.on_logits = None
    loop = EngineLoop(bench.engine, journal, came.append, lambda _: failed.set())
    loop.start()
    loop.do(lambda: bench.engine.add(generate("a", [5, 6, 7], 3), SCOPES))
    assert journal.ended.wait(LONG_S), "what it did is to be written"

    def fail() -> None:
        failing.set()
        raise RuntimeError("the engine fails")

    loop.do(fail)
    assert failing.wait(LONG_S)
    journal.full = journal.broken = True
    journal.open.set()
    assert failed.wait(LONG_S)
    loop.stop()
    assert not came, "nothing is delivered that the journal does not have"
    journal.broken = False
    journal.close()


@pytest.mark.parametrize("full", [False, True])
def test_so_much_waits_and_no_more(tmp_path: Path, full: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a full disk nothing may wait: all work waits for room."""
    monkeypatch.setattr(journaled_delivery, "MOST_WAITING", 4)
    journal, came = SlowDisk(tmp_path), list[Sequence[Event]]()
    journal.full = full
    handed = JournaledDelivery(journal, came.append, lambda: None)
    handed.start()
    events = [[Done("a", 1, "stop", Counts(), number)] for number in range(8)]
    put: list[int] = []
    may_wait = 0 if full else 3
    several = threading.Event()

    def put_all() -> None:
        for number, some in enumerate(events):
            if number == may_wait:
                several.set()
            handed.put(some)
            put.append(number)

    step = threading.Thread(target=put_all)
    step.start()
    assert several.wait(LONG_S)
    while not handed.blocked:
        assert step.is_alive()
        time.sleep(0.001)
    assert put == [*range(may_wait)]
    journal.full = False
    journal.open.set()
    step.join(LONG_S)
    handed.close()
    journal.close()
    assert came == events
    assert not handed.blocked
