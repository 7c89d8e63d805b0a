"""Hostile grammars against a real replica: none may end it, or delay another flow's stream.

First come requests without grammars, then as many with a hostile grammar each (`hostile_inputs`), of four flows, eight
at a time. Beside both, another flow streams without a grammar, and one more asks for a new ordinary schema every half
second. Compared is the largest gap between two tokens of the stream. `--first` runs a part of a long run.

    python -m benchmarks.hostile_grammars --count 10000 --json OUT
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import os
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

from benchmarks.hostile_inputs import hostile_grammar
from benchmarks.replica_link import ReplicaLink
from engine.server.replica import main as replica_main
from engine.startup.options import ReplicaOptions
from protocol.frames import ToGateway
from protocol.replicas import Hello, Scope
from protocol.requests import Done, Generate, Sampling, Segment, Tokens

_KEY = b"k" * 32
_AT_A_TIME = 8
_OUTPUT = 24
_STREAM = 200
_EVERY_S = 0.5
_MODEL = Path(__file__).resolve().parent.parent / "models" / "stdlib-qa"


def _replica(model: Path, folder: Path) -> None:
    options = ReplicaOptions(
        model=model, address=f"unix:{folder}/socket", data=folder / "data", name="replica", link_key=_KEY, device="cpu",
        kv_memory=256 << 20,
    )  # fmt: skip
    raise SystemExit(replica_main(options))


class _Link(ReplicaLink):
    """Keeps the gaps between the tokens of the neighbour's streams."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, hello: Hello) -> None:
        super().__init__(reader, writer, hello)
        self.gaps: list[float] = []
        self._last: dict[str, float] = {}

    def heard(self, message: ToGateway) -> None:
        if isinstance(message, Tokens) and message.id.startswith("stream"):
            now = time.monotonic()
            if message.id in self._last:
                self.gaps.append(now - self._last[message.id])
            self._last[message.id] = now

    async def run(self, id: str, flow: str, output: int, grammar: str | None = None) -> Done:
        """Run a request to its end. Raises ConnectionResetError when the replica ends first."""
        tokens = [10 + at for at in range(40)]
        sampling = Sampling(output, temperature=1.0, seed=1)
        segments = (Segment(len(tokens), "bench"),)
        return await self.ask(Generate(id, 1, segments, tokens, sampling, 1 << 20, flow=flow, grammar=grammar))


async def _run(link: _Link, grammars: list[str | None], name: str) -> dict[str, Any]:
    """All of these requests beside the neighbours; what became of them, and how the neighbours fared."""
    link.gaps.clear()
    waiting = list(reversed(list(enumerate(grammars))))
    ends: Counter[str] = Counter()
    ordinary: list[float] = []
    slowest: list[tuple[float, int]] = []
    stopped = asyncio.Event()

    async def hostile(flow: int) -> None:
        while waiting:
            number, grammar = waiting.pop()
            began = time.monotonic()
            try:
                done = await link.run(f"{name}{number}", f"hostile{flow % 4}", _OUTPUT, grammar)
            except ConnectionResetError:
                ends["lost"] += 1
                raise
            ends[done.reason] += 1
            slowest.append((time.monotonic() - began, number))

    async def stream() -> None:
        number = 0
        while not stopped.is_set():
            number += 1
            await link.run(f"stream{name}{number}", "neighbour", _STREAM)

    async def quick() -> None:
        number = 0
        while not stopped.is_set():
            number += 1
            schema = {
                "type": "object",
                "properties": {f"{name} {number}": {"type": "string"}, "b": {"type": "integer"}},
            }
            began = time.monotonic()
            await link.run(f"quick{name}{number}", "quick", 1, json.dumps({"json_schema": schema}))
            ordinary.append(time.monotonic() - began)
            await asyncio.sleep(_EVERY_S)

    began = time.monotonic()
    neighbours = [asyncio.create_task(stream()), asyncio.create_task(quick())]
    await asyncio.gather(*(hostile(flow) for flow in range(_AT_A_TIME)))
    stopped.set()
    await asyncio.gather(*neighbours)
    gaps, ordinary = sorted(link.gaps), sorted(ordinary)
    return {
        "requests": len(grammars),
        "seconds": round(time.monotonic() - began, 1),
        "ends": dict(ends),
        "gap_ms": {"p50": _ms(gaps, 0.5), "p99": _ms(gaps, 0.99), "p999": _ms(gaps, 0.999), "max": _ms(gaps, 1)},
        "ordinary_schema_ms": {"p50": _ms(ordinary, 0.5), "p99": _ms(ordinary, 0.99), "max": _ms(ordinary, 1)},
        "slowest_s": [[round(took, 2), number] for took, number in sorted(slowest)[-3:]],
    }


def _ms(ordered: list[float], part: float) -> float:
    return round(1e3 * ordered[min(len(ordered) - 1, int(part * len(ordered)))], 1) if ordered else 0.0


async def measure(folder: Path, model: Path, first: int, count: int) -> dict[str, Any]:
    """Both runs against one replica."""
    process = multiprocessing.get_context("spawn").Process(target=_replica, args=(model, folder))
    process.start()
    try:
        scope = Scope("bench", b"r" * 32, b"d" * 32)
        link = await _Link.dial(folder / "socket", _KEY, scope, alive=process.is_alive)
        await link.run("warm", "quick", 4, '{"json_schema": {"type": "object"}}')
        without = await _run(link, [None] * min(count, 1000), "without")
        grammars: list[str | None] = [hostile_grammar(number) for number in range(first, first + count)]
        hostile = await _run(link, grammars, "hostile")
        survived = process.is_alive()
        await link.close()
    finally:
        if process.pid is not None and process.is_alive():
            os.kill(process.pid, 15)
        process.join(30)
    return {
        "first": first,
        "count": count,
        "replica_killed": not survived,
        "without": without,
        "hostile": hostile,
        "largest_gap_more_ms": round(hostile["gap_ms"]["max"] - without["gap_ms"]["max"], 1),
    }


def main() -> None:
    """Measure, print, and write JSON if asked to."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--count", type=int, default=10_000)
    parser.add_argument("--first", type=int, default=0, help="seed of the first grammar")
    parser.add_argument("--model", type=Path, default=_MODEL)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        figures = asyncio.run(measure(Path(folder), arguments.model, arguments.first, arguments.count))
    text = json.dumps(figures, indent=2)
    print(text)
    if arguments.json:
        arguments.json.write_text(text)


if __name__ == "__main__":
    main()
