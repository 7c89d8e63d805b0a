"""Fetch or recompute on this machine, live: `python -m benchmarks.fetch_live [--pairs 20] [--json OUT]`.

The demo model's own engine, with its scheduler, its disk tier and its store, gets prompts whose KV lies on disk alone,
as many at once as `--concurrency` says. Compared is the mean time to the first token: as the engine chooses, against
always fetching and always recomputing, in rounds that alternate. The engine begins each round with what `turnpike
calibrate` would tell it of the quick disk. With `quick` the disk is as it is; else it was throttled after that, so that
a block takes 0.5 or 2 times as long to read as to compute.

A way that takes over twice as long as the better one in the first two rounds is left out of the further ones. The ratio
of a pair is ours to the better way's in the same round; bar: a median of at most 1.05.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from benchmarks.startup_time import DEMO
from engine.core.engine import Engine
from engine.startup.assembly import assemble
from engine.startup.options import ReplicaOptions
from prompt_cache.placement.fetch_or_recompute import ComputeRate, FetchOrRecompute, Missing, Place, Plan, TierRate
from prompt_cache.tiers.identity import ScopeAccess
from prompt_cache.tiers.record_store import RecordStore
from protocol.replicas import Scope
from protocol.requests import Generate, Retain, Sampling, Segment
from turnpike.processes import machine_rates

Rule = Literal["ours", "fetch", "recompute"]
CONCURRENCIES = (1, 4, 16, 64)
TOKENS = {1: 2048, 4: 1024, 16: 512, 64: 320}
"""The length of each prompt by how many there are at once."""
DISKS = {"quick": 0.0, "half": 0.5, "double": 2.0}
"""How long a block takes to read, in times that it takes to compute; 0 for as long as it does."""
BAR = 1.05
_PURE_ROUNDS, _LEFT_OUT = 2, 2.0
_SCOPE = Scope("benchmark", b"s" * 32, b"k" * 32, retention=86_400.0)


class Always(FetchOrRecompute):
    """Plans to fetch all blocks, or none."""

    fetches = True

    def plan(
        self, missing: Missing, now: float, *, waiting_tokens: int = 0, sharers: int = 0, reading: int = 0
    ) -> Plan:
        """As `FetchOrRecompute.plan`."""
        blocks = missing.blocks
        return Plan(0, blocks, 0.0, 3600.0) if self.fetches else Plan(blocks, 0, 0.0, 3600.0)


class ThrottledStore:
    """A store whose reads take at least `block_s` a block, one after another, as on a disk of so many bytes/s."""

    def __init__(self, store: RecordStore) -> None:
        self._store = store
        self._lock = threading.Lock()
        self.block_s = 0.0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def read(
        self,
        access: ScopeAccess,
        key: bytes,
        groups: Sequence[int],
        /,
        *,
        into: Mapping[int, memoryview],
        deadline: float,
    ) -> object | None:
        """As `RecordStore.read`."""
        if not self.block_s:
            return self._store.read(access, key, groups, into=into, deadline=deadline)
        with self._lock:
            end = time.monotonic() + self.block_s
            found = self._store.read(access, key, groups, into=into, deadline=deadline)
            time.sleep(max(0.0, end - time.monotonic()))
            return found


class Bench:
    """An engine with its disk, and prompts that lie there."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        options = ReplicaOptions(
            *(DEMO, "unix:none", folder, "benchmark", b""),
            device="cpu",
            kv_memory=2 << 30,
            dram_memory=2 << 30,
            disk_folder=folder / "kv",
            disk_bytes=4 << 30,
        )
        assembled = assemble(options)
        self.engine: Engine = assembled.engine
        self.vocabulary = assembled.model.vocabulary
        disk = next(iter(self.engine.tiers), None)
        assert disk is not None
        disk.store = self.store = ThrottledStore(disk.store)
        self.woken = threading.Event()
        self.engine.call_when_restored(self.woken.set)
        self.block_bytes = self.engine.scheduler.tiers.restores.block_bytes
        self.compute = ComputeRate(1e-3)
        self.disk_rate = TierRate(0.0005, 1e9)
        self._ids = 0

    def prompts(self, count: int, seed: int) -> list[list[int]]:
        """Prompts that nobody had before."""
        draw = random.Random(seed)
        return [[draw.randrange(self.vocabulary - 1) for _ in range(TOKENS[count])] for _ in range(count)]

    def first_tokens(self, prompts: Sequence[Sequence[int]], retain_s: float = 0.0) -> float:
        """Send all at once. The mean seconds until the first token of each."""
        engine, waiting, took = self.engine, set[str](), []
        began = time.perf_counter()
        for tokens in prompts:
            self._ids += 1
            name = str(self._ids)
            waiting.add(name)
            request = Generate(
                id=name,
                attempt=1,
                segments=(Segment(len(tokens), _SCOPE.scope),),
                tokens=list(tokens),
                sampling=Sampling(1, temperature=0.0),
                credit=16,
                retain=(Retain(len(tokens), time.time() + retain_s),) if retain_s else (),
            )
            engine.add(request, {_SCOPE.scope: _SCOPE})
        while waiting:
            for event in self._step():
                name = getattr(event, "id", "")
                if name in waiting and type(event).__name__ == "Done":
                    waiting.discard(name)
                    took.append(time.perf_counter() - began)
        return statistics.mean(took)

    def _step(self) -> Sequence[object]:
        if not self.engine.busy:
            due = self.engine.next_deadline
            self.woken.wait(0.05 if due is None else min(0.05, max(0.0, due - time.time())))
        self.woken.clear()
        return self.engine.step().events

    def save(self, prompts: Sequence[Sequence[int]]) -> None:
        """Have the prompts on disk, and nowhere else."""
        self.first_tokens(prompts, retain_s=7200.0)
        self.settle()
        self.leave_disk_alone()

    def settle(self) -> None:
        """Go on until nothing is under way."""
        saver, restores = self.engine.scheduler.tiers.savers[0], self.engine.scheduler.tiers.restores
        assert saver is not None
        while not saver.idle or restores.fetches or self.engine.busy:
            self._step()

    def leave_disk_alone(self) -> None:
        """Drop what device and host memory hold."""
        self.settle()
        for _ in range(2):
            self.engine.step()
        self.engine.pool.forget(_SCOPE.scope)
        index = self.engine.scheduler.tiers.dram.index
        assert index is not None
        index.forget(_SCOPE.scope)

    def calibrate(self) -> None:
        """Measure what `turnpike calibrate` does: computing a prompt, and the disk with what opens its records."""
        self.first_tokens(self.prompts(4, 98))
        seconds = min(self.first_tokens(self.prompts(1, seed)) for seed in range(3))
        self.compute = ComputeRate(seconds / TOKENS[1])
        disk, sealing = machine_rates.read_disk(self.folder).tier, machine_rates.seal()
        self.disk_rate = TierRate(disk.fixed_s, 1 / (1 / disk.bytes_per_s + 1 / sealing))
        self.leave_disk_alone()

    def _use(self, rule: Rule) -> None:
        memory = TierRate(0.0, self.block_bytes / max(self.engine.costs.rates.copied, 1e-3) * 1e6)
        tiers: dict[Place, TierRate] = {"dram": memory, "nvme": self.disk_rate}
        if rule == "ours":
            chooser = FetchOrRecompute(tiers, self.compute)
        else:
            chooser = Always(tiers, self.compute)
            chooser.fetches = rule == "fetch"
        self.engine.scheduler.tiers.restores.chooser = chooser

    def measure(self, rule: Rule, prompts: Sequence[Sequence[int]]) -> tuple[float, float]:
        """Mean seconds to the first token, and the part of the tokens that came from disk."""
        self._use(rule)
        before = dict(self.engine.scheduler.tiers.restores.read_tokens)
        seconds = self.first_tokens(prompts)
        read = sum(self.engine.scheduler.tiers.restores.read_tokens.values()) - sum(before.values())
        self.leave_disk_alone()
        return seconds, read / sum(map(len, prompts))

    def compare(self, count: int, disk: str, pairs: int) -> dict[str, Any]:
        """Rounds of all ways, each time in another order."""
        prompts = self.prompts(count, 1000 * count)
        self.store.block_s = 0.0
        self._use("recompute")
        self.save(prompts)
        self.store.block_s = DISKS[disk] * 64 * self.compute.token_s
        took: dict[Rule, list[float]] = {"ours": [], "fetch": [], "recompute": []}
        read: list[float] = []
        ratios: list[float] = []
        rules: list[Rule] = ["ours", "fetch", "recompute"]
        for number in range(pairs):
            for rule in rules[number % len(rules) :] + rules[: number % len(rules)]:
                seconds, part = self.measure(rule, prompts)
                took[rule].append(seconds)
                if rule == "ours":
                    read.append(part)
            ratios.append(took["ours"][-1] / min(took[rule][-1] for rule in rules if rule != "ours"))
            if number + 1 == _PURE_ROUNDS:
                best = min(min(took[rule]) for rule in rules if rule != "ours")
                rules = [rule for rule in rules if rule == "ours" or min(took[rule]) <= _LEFT_OUT * best]
        return {
            "pairs": pairs,
            "ratio": round(statistics.median(ratios), 3),
            "ratios": [round(ratio, 2) for ratio in ratios],
            "median_s": {rule: round(statistics.median(seconds), 4) for rule, seconds in took.items()},
            "read_from_disk": round(statistics.median(read), 3),
        }


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.fetch_live", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--pairs", type=int, default=20)
    parser.add_argument("--concurrency", type=int, nargs="+", choices=CONCURRENCIES, default=list(CONCURRENCIES))
    parser.add_argument("--disk", nargs="+", choices=list(DISKS), default=list(DISKS))
    parser.add_argument("--json", type=Path, help="write the figures here too")
    options = parser.parse_args()
    figures: dict[str, Any] = {"benchmark": "fetch_live", "bar": BAR}
    with tempfile.TemporaryDirectory(prefix="turnpike-fetch-") as folder:
        bench = Bench(Path(folder))
        bench.calibrate()
        figures["compute_block_s"] = round(64 * bench.compute.token_s, 5)
        figures["disk_bytes_per_s"] = round(bench.disk_rate.bytes_per_s)
        figures["block_bytes"] = bench.block_bytes
        print(json.dumps(figures), flush=True)
        for disk in options.disk:
            for count in options.concurrency:
                found = figures[f"{disk} {count}"] = bench.compare(count, disk, options.pairs)
                print(disk, count, json.dumps(found), flush=True)
        bench.engine.close(5.0)
    if options.json:
        options.json.write_text(json.dumps(figures, indent=2) + "\n")
    return 0 if all(part["ratio"] <= BAR for part in figures.values() if isinstance(part, dict)) else 1


if __name__ == "__main__":
    sys.exit(main())
