"""A bench with tiers: prompts, their reference, floods that push them out, a disk that can be held up."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import cache
from pathlib import Path

import msgspec
import torch

from engine.core.metrics import memory_load
from prompt_cache.placement.fetch_or_recompute import ComputeRate, FetchOrRecompute, Place, TierRate
from protocol.replicas import TierLoad
from protocol.requests import Segment
from tests.engine.conftest import SCOPES, VOCABULARY, Bench, Run, generate, make_bench
from tests.engine.memory_store import MemoryStore
from tests.waiting import LONG_S

LENGTH = 330
BLOCKS = (LENGTH - 1) // 64
OUTPUT = 5
HOUR = 3600.0


def prompt(length: int = LENGTH, seed: int = 0) -> list[int]:
    return [(i * i * 31 + 17 * i + seed * 7 + length) % VOCABULARY for i in range(length)]


@cache
def cold(folder: Path, length: int = LENGTH, output: int = OUTPUT, seed: int = 0) -> Run:
    """The reference: alone, cold, in one chunk."""
    return make_bench(folder, budget=512).one(generate("alone", prompt(length, seed), output))


def check(run: Run, expected: Run) -> None:
    assert run.tokens == expected.tokens
    assert len(run.logits) == len(expected.logits)
    for ours, theirs in zip(run.logits, expected.logits, strict=True):
        assert torch.equal(ours, theirs)


def dram_load(bench: Bench) -> TierLoad:
    return next(load for load in memory_load(bench.engine) if load.tier == "dram")


def flood(bench: Bench, count: int = 3, length: int = 400) -> None:
    """Let other prompts take all blocks of the device."""
    for number in range(count):
        bench.one(generate(f"flood {bench.engine.steps} {number}", prompt(length, 100 + number), 1, store="hbm"))


def until(condition: Callable[[], object], bench: Bench) -> None:
    """Step until the condition holds."""
    end = time.monotonic() + LONG_S
    while not condition():
        assert time.monotonic() < end, "it does not come about"
        if not bench.engine.busy:
            time.sleep(0.001)
        bench.step()


def fetch_all(bench: Bench) -> None:
    """Let whatever lies on disk be fetched: computing is dear."""
    fast: dict[Place, TierRate] = {"dram": TierRate(0.0, 1e12), "nvme": TierRate(0.0, 1e12)}
    bench.engine.scheduler.tiers.restores.chooser = FetchOrRecompute(fast, ComputeRate(1.0))


def keys_of(bench: Bench) -> list[bytes]:
    """The keys of the prompt's blocks."""
    return bench.engine.input_processor.accept(generate("x", prompt()), SCOPES).first.extend_keys(BLOCKS)[:BLOCKS]


def hold_up_saves(bench: Bench, store: MemoryStore) -> None:
    """Let the disk be busy with the blocks of another project."""
    store.write_gate.clear()
    before = store.writes
    for id in ("busy", "busier"):
        bench.one(generate(id, prompt(seed=9), 1, segments=(Segment(LENGTH, "other"),)))
    until(lambda: store.writes > before, bench)


def purge_by(bench: Bench, how: str, keys: list[bytes]) -> None:
    """Purge the prompt in one of these ways, and let its project be known after that."""
    if how == "purge":
        bench.engine.purge("project", keys)
    elif how == "forget":
        bench.engine.forget("project")
    else:
        bench.engine.introduce(msgspec.structs.replace(SCOPES["project"], data_key=b"k" * 32, retention=60.0))
    if how == "shorten":  # which leaves what is on the device
        bench.engine.pool.forget("project")


def save(bench: Bench, store: MemoryStore) -> None:
    """Have the prompt on disk: it is read a second time."""
    bench.one(generate("first", prompt(), 1))
    bench.one(generate("second", prompt(), 1))
    until(lambda: len(store.records) == BLOCKS and bench.engine.scheduler.tiers.savers[0].idle, bench)
