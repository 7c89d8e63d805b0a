"""Fetch or recompute in a seeded simulator: random machines, lengths and loads, noise, disks throttled in the middle.

Clients in a closed loop each want a prompt whose KV lies in DRAM, on disk or in both. A machine has one device that
computes and one link for each tier, each served in turns of pieces. Compared is the mean time until a prompt's KV is
complete: always fetching, always recomputing, and as `prompt_cache/placement/fetch_or_recompute.py` plans.
"""

from __future__ import annotations

import argparse
import heapq
import itertools
import json
import random
import statistics
import sys
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from prompt_cache.placement.fetch_or_recompute import (
    ComputeRate,
    FetchOrRecompute,
    Missing,
    Place,
    TierRate,
)

Rule = Literal["fetch", "recompute", "plan"]
CONCURRENCIES = (1, 4, 16, 64)
BLOCK_TOKENS = 64
PIECE = 16
"""Blocks that are read or computed at a time."""


@dataclass(frozen=True, slots=True)
class Machine:
    """Its rates, how much times vary (sigma of a lognormal), and when the disk becomes how slow."""

    compute: ComputeRate
    tiers: dict[Place, TierRate]
    block_bytes: int
    noise: float
    throttled_at: float
    throttled_to: float
    miscalibrated: float
    """The calibrated disk is this many times as fast as the real one."""


def machine(draw: random.Random) -> Machine:
    """A random machine: from a small CPU to a large GPU, from a network disk to a local one."""
    token_s = 10 ** draw.uniform(-4.7, -3.0)
    # Bytes a token, such that the disk is between ten times slower and ten times faster than computing.
    token_bytes = int(10 ** draw.uniform(3.5, 5.3))
    disk = token_bytes / token_s * 10 ** draw.uniform(-1.0, 1.0)
    return Machine(
        ComputeRate(token_s, token_s / draw.uniform(10_000, 200_000), 10 ** draw.uniform(-3.5, -2.0)),
        {
            "dram": TierRate(10 ** draw.uniform(-4.5, -3.0), disk * 10 ** draw.uniform(0.0, 1.5)),
            "nvme": TierRate(10 ** draw.uniform(-4.0, -2.0), disk),
        },
        token_bytes * BLOCK_TOKENS,
        draw.uniform(0.0, 0.4),
        draw.uniform(0.2, 0.8) if draw.random() < 0.5 else 2.0,
        10 ** draw.uniform(-1.5, -0.3),
        10 ** draw.gauss(0.0, 0.15),
    )


@dataclass(slots=True, eq=False)
class _Prompt:
    missing: Missing
    began: float
    front: int = 0
    """Blocks computed."""
    tail: int = 0
    """Blocks fetched."""
    computing: int = 0
    fetching: int = 0
    waits: bool = False
    """Whether it does not compute now, by plan."""

    @property
    def blocks(self) -> int:
        return self.missing.blocks

    @property
    def left(self) -> Missing:
        """What is neither computed nor fetched; its last blocks may be being read."""
        runs: list[tuple[Place, int]] = []
        skip, keep = self.front, self.blocks - self.front - self.tail
        for place, count in self.missing.runs:
            skipped = min(skip, count)
            taken = min(keep, count - skipped)
            skip, keep = skip - skipped, keep - taken
            if taken:
                runs.append((place, taken))
        return Missing(
            self.missing.start + self.front * BLOCK_TOKENS, tuple(runs), BLOCK_TOKENS, self.missing.block_bytes
        )


@dataclass(slots=True)
class _Server:
    """Serves one piece after another."""

    queue: deque[tuple[float, Callable[[], None]]] = field(default_factory=deque)
    busy: bool = False


