"""A prompt is looked for on disk before its request is queued, while a start's scan of the folder goes on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from engine.core.engine import Engine
from engine.server import pending_requests
from engine.server.pending_requests import PendingRequests
from tests.engine.conftest import SCOPES, VOCABULARY, Bench, Run, generate, make_bench
from tests.engine.memory_store import MemoryStore
from tests.waiting import LONG_S, until

PROMPT = [(7 * i + i * i) % VOCABULARY for i in range(330)]
BLOCKS = 329 // 64


class DirectLoop:
    """Runs commands at once."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine

    def do_for(self, _id: str, command: Callable[[], None]) -> None:
        command()

    add = do_for


def pending_of(bench: Bench) -> PendingRequests:
    return PendingRequests(cast(Any, DirectLoop(bench.engine)), cast(Any, None))


@pytest.fixture
def store() -> Iterator[MemoryStore]:
    store = MemoryStore()
    yield store
    store.gate.set()
    store.look_gate.set()


async def restarted(model: Path, store: MemoryStore) -> Bench:
    """A replica that has begun to look through its folder, in which the prompt is."""
    before = make_bench(model, swap=16, store=store)
    for id in ("first", "second"):
        before.one(generate(id, PROMPT, 1))

    def saved() -> bool:
        before.step()
        return len(store.records) == BLOCKS

    await until(saved)
    store.scanned = False
    bench = make_bench(model, swap=16, store=store)
    bench.runs["warm"] = Run()
    return bench


async def test_a_prompt_is_found_before_the_scan_gets_to_it(
    tiny_model: Path, store: MemoryStore, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(pending_requests, "LOOK_S", LONG_S)
    bench = await restarted(tiny_model, store)
    pending_of(bench).add(generate("warm", PROMPT, 1), SCOPES)
    assert not bench.engine.busy, "the disk is asked first"
    await until(lambda: bench.engine.busy)
    bench.finish()
    assert bench.counts("warm").read_nvme > 0
    assert len(store.seen) == BLOCKS


async def test_a_disk_that_does_not_answer_is_not_waited_for(tiny_model: Path, store: MemoryStore):
    bench = await restarted(tiny_model, store)
    store.look_gate.clear()
    pending_of(bench).add(generate("warm", PROMPT, 1), SCOPES)
    await until(lambda: bench.engine.busy)
    bench.finish()
    assert bench.counts("warm").read == 0


async def test_what_is_wrong_with_a_request_is_said_by_the_engine(tiny_model: Path, store: MemoryStore):
    bench = await restarted(tiny_model, store)
    pending = pending_of(bench)
    for id, tokens, scopes in (("token", [1 << 40] * 70, SCOPES), ("scope", [1] * 70, {})):
        bench.runs[id] = Run()
        pending.add(generate(id, tokens, 1), scopes)
        await until(lambda: bench.engine.busy)
        bench.finish()
        done = bench.runs[id].done
        assert done is not None
        assert done.reason == "rejected"


async def test_a_request_that_waits_can_be_aborted(tiny_model: Path, store: MemoryStore):
    bench = await restarted(tiny_model, store)
    store.look_gate.clear()
    pending = pending_of(bench)
    message = generate("warm", PROMPT, 1)
    pending.add(message, SCOPES)
    assert pending.cancel("warm", message.attempt) is message
    assert pending.cancel("warm", message.attempt) is None
