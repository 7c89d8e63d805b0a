"""Memory of a replica over many requests: `python -m benchmarks.soak --requests 100000 --json OUT`.

A real replica process with a tiny random model gets short requests of many flows and scopes over its socket. Some are
aborted, some end by their deadline, some are read slowly. Its resident memory is read every thousand requests, and a
line is fitted through the readings after the first fifth.

The run fails (exit 1) if the line rises by more than `--bound` bytes a request, if blocks are still held at the end, or
if the counts of the requests do not add up to the replica's own.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
import tempfile
import time
from contextlib import AsyncExitStack
from pathlib import Path

import numpy as np
import psutil

from protocol.replicas import Forget, Scope
from protocol.requests import Abort, Credit, Done, Segment
from tests.engine.conftest import VOCABULARY, generate, write_model
from tests.engine.fake_gateway import Client, ReplicaProcess

AT_ONCE = 96
EACH = 1000
WARM_UP = 0.2


class Soak:
    """Requests kept at `AT_ONCE` until `requests` have ended."""

    def __init__(self, client: Client, process: psutil.Process, requests: int) -> None:
        self.client = client
        self.process = process
        self.requests = requests
        self.random = random.Random(1)
        self.sent = 0
        self.ended: dict[str, int] = {}
        self.counted = {"computed": 0, "read": 0, "output": 0}
        self.readings: list[tuple[int, int]] = []
        self._scopes: list[str] = []

    async def run(self) -> None:
        client = self.client
        while (done := sum(self.ended.values())) < self.requests:
            while self.sent < min(self.requests, done + AT_ONCE):
                self._send()
            message = await client.hear()
            assert message is not None, "the replica hung up"
            if isinstance(message, Done):
                self._ended(message)
            client.beats.clear()

    def _send(self) -> None:
        if self.sent % EACH == 0:
            self._change_scopes()
        name = str(self.sent)
        self.sent += 1
        pick = self.random
        tokens = [pick.randrange(VOCABULARY) for _ in range(pick.choice((3, 20, 60, 150)))]
        if pick.random() < 0.5:
            tokens = [index % VOCABULARY for index in range(pick.choice((64, 130)))] + tokens
        slow = pick.random() < 0.05
        output = pick.randint(1, 12)
        self.client.send(
            generate(
                name,
                tokens,
                output,
                temperature=pick.choice((0.0, 1.0)),
                seed=self.sent,
                segments=(Segment(len(tokens), pick.choice(self._scopes)),),
                flow=f"tenant {pick.randrange(200)}",
                sub_flow=f"key {pick.randrange(5)}",
                lane=pick.choice(("interactive", "standard", "batch")),
                credit=1 if slow else 1 << 20,
                deadline=time.time() + 0.05 if pick.random() < 0.02 else None,
            )
        )
        if slow:
            self.client.send(Credit(name, 1, 1 << 20))
        if pick.random() < 0.05:
            self.client.send(Abort(name, "the client left"))

    def _change_scopes(self) -> None:
        for old in self._scopes[:4]:
            self.client.send(Forget(old))
        fresh = [f"project {self.sent}-{n}" for n in range(4)]
        self._scopes = self._scopes[4:] + fresh
        self.client.send(*(Scope(name, self.random.randbytes(32), b"key") for name in fresh))

    def _ended(self, done: Done) -> None:
        self.ended[done.reason] = self.ended.get(done.reason, 0) + 1
        self.counted["computed"] += done.counts.computed
        self.counted["read"] += done.counts.read_hbm
        self.counted["output"] += done.counts.output
        for kept in (self.client.done, self.client.tokens, self.client.began):
            kept.pop(done.id, None)
        total = sum(self.ended.values())
        if total % EACH == 0:
            self.readings.append((total, self.process.memory_info().rss))
            if total % (10 * EACH) == 0:
                print(f"{total} requests, {self.readings[-1][1] / 2**20:.1f} MiB", file=sys.stderr)


def slope(readings: list[tuple[int, int]]) -> float:
    """Bytes a request of the line fitted through the readings after the warm-up."""
    kept = np.array(readings[int(len(readings) * WARM_UP) :], dtype=np.float64)
    return float(np.polyfit(kept[:, 0], kept[:, 1], 1)[0])


async def soak(requests: int, bound: float) -> dict[str, object]:
    """One run; the figures."""
    with tempfile.TemporaryDirectory(prefix="turnpike-soak-") as name:
        folder = Path(name)
        replica = await ReplicaProcess.start(folder, write_model(folder / "model"), output=folder / "log")
        try:
            async with AsyncExitStack() as stack:
                client = await Client.dial(replica.path)
                stack.push_async_callback(client.close)
                run = Soak(client, psutil.Process(replica.process.pid), requests)
                began = time.perf_counter()
                await run.run()
                took = time.perf_counter() - began
                client.beats.clear()
                await client.until(lambda: len(client.beats) > 1)
                last = client.beats[-1]
                counted = {name: int(last.metrics[f"turnpike_engine_{name}_tokens_total"]) for name in run.counted}
                held = sum(load.referenced for load in last.memory)
                journal = sum(file.stat().st_size for file in replica.data.iterdir())
            status = await replica.stop()
        finally:
            if replica.status is None:  # else this process would wait for it for ever
                await replica.kill()
    rise = slope(run.readings)
    return {
        "requests": requests,
        "requests_per_s": round(requests / took, 1),
        "ended": run.ended,
        "rss_mib": {"first": run.readings[0][1] / 2**20, "last": run.readings[-1][1] / 2**20},
        "slope_bytes_per_request": round(rise, 2),
        "blocks_held_at_the_end": held,
        "journal_bytes_at_the_end": journal,
        "counts_add_up": counted == run.counted,
        "good": rise <= bound and held == 0 and counted == run.counted and status == 0,
    }


def main() -> int:
    """Run and print; 1 when the memory grew or the counts differ."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=100_000)
    parser.add_argument("--bound", type=float, default=32.0, help="bytes a request that the line may rise")
    parser.add_argument("--json", help="write the figures here too")
    given = parser.parse_args()
    if given.requests < 10 * EACH:
        parser.error(f"--requests: at least {10 * EACH}, or there is no line to fit")
    figures = asyncio.run(soak(given.requests, given.bound))
    text = json.dumps(figures, indent=2)
    print(text)
    if given.json:
        Path(given.json).write_text(text + "\n")
    return 0 if figures["good"] else 1


if __name__ == "__main__":
    sys.exit(main())