class Simulation:
    """One rule on one machine: `clients` of whom each has `rounds` prompts, drawn from `seed`."""

    def __init__(self, machine: Machine, rule: Rule, clients: int, rounds: int, seed: int, horizon: float) -> None:
        self.machine, self.rule, self.horizon = machine, rule, horizon
        self.noise = random.Random(seed + 1)
        self.now = 0.0
        self.took: list[float] = []
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self._device = _Server()
        self._links: dict[Place, _Server] = {place: _Server() for place in machine.tiers}
        self._computing: dict[_Prompt, int] = {}
        calibrated = {
            place: TierRate(rate.fixed_s, rate.bytes_per_s * (machine.miscalibrated if place == "nvme" else 1.0))
            for place, rate in machine.tiers.items()
        }
        self.chooser = FetchOrRecompute(calibrated, machine.compute)
        draw = random.Random(seed)
        self._prompts = [[self._draw(draw) for _ in range(rounds)] for _ in range(clients)]

    def _draw(self, draw: random.Random) -> Missing:
        blocks = int(2 ** draw.uniform(3.0, 9.0))
        near = draw.choice((0, 0, 0, blocks, draw.randint(0, blocks)))
        runs: tuple[tuple[Place, int], ...] = (("dram", near), ("nvme", blocks - near))
        return Missing(
            draw.choice((0, 0, 2048, 8192)),
            tuple(run for run in runs if run[1]),
            BLOCK_TOKENS,
            self.machine.block_bytes,
        )

    def run(self) -> float:
        """Seconds until a prompt's KV is complete, the mean."""
        for prompts in self._prompts:
            self._next(prompts)
        while self._events:
            self.now, _, happens = heapq.heappop(self._events)
            happens()
        return statistics.mean(self.took)

    def _after(self, seconds: float, happens: Callable[[], None]) -> None:
        heapq.heappush(self._events, (self.now + seconds, next(self._order), happens))

    def _next(self, prompts: list[Missing]) -> None:
        if prompts:
            self._advance(_Prompt(prompts.pop(), self.now), prompts)

    # ------------------------------------------------------------ a prompt

    def _advance(self, prompt: _Prompt, prompts: list[Missing]) -> None:
        """Begin the next pieces of a prompt, or end it."""
        if prompt.blocks and prompt.front + prompt.tail >= prompt.blocks:
            self.took.append(self.now - prompt.began)
            prompt.missing = Missing(0, (), BLOCK_TOKENS, 1)  # pieces under way are of no use any more
            self._computing.pop(prompt, None)
            self._next(prompts)
            return
        if not prompt.blocks:
            return
        compute, fetch = self._wanted(prompt)
        left = prompt.blocks - prompt.front - prompt.tail
        if fetch and not prompt.fetching and left > prompt.computing:
            self._fetch(prompt, min(PIECE, fetch, max(1, left - prompt.computing)), prompts)
        if compute and not prompt.computing:
            self._compute(prompt, min(PIECE, compute, left), prompts)
        if not compute and not prompt.computing:
            self._computing.pop(prompt, None)

    def _wanted(self, prompt: _Prompt) -> tuple[int, int]:
        left = prompt.left
        if self.rule == "fetch":
            return 0, left.blocks
        if self.rule == "recompute":
            return left.blocks, 0
        others = [tokens for other, tokens in self._computing.items() if other is not prompt]
        plan = self.chooser.plan(
            left,
            self.now,
            waiting_tokens=sum(others),
            sharers=len(others),
            reading={"nvme": prompt.fetching * self.machine.block_bytes},
        )
        if plan.compute:
            self._computing[prompt] = plan.compute * BLOCK_TOKENS
        return plan.compute, plan.fetch

    def _compute(self, prompt: _Prompt, blocks: int, prompts: list[Missing]) -> None:
        prompt.computing = blocks
        start, tokens = prompt.missing.start + prompt.front * BLOCK_TOKENS, blocks * BLOCK_TOKENS
        seconds = (self.machine.compute.fixed_s + self.machine.compute.seconds(start, tokens)) * self._noise()

        def done() -> None:
            prompt.computing = 0
            prompt.front += blocks
            self.chooser.computed(start, tokens, seconds)
            self._advance(prompt, prompts)

        self._serve(self._device, seconds, 0.0, done)

    def _fetch(self, prompt: _Prompt, blocks: int, prompts: list[Missing]) -> None:
        [(place, count)] = list(prompt.left.tail(blocks).items())[:1]
        prompt.fetching = count
        size = count * self.machine.block_bytes
        rate = self.machine.tiers[place]
        speed = rate.bytes_per_s
        if place == "nvme" and self.now >= self.machine.throttled_at * self.horizon:
            speed *= self.machine.throttled_to
        piece = self.chooser.begin(place, size, self.now)

        def done() -> None:
            self.chooser.end(place, piece, self.now)
            prompt.fetching = 0
            prompt.tail += count
            self._advance(prompt, prompts)

        self._serve(self._links[place], size / speed * self._noise(), rate.fixed_s, done)
        if self.rule == "plan":

            def look_again(after: float) -> None:
                if piece in self.chooser.pieces(place):
                    self._advance(prompt, prompts)
                    self._after(after, lambda: look_again(1.5 * after))

            expected = self.chooser.fetch_seconds(prompt.left, count, self.now, reading={place: size})
            self._after(expected, lambda: look_again(expected / 2))

    def _noise(self) -> float:
        return self.noise.lognormvariate(0.0, self.machine.noise)

    def _serve(self, server: _Server, seconds: float, latency: float, done: Callable[[], None]) -> None:
        """Serve a piece after those before it; it is there a latency after that, in which others are served."""
        server.queue.append((seconds, lambda: self._after(latency, done)))
        if not server.busy:
            self._serve_next(server)

    def _serve_next(self, server: _Server) -> None:
        server.busy = bool(server.queue)
        if server.queue:
            seconds, done = server.queue.popleft()

            def end() -> None:
                done()
                self._serve_next(server)

            self._after(seconds, end)


def compare(seed: int, clients: int, rounds: int) -> dict[str, float]:
    """The mean seconds of each rule on one random machine. The disk is throttled at a part of the better rule's run."""
    drawn = machine(random.Random(seed))
    results: dict[str, float] = {}
    rules: tuple[Rule, ...] = ("fetch", "recompute", "plan")
    pure = [Simulation(drawn, rule, clients, rounds, seed, 1e9) for rule in rules[:2]]
    horizon = min(simulation.run() * rounds for simulation in pure)
    for rule in rules:
        results[rule] = Simulation(drawn, rule, clients, rounds, seed, horizon).run()
    results["ratio"] = results["plan"] / min(results["fetch"], results["recompute"])
    return results


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.fetch_simulator", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--machines", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--concurrency", type=int, nargs="+", default=list(CONCURRENCIES))
    parser.add_argument("--json", type=Path, help="write the figures here too")
    options = parser.parse_args()
    figures = {}
    for clients in options.concurrency:
        rounds = max(8, 60 // clients)
        ratios = {
            seed: compare(seed, clients, rounds)["ratio"]
            for seed in range(options.seed, options.seed + options.machines)
        }
        worst = max(ratios, key=lambda seed: ratios[seed])
        figures[str(clients)] = {
            "worst": round(ratios[worst], 3),
            "worst_seed": worst,
            "median": round(statistics.median(ratios.values()), 3),
        }
        print(clients, figures[str(clients)], flush=True)
    result = {"benchmark": "fetch_simulator", "machines": options.machines, "slower_at_most": 1.05, "by_load": figures}
    if options.json:
        options.json.write_text(json.dumps(result, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
