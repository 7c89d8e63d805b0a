"""Made-up traffic of simulated tenants; each scenario brings out one kind of unfairness."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

from protocol.requests import Lane

TRACE_BLOCK = 512
"""Tokens that one hash of a trace stands for."""


@dataclass(frozen=True)
class Arrival:
    """One request: when it comes (s), what it holds (hashes of `TRACE_BLOCK` tokens each), when it is given up."""

    at: float
    flow: str
    lane: Lane
    prompt: int
    output: int
    hashes: tuple[int, ...]
    cancelled: float | None = None


@dataclass(frozen=True)
class Scenario:
    """Arrivals in order of time, on so many replicas with so many slots and blocks of memory each."""

    name: str
    arrivals: tuple[Arrival, ...]
    replicas: int = 1
    running: int = 64
    blocks: int = 16_384
    short: str = ""
    """The flow whose slowest first token is held against a bar; empty for none."""


class Maker:
    """Makes arrivals with fresh or continued prompts."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.arrivals: list[Arrival] = []
        self._hash = 0

    def fresh(self, tokens: int) -> tuple[int, ...]:
        blocks = -(-tokens // TRACE_BLOCK)
        self._hash += blocks
        return tuple(range(self._hash - blocks, self._hash))

    def add(self, at: float, flow: str, lane: Lane, prompt: int, output: int, **more: object) -> Arrival:
        hashes = more.pop("hashes", None) or self.fresh(prompt)
        made = Arrival(at, flow, lane, prompt, output, hashes, **more)  # type: ignore[arg-type]
        self.arrivals.append(made)
        return made

    def poisson(self, rate: float, start: float, end: float) -> list[float]:
        times, at = [], start
        while (at := at + self.chance.expovariate(rate)) < end:
            times.append(at)
        return times

    def scenario(self, name: str, **options: object) -> Scenario:
        return Scenario(name, tuple(sorted(self.arrivals, key=lambda a: a.at)), **options)  # type: ignore[arg-type]


def on_off(seconds: float, seed: int = 1) -> Scenario:
    """Two tenants that together ask for too much: one always, one in bursts; beside them quiet chats and batch."""
    maker = Maker(seed)
    for at in maker.poisson(4, 0, seconds):
        maker.add(at, "steady", "standard", 4000, 200)
    for start in range(0, int(seconds), 40):
        for at in maker.poisson(12, start, start + 20):
            maker.add(at, "bursts", "standard", 4000, 200)
    for at in maker.poisson(1, 0, seconds):
        maker.add(at, "chat", "interactive", 1000, 100)
    for at in maker.poisson(1, 0, seconds):
        maker.add(at, "nightly", "batch", 4000, 200)
    return maker.scenario("on_off")


def one_against_100(seconds: float, seed: int = 2) -> Scenario:
    """One tenant floods the lanes in which a hundred others ask now and then."""
    maker = Maker(seed)
    for at in maker.poisson(12, 0, seconds):
        maker.add(at, "flood", "standard", 3000, 150)
    for number in range(100):
        lane: Lane = "interactive" if number < 50 else "standard"
        for at in maker.poisson(0.06, 0, seconds):
            maker.add(at, f"small{number}", lane, 1000, 100)
    return maker.scenario("one_against_100")


def prompt_against_output(seconds: float, seed: int = 3) -> Scenario:
    """One tenant's work is in its prompts, the other's in its outputs, both ask for more than half."""
    maker = Maker(seed)
    for at in maker.poisson(5, 0, seconds):
        maker.add(at, "prompts", "standard", 6000, 20)
    for at in maker.poisson(5, 0, seconds):
        maker.add(at, "outputs", "standard", 300, 1500)
    for at in maker.poisson(1, 0, seconds):
        maker.add(at, "chat", "interactive", 1000, 100)
    return maker.scenario("prompt_against_output")


def cancel_storms(seconds: float, seed: int = 4) -> Scenario:
    """Every twenty seconds a tenant sends a hundred requests and gives them up three seconds later."""
    maker = Maker(seed)
    for start in range(0, int(seconds), 20):
        for number in range(100):
            at = start + number * 0.01
            maker.add(at, "storm", "standard", 4000, 500, cancelled=at + 3)
    for flow in ("a", "b"):
        for at in maker.poisson(3, 0, seconds):
            maker.add(at, flow, "standard", 3000, 150)
    for at in maker.poisson(1.5, 0, seconds):
        maker.add(at, "chat", "interactive", 1000, 100)
    return maker.scenario("cancel_storms")


def long_streams(seconds: float, seed: int = 7) -> Scenario:
    """A tenant's streams of 1,500 tokens want every slot four times over; another asks for four tokens at a time."""
    maker = Maker(seed)
    for number in range(256):
        maker.add(number * 0.001, "streams", "standard", 100, 1500)
    for start in range(15, int(seconds), 15):  # as many as end meanwhile
        for number in range(64):
            maker.add(start + number * 0.001, "streams", "standard", 100, 1500)
    for at in maker.poisson(1, 2, seconds):
        maker.add(at, "short", "standard", 100, 4)
    for at in maker.poisson(1, 0, seconds):
        maker.add(at, "chat", "interactive", 1000, 100)
    return maker.scenario("long_streams", short="short")


def eight_replicas(seconds: float, seed: int = 5) -> Scenario:
    """Conversations stick to replicas, unevenly; one tenant has half of them, and its prefixes are hot."""
    maker = Maker(seed)
    lanes: tuple[Lane, ...] = ("interactive", "standard", "standard", "batch")
    for number in range(int(seconds * 14)):
        flow = "wide" if number % 2 else f"narrow{number // 2 % 12}"
        lane = lanes[number // 2 % 12 % 4] if flow != "wide" else "standard"
        _conversation(maker, maker.chance.uniform(0, seconds), flow, lane, 12_000 if flow == "wide" else 6000)
    return maker.scenario("eight_replicas", replicas=8, running=32, blocks=8192)


def conversations(seconds: float, seed: int = 6) -> Scenario:
    """Stands in for a recorded trace where none is given: conversations of several turns, tenants of many sizes."""
    maker = Maker(seed)
    lanes: tuple[Lane, ...] = ("interactive", "interactive", "standard", "batch")
    for at in maker.poisson(1.0, 0, seconds):
        tenant = min(int(maker.chance.paretovariate(0.6)), 40)
        _conversation(maker, at, f"t{tenant}", lanes[tenant % 4], 3000)
    return maker.scenario("conversations", blocks=8192)


def _conversation(maker: Maker, at: float, flow: str, lane: Lane, first: int) -> None:
    prompt, hashes = first, maker.fresh(first)
    for _ in range(maker.chance.randint(1, 5)):
        output = maker.chance.randint(50, 400)
        maker.add(at, flow, lane, prompt, output, hashes=hashes)
        at += maker.chance.uniform(10, 40)
        prompt += output + maker.chance.randint(100, 1000)
        # The block that was not full has other tokens now; the full ones stay.
        hashes = hashes[: (prompt - output) // TRACE_BLOCK] if prompt else hashes
        hashes = hashes + maker.fresh(prompt - len(hashes) * TRACE_BLOCK)


GENERATED: tuple[Callable[..., Scenario], ...] = (
    on_off,
    one_against_100,
    prompt_against_output,
    cancel_storms,
    long_streams,
    eight_replicas,
    conversations,
)
