"""Ten thousand random interventions, one at each step boundary: no block leaks, every end has its exact counts (E2)."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import pytest

from engine.execution.block_copies import BlockCopies
from engine.execution.model_runner import WorkOutcome
from engine.scheduling.step_work import Work
from prompt_cache.placement.fetch_or_recompute import ComputeRate, FetchOrRecompute, Place, TierRate
from protocol.requests import LANES, Counts, Generate, Lane
from tests.engine.conftest import VOCABULARY, Bench, generate
from tests.engine.memory_store import MemoryStore

Benches = Callable[..., Bench]
OPERATIONS = int(os.environ.get("FUZZ_OPERATIONS", "5000"))
"""10,000 in `make test-long`."""


@dataclass
class Naive:
    """What a request's counts must be, derived from the positions that were computed for it alone."""

    prompt: int
    had: set[int] = field(default_factory=set)
    computed: int = 0
    read: int = 0
    recomputed: int = 0

    def ran(self, start: int, count: int) -> None:
        """The positions before `start` have their KV: what was never computed was read. Then `count` were computed."""
        found = set(range(start)) - self.had
        self.read += sum(position < self.prompt for position in found)
        fresh = set(range(start, start + count)) - self.had - found
        self.computed += sum(position < self.prompt for position in fresh)
        self.recomputed += count - len(fresh)
        self.had |= found | fresh


class Fuzz:
    """An engine whose model is replaced by one that answers at once: everything around the model is tested."""

    def __init__(self, bench: Bench, seed: int) -> None:
        self.bench = bench
        self.random = random.Random(seed)
        self.naive: dict[str, Naive] = {}
        self.delivered: dict[str, int] = {}
        self.sent = 0
        self.checked: dict[str, int] = {}
        runner = bench.engine.runner
        runner.run = self.run  # type: ignore[method-assign]  # the model is not what is tested

    def run(self, works: Sequence[Work]) -> list[WorkOutcome]:
        for work in works:
            if work.request.choice == 0:
                self.naive[work.request.id].ran(work.start, work.count)
        return [WorkOutcome(self.random.randrange(2, VOCABULARY) if work.samples else None) for work in works]

    @property
    def alive(self) -> list[str]:
        return [id for id, run in self.bench.runs.items() if run.done is None]

    def intervene(self) -> None:
        """One random thing that a gateway, a client or the time may do."""
        pick, alive, engine = self.random, self.alive, self.bench.engine
        what = pick.random()
        if what < 0.35 or not alive:
            self.add()
        elif what < 0.52:
            assert engine.abort(pick.choice(alive), pick.choice((None, None, 0, 1)))
        elif what < 0.8:
            id = pick.choice(alive)
            self.delivered[id] = self.delivered.get(id, 0) + pick.randrange(40)
            engine.credit(id, self.delivered[id], self.delivered[id] + 32)
        elif what < 0.87:
            engine.forget("project") if pick.random() < 0.1 else engine.purge("project", ())
        else:
            self.bench.now += pick.random() * 10

    def add(self) -> None:
        pick = self.random
        id = str(self.sent)
        self.sent += 1
        variant = pick.randrange(6)
        shared = [(index + variant) % VOCABULARY for index in range(pick.choice((0, 64, 130, 260)))]
        tokens = shared + [pick.randrange(VOCABULARY) for _ in range(pick.choice((1, 5, 63, 64, 65, 200)))]
        lane: Lane = pick.choice(LANES)
        request: Generate = generate(
            id,
            tokens,
            pick.choice((1, 2, 30, 100, 300)),
            stop_tokens=(7,),
            choices=pick.choice((1, 1, 1, 3)),
            lane=lane,
            flow=f"tenant {pick.randrange(4)}",
            sub_flow=f"key {pick.randrange(2)}",
            weight=pick.choice((1, 1, 3)),
            credit=pick.choice((0, 1, 32, 1 << 20)),
            deadline=self.bench.now + pick.random() * 60 if pick.random() < 0.3 else None,
            read=pick.random() < 0.9,
            store=pick.choice(("all", "all", "all", "hbm", "none")),
        )
        self.naive[id] = Naive(len(tokens))
        self.bench.add(request)

    def check_ended(self) -> None:
        for id, run in list(self.bench.runs.items()):
            if run.done is None:
                continue
            counts, reason, single = run.done.counts, run.done.reason, not run.done.reasons
            self.checked[reason] = self.checked.get(reason, 0) + 1
            if reason == "rejected":
                assert counts == Counts()
            elif single:
                naive = self.naive[id]
                assert counts.computed == naive.computed
                assert counts.recomputed == naive.recomputed
                # What was read counts when the blocks are found; an abort may come before the first step with them.
                assert counts.read == naive.read or (reason in ("abort", "deadline") and counts.read > naive.read)
                if reason in ("stop", "length"):
                    assert counts.prompt == naive.prompt
            del self.bench.runs[id], self.naive[id]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("swap", "disk", "ahead"),
    [(0, False, False), (12, False, False), (24, True, False), (25, True, True)],
    ids=["recompute", "dram", "disk", "written ahead"],
)
def test_random_interventions_leak_nothing_and_counts_are_exact(
    benches: Benches, swap: int, disk: bool, ahead: bool, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(BlockCopies, "beside", ahead)
    store = MemoryStore() if disk else None
    bench = benches(blocks=40, running=8, budget=200, swap=swap, store=store, queue=30)
    # As if computing were far slower than reading, whatever else this machine does.
    rates: dict[Place, TierRate] = {"dram": TierRate(0.0, 1e12), "nvme": TierRate(0.0, 1e12)}
    bench.engine.scheduler.tiers.restores.chooser = FetchOrRecompute(rates, ComputeRate(1.0))
    fuzz = Fuzz(bench, seed=swap)
    for _ in range(OPERATIONS):
        fuzz.intervene()
        bench.step()
        fuzz.check_ended()
    for id in fuzz.alive:
        bench.engine.credit(id, 0, 1 << 20)
    bench.finish()
    fuzz.check_ended()
    assert not bench.runs
    assert bench.engine.pool.referenced_blocks == 0
    assert bench.engine.scheduler.waiting == 0
    assert bench.engine.scheduler.preemptions > 100, "the fuzz was too gentle"
    read = bench.engine.scheduler.tiers.restores.read_tokens
    assert (read["dram"] > 0) == (swap > 0)
    assert (read["nvme"] > 0) == disk
    writer = bench.engine.scheduler.tiers.writer
    assert (writer is not None and writer.written > 100) == ahead
    for reason in ("stop", "length", "abort", "deadline", "rejected"):
        assert fuzz.checked[reason] > 20, f"hardly anything ended by {reason}"
