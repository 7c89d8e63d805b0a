"""The engine's thread does its chores while there is no work; requests do not wait for them."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

from engine.core.output_processor import Event
from engine.server.engine_loop import EngineLoop
from engine.server.journal import Journal
from protocol.requests import Done
from tests.engine.conftest import SCOPES, Bench, generate


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
    loop.do(lambda: bench.engine.add(generate("a", [5, 6, 7], 4), SCOPES))
    go_on.set()
    assert ended.wait(60)
    while "no more chores" not in did:
        assert loop._thread.is_alive()
    loop.stop()
    journal.close()
    assert did == ["chore 0", "answered", "chore 1", "chore 2", "no more chores"]
    assert not failures
