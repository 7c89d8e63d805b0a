"""The engine's thread: chores while there is no work, requests that come while there is."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from engine.core.output_processor import Event
from engine.scheduling.step_work import Work, WorkOutcome
from engine.server.engine_loop import EngineLoop
from engine.server.journal import Journal
from protocol.requests import Done
from tests.engine.conftest import SCOPES, Bench, generate


@dataclass
class Clock:
    now: float = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_request_comes_between_two_chores(bench: Bench, tmp_path: Path):
    chore, go_on, ended = threading.Event(), threading.Event(), threading.Event()
    did: list[str] = []

    def chores() -> Iterator[None]:
        for number in range(3):
            did.append(f"chore {number}")
            chore.set()
            assert go_on.wait(60)
            yield
        did.append("no more chores")

    def deliver(happened: Sequence[Event]) -> None:
        if any(isinstance(event, Done) for event in happened):
            did.append("answered")
            ended.set()

    journal = Journal(tmp_path)
    failures: list[BaseException] = []
    loop = EngineLoop(bench.engine, journal, deliver, failures.append, chores())
    loop.start()
    assert chore.wait(60)
    loop.do(lambda: bench.add(generate("a", [5, 6, 7], 4)))
    go_on.set()
    assert ended.wait(60)
    while "no more chores" not in did:
        assert loop._thread.is_alive()
    loop.stop()
    journal.close()
    assert did == ["chore 0", "answered", "chore 1", "chore 2", "no more chores"]
    assert not failures


def _started(bench: Bench, folder: Path) -> tuple[EngineLoop, Journal, list[BaseException]]:
    failures: list[BaseException] = []
    journal = Journal(folder)
    return EngineLoop(bench.engine, journal, lambda _happened: None, failures.append), journal, failures


def test_requests_are_added_while_a_step_is_computed_and_other_commands_wait(bench: Bench, tmp_path: Path):
    loop, journal, failures = _started(bench, tmp_path)
    did: list[str] = []
    for name, send in (("a", loop.add), ("b", loop.add), ("a", loop.do_for), ("c", loop.add)):
        send(name, lambda told=f"{send.__name__} {name}": did.append(told))  # type: ignore[misc]
    bench.engine.executor.runner.meanwhile(lambda: False)
    assert did == ["add a", "add b"], "an abort changes what the step has to do with, and nothing overtakes it"
    bench.engine.executor.runner.meanwhile(lambda: False)
    assert did == ["add a", "add b"]
    loop.add("d", lambda: did.append("add d"))
    loop.start()
    done = threading.Event()
    loop.do(done.set)
    assert done.wait(60)
    bench.engine.executor.runner.meanwhile(lambda: True)
    loop.stop()
    journal.close()
    assert did == ["add a", "add b", "do_for a", "add c", "add d"]
    assert not failures


def test_an_error_while_a_step_is_computed_ends_the_engine_and_fails_no_step(bench: Bench, tmp_path: Path):
    loop, journal, failures = _started(bench, tmp_path)
    loop.add("a", lambda: 1 // 0)  # type: ignore[arg-type,return-value]
    bench.engine.executor.runner.meanwhile(lambda: False)
    loop.start()
    loop._thread.join(60)
    journal.close()
    assert isinstance(failures[0], ZeroDivisionError)


def test_who_decodes_gets_tokens_while_a_flood_of_requests_is_read(bench: Bench, tmp_path: Path):
    loop, journal, failures = _started(bench, tmp_path)
    bench.engine.executor.runner.on_logits = None
    steps: list[int] = []

    credited: list[bool] = []
    begun, told = threading.Event(), threading.Event()

    def slow() -> None:
        time.sleep(0.005)
        steps.append(bench.engine.steps)
        begun.set()

    loop.add("a", lambda: bench.engine.add(generate("a", [5, 6, 7], 400), SCOPES))
    for _ in range(100):
        loop.add("slow", slow)
    loop.do(told.set)
    loop.start()
    assert begun.wait(60)
    loop.do_for("a", lambda: credited.append(told.is_set()))
    loop.do_for("slow", lambda: credited.append(told.is_set()))
    done = threading.Event()
    loop.do(done.set)
    assert done.wait(60)
    loop.stop()
    journal.close()
    assert steps[-1] - steps[0] > 10, "the flood was read without a step between"
    assert credited == [False, True], "who runs gets its credit amid the flood, who is still to be added after that"
    assert not failures


@pytest.mark.parametrize("idles", [True, False])
def test_commands_between_steps_take_little_of_a_step_while_the_device_idles(bench: Bench, tmp_path: Path, idles: bool):
    """A command takes 1 ms, a step 300: read in one go, a flood would leave the device idle for a third of a step."""
    runner, clock = bench.engine.executor.runner, Clock()
    compute = runner.run
    failures: list[BaseException] = []
    journal = Journal(tmp_path)
    loop = EngineLoop(bench.engine, journal, lambda _happened: None, failures.append, clock=clock)
    steps: list[int] = []
    done = threading.Event()

    def command() -> None:
        clock.now += 0.001
        steps.append(bench.engine.steps)

    def run(works: Sequence[Work]) -> list[WorkOutcome]:
        clock.now += 0.3
        if bench.engine.steps == 3:
            for _ in range(100):
                loop.do(command)
            loop.do(done.set)
        return compute(works)

    runner.on_logits, runner.run, runner.idles_between_steps = None, run, lambda: idles  # type: ignore[method-assign]
    loop.add("a", lambda: bench.engine.add(generate("a", [5, 6, 7], 400), SCOPES))
    loop.start()
    assert done.wait(60)
    loop.stop()
    journal.close()
    longest = max(Counter(steps).values())
    assert (longest <= 26) if idles else (longest == 100)
    assert not failures
