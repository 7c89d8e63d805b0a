"""A prompt of 32,768 tokens back from host memory through the engine's own scheduler, beside 32 decoding requests.

`python -m benchmarks.gpu.restore_prompt --json OUT`. The prompt is computed, pushed out of the device's memory by
others, and asked for again: seconds from its admission to its first token, where its tokens were read from, and the
gaps between the others' tokens, alone and meanwhile. Then another prompt comes back at once: the background writer had
no more time for it than the first one took. `--no-writer` leaves the writer out.
"""

from __future__ import annotations

import argparse
import json
import random
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from benchmarks.gpu.random_weights import load_random
from benchmarks.gpu.shapes import write_shape
from engine.core.engine import Engine
from engine.scheduling.step_work import Step
from engine.startup.assembly import assemble
from engine.startup.options import ReplicaOptions
from protocol.replicas import Scope
from protocol.requests import Counts, Done, Generate, Sampling, Segment, Tokens

LENGTH, OTHERS, TOGETHER = 32_768, 2, 32
BLOCKS, BLOCK_BYTES = 1_500, 8 << 20
SCOPES = {"project": Scope("project", b"root" * 8, b"key".ljust(32), retention=3_600.0)}


class Run:
    """What was seen of an engine's steps."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.chance = random.Random(3)
        self.firsts: dict[str, float] = {}
        self.counts: dict[str, Counts] = {}
        self.gaps: list[float] = []
        """ms between steps that gave tokens to decoding requests, whose names begin with o."""
        self.out: list[int] = []
        """Blocks that each step copied out because their places were needed."""
        self._begin_copies, engine.copies.begin = engine.copies.begin, self._count_copies  # type: ignore[method-assign]

    def _count_copies(self, step: Step) -> None:
        self.out.append(len(step.out) - step.ahead)
        self._begin_copies(step)

    @property
    def written(self) -> int:
        """Blocks that were written ahead so far."""
        writer = self.engine.scheduler.tiers.writer
        return 0 if writer is None else writer.written

    def prompt(self, tokens: int) -> list[int]:
        return [self.chance.randrange(100, 100_000) for _ in range(tokens)]

    def add(self, name: str, prompt: list[int], tokens: int) -> None:
        sampling = Sampling(tokens, temperature=0.0)
        segments = (Segment(len(prompt), "project"),)
        self.engine.add(Generate(name, 1, segments, prompt, sampling, credit=1 << 20), SCOPES)

    def until(self, done: Callable[[], bool], limit: float = 60.0) -> None:
        self.gaps, self.out, last, began = [], [], 0.0, time.perf_counter()
        while not done() and time.perf_counter() - began < limit:
            events = self.engine.step().events
            now = time.perf_counter()
            for event in events:
                if isinstance(event, Tokens):
                    self.firsts.setdefault(event.id, now - began)
                elif isinstance(event, Done):
                    self.counts[event.id] = event.counts
            if any(isinstance(event, Tokens) and event.id.startswith("o") for event in events):
                self.gaps += [1e3 * (now - last)] if last else []
                last = now

    def quantiles(self) -> dict[str, float]:
        gaps = self.gaps or [float("nan")]
        return {name: round(float(np.quantile(gaps, at)), 2) for name, at in (("p50", 0.5), ("p99", 0.99), ("max", 1))}


def measure(run: Run) -> dict[str, Any]:
    prompt, others, report = run.prompt(LENGTH), [run.prompt(LENGTH) for _ in range(OTHERS)], dict[str, Any]()
    for name in ("cold", "from the device"):
        run.add(name, prompt, 1)
        run.until(lambda name=name: name in run.counts)  # type: ignore[misc]
        report[name] = {"first_token_s": round(run.firsts[name], 4)}
    for index in range(OTHERS):
        run.add(f"f{index}", others[index], 1)
        run.until(lambda index=index: f"f{index}" in run.counts)  # type: ignore[misc]
    for index in range(TOGETHER):
        run.add(f"o{index}", run.prompt(1_024), 900)
    run.until(lambda: sum(name.startswith("o") for name in run.firsts) == TOGETHER)
    run.until(lambda: len(run.gaps) >= 120)
    report["others alone, ms"] = {**run.quantiles(), "written_ahead": run.written}
    for name, back in (("again", prompt), ("another at once", others[0])):
        began = time.perf_counter()
        run.add(name, back, 1)
        admitted = time.perf_counter() - began
        run.until(lambda name=name: name in run.counts)  # type: ignore[misc]
        report[name] = {
            "first_token_s": round(run.firsts.get(name, float("nan")) + admitted, 4),
            **(msgspec.structs.asdict(run.counts[name]) if name in run.counts else {}),
            "blocks_copied_out_for_room": sum(run.out),
            "written_ahead": run.written,
            "others meanwhile, ms": run.quantiles(),
        }
    return report


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, required=True)
    parser.add_argument("--host-blocks", type=int, default=2_200, help="blocks of 64 tokens that host memory has")
    parser.add_argument("--no-writer", action="store_true", help="no block is copied out before its place is needed")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        options = ReplicaOptions(
            write_shape(Path(folder) / "model", "llama-3.1-8b"), "unix:unused", Path(folder) / "data", "gpu", b"",
            device="cuda", dtype="bfloat16", served="8b", max_running=64, context=40_960,
            kv_memory=BLOCKS * BLOCK_BYTES, dram_memory=args.host_blocks * BLOCK_BYTES,
        )  # fmt: skip
        engine = assemble(options, load_random).engine
        if args.no_writer:
            engine.scheduler.tiers.writer = None
        report = measure(Run(engine))
    print(json.dumps(report))
    args.json.write_text(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
