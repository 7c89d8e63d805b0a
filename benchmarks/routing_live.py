"""The policies of `benchmarks.routing` on real processes: replicas that keep the simulator's times by the clock.

`python -m benchmarks.routing_live --policies round_robin,turnpike --replicas 4 --json OUT` starts a process for each
replica, which speaks the real protocol and whose engine is scripted: it takes as long as a virtual replica would, a
`--scale`th of it. The gateways' own fleets dial them and send the same requests in open loop, timed from when each was
due. The simulator says beside it what it expects of the same requests on as many replicas. What policies of others know
of queues and caches is what the product's router knows.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import os
import random
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import UUID

from benchmarks.cache_traces import Trace
from benchmarks.cache_traffic import GENERATORS
from benchmarks.routing import figures, jobs_of, simulate
from benchmarks.routing_policies import SLO_S
from benchmarks.routing_simulator import Job, Machine, Replica
from engine.server.routing_load import RoutingLoad
from gateway.fleet.conversation_key import names_of_prompt
from gateway.fleet.fleet import Fleet
from gateway.fleet.replica_link import ReplicaLink
from gateway.fleet.replica_stream import LinkLost
from gateway.fleet.router import Routed, rendezvous
from prompt_cache.kv.block_keys import BLOCK_TOKENS
from protocol.frames import OLDEST_VERSION, VERSION, ToGateway, encode, read_from_gateway
from protocol.prefixes import PREFIX_ENDS, split_names
from protocol.replicas import (
    DECODE_ROW_S,
    DECODE_STEP_S,
    LOAD_S,
    PROMPT_CHUNK,
    PROMPT_TOKEN_S,
    Capacity,
    Dial,
    Heartbeat,
    Hello,
    Layout,
    ServedModel,
    TierLoad,
)
from protocol.requests import Began, Counts, Done, Generate, Sampling, Tokens
from tests.gateway.fake_replica import LINK_KEY

POLICIES = ("round_robin", "least_work", "prefix_hash", "dualmap", "turnpike")
_MODEL, _TEXT = "paced", "t" * 64
_BLOCKS = 512 // BLOCK_TOKENS
"""A trace's block has as many tokens as so many of ours: prompts are this much shorter here."""


def machine(scale: float) -> Machine:
    """A virtual replica whose blocks have `BLOCK_TOKENS` tokens that take as long as the trace's, by the scale."""
    usual = Machine()
    return Machine(
        token_s=usual.token_s * _BLOCKS / scale,
        step_s=usual.step_s / scale,
        row_s=usual.row_s / scale,
        fetch_s=usual.fetch_s * _BLOCKS / scale,
        budget=usual.budget // _BLOCKS,
        hbm=usual.hbm // _BLOCKS,
        dram=usual.dram // _BLOCKS,
        block=BLOCK_TOKENS,
    )


class PacedReplica:
    """A replica's process: the protocol on a socket, the simulator's replica under the loop's clock."""

    def __init__(self, name: str, scale: float) -> None:
        self._loop = asyncio.get_running_loop()
        self._machine = machine(scale)
        self._name = name
        self._engine = Replica(0, self._machine, self._wake)
        self._engine.on_begin, self._engine.on_first, self._engine.on_end = self._begin, self._first, self._end
        self._load = RoutingLoad(lambda: self._machine.token_s, self._changed)
        self._links: dict[asyncio.StreamWriter, tuple[Any, int]] = {}
        self._telling: asyncio.TimerHandle | None = None
        self._told_at = 0.0

    async def connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        model = ServedModel(_MODEL, "d" * 64, _TEXT, "float32", 1 << 20)
        capacity = Capacity((self._machine.hbm // BLOCK_TOKENS,), 1 << 20, 4096)
        layout = Layout(BLOCK_TOKENS, ())
        writer.write(
            encode(Hello(VERSION, OLDEST_VERSION, self._name, 1, os.urandom(16), model, layout, capacity, self._name))
        )
        dial = await read_from_gateway(reader)
        assert isinstance(dial, Dial)
        link = SimpleNamespace(gateway=dial.gateway)
        self._links[writer] = link, 0
        beats = asyncio.create_task(self._beat(writer))
        try:
            while (message := await read_from_gateway(reader)) is not None:
                if isinstance(message, Generate):
                    blocks = tuple(message.tokens[::BLOCK_TOKENS][: len(message.tokens) // BLOCK_TOKENS])
                    job = Job(0.0, len(message.tokens), blocks, message.sampling.max_tokens, message.lane)
                    job.state = writer, message
                    self._load.add(link, message)  # type: ignore[arg-type]
                    self._engine.submit(job, self._loop.time())
        finally:
            beats.cancel()
            self._links.pop(writer, None)

    def _wake(self, at: float, action: Callable[[], None]) -> None:
        self._loop.call_at(at, action)

    def _say(self, job: Job, message: Began | Tokens | Done) -> None:
        writer, _ = job.state  # type: ignore[misc]
        self._load.observe([message])
        self._send(writer, message)

    def _send(self, writer: asyncio.StreamWriter, message: ToGateway) -> None:
        if writer in self._links:
            writer.write(encode(message))

    def _begin(self, job: Job) -> None:
        _, message = job.state  # type: ignore[misc]
        counts = Counts(prompt=job.tokens, computed=job.computed, read_hbm=job.tokens - job.computed)
        self._say(job, Began(message.id, 1, counts))

    def _first(self, job: Job, now: float) -> None:
        _, message = job.state  # type: ignore[misc]
        if job.output:
            self._say(job, Tokens(message.id, 1, 0, [1]))

    def _end(self, job: Job) -> None:
        _, message = job.state  # type: ignore[misc]
        self._say(job, Done(message.id, 1, "length", Counts(job.tokens, job.computed, job.tokens - job.computed), 0))

    def _changed(self) -> None:
        if self._telling is None:
            delay = max(0.0, self._told_at + LOAD_S - self._loop.time())
            self._telling = self._loop.call_later(delay, self._tell)

    def _tell(self) -> None:
        self._telling, self._told_at = None, self._loop.time()
        for writer, (link, since) in list(self._links.items()):
            load, serial = self._load.message_for(link, since)
            self._links[writer] = link, serial
            self._send(writer, load)

    async def _beat(self, writer: asyncio.StreamWriter) -> None:
        speed = self._machine
        metrics = {
            PROMPT_TOKEN_S: speed.token_s,
            DECODE_STEP_S: speed.step_s,
            DECODE_ROW_S: speed.row_s,
            PROMPT_CHUNK: float(speed.budget),
            "turnpike_engine_dram_token_seconds": speed.fetch_s,
            "turnpike_engine_gateways": float(len(self._links)),
        }
        blocks = {"hbm": speed.hbm // BLOCK_TOKENS, "dram": speed.dram // BLOCK_TOKENS}
        memory = tuple(TierLoad(tier, 0, total, 0, 0, total) for tier, total in blocks.items())  # type: ignore[arg-type]
        steps = 0
        while True:
            steps += 1
            self._send(writer, Heartbeat(steps, len(self._engine.decodes), {}, memory, metrics=metrics))
            await asyncio.sleep(1.0)


async def serve(path: str, name: str, scale: float) -> None:
    """Be a replica until killed."""
    server = await asyncio.start_unix_server(PacedReplica(name, scale).connected, path)
    async with server:
        await server.serve_forever()


class Driver:
    """The gateways: a fleet each, and one policy."""

    def __init__(self, addresses: Sequence[str], policy: str, gateways: int) -> None:
        models: Any = SimpleNamespace(find=lambda name: SimpleNamespace(text_digest=_TEXT, folder=""))
        self.fleets = [
            Fleet(addresses, gateway=f"gateway-{number}", link_key=LINK_KEY, models=models)
            for number in range(gateways)
        ]
        self._policy = policy
        self._turn = 0
        self._replicas = len(addresses)

    async def start(self) -> None:
        for fleet in self.fleets:
            fleet.start()
        async with asyncio.timeout(60):
            while any(len(fleet.healthy(_MODEL)) < self._replicas for fleet in self.fleets):  # noqa: ASYNC110
                await asyncio.sleep(0.05)

    async def stop(self) -> None:
        for fleet in self.fleets:
            await fleet.stop()

    async def ask(self, number: int, job: Job, fleet: Fleet, due: float) -> tuple[float, int]:
        """Send a request when it is due: seconds until its first token, and its tokens that were computed."""
        loop = asyncio.get_running_loop()
        await asyncio.sleep(due - loop.time())
        tokens = [block for block in job.blocks for _ in range(BLOCK_TOKENS)] + [number] * (job.tokens % BLOCK_TOKENS)
        names = split_names(names_of_prompt(_PROJECT, "", _MODEL, tokens))
        key = b"%d" % (job.blocks[1] if len(job.blocks) > 1 else number)
        routed = Routed(key=key, tokens=len(tokens), names=names, ends=PREFIX_ENDS[: len(names)])
        sent = fleet.choose(_MODEL, routed, among=self._choose(fleet, routed))
        sampling = Sampling(max_tokens=job.output)
        stream = fleet.generate(sent, (), Generate(str(number), 1, (), tokens, sampling, job.output))
        first, computed = 0.0, 0
        while not isinstance(event := await stream.next(), Done | LinkLost):
            if isinstance(event, Began):
                computed = event.counts.computed
            elif isinstance(event, Tokens):
                first = loop.time() - due
        fleet.end(stream)
        if isinstance(event, LinkLost):
            raise RuntimeError("a replica was lost")
        return first, computed

    def _choose(self, fleet: Fleet, routed: Routed) -> Sequence[ReplicaLink]:
        """The one replica that another policy would take; none for the product's."""
        if self._policy == "turnpike":
            return ()
        links = sorted(fleet.healthy(_MODEL), key=lambda link: link.replica)
        router = fleet.routing.router(_MODEL)
        if self._policy == "round_robin":
            self._turn += 1
            return (links[self._turn % len(links)],)
        work = {link: router.estimate(routed, link.replica) for link in links}
        if self._policy == "least_work":
            return (min(links, key=lambda link: (work[link].wait, link.load)),)
        ranked = sorted(links, key=lambda link: rendezvous(routed.key, link.replica))
        if self._policy == "prefix_hash":
            return (ranked[0],)
        cached, other = sorted(ranked[:2], key=lambda link: -work[link].held)
        if work[cached].held > work[other].held and work[cached].seconds <= SLO_S:
            return (cached,)
        return (min((cached, other), key=lambda link: (work[link].wait, link.load)),)


_PROJECT = UUID(int=1)


def scaled(trace: Trace, requests: int, speed: float) -> list[Job]:
    """The first requests of a trace in blocks of `BLOCK_TOKENS`."""
    jobs = jobs_of(Trace(trace.block, trace.prompts[:requests]), speed)
    for job in jobs:
        job.tokens = len(job.blocks) * BLOCK_TOKENS + max(1, job.tokens % trace.block // _BLOCKS)
    return jobs


@contextmanager
def replicas(count: int, scale: float) -> Iterator[list[str]]:
    """The addresses of so many processes, forked from this one."""
    with tempfile.TemporaryDirectory(prefix="turnpike-routing-") as folder:
        paths = [str(Path(folder) / f"{number}.sock") for number in range(count)]
        forks = multiprocessing.get_context("fork")
        children = [forks.Process(target=_serve, args=(path, f"replica-{at}", scale)) for at, path in enumerate(paths)]
        for child in children:
            child.start()
        try:
            yield [f"unix:{path}" for path in paths]
        finally:
            for child in children:
                child.kill()
                child.join()


def _serve(path: str, name: str, scale: float) -> None:
    asyncio.run(serve(path, name, scale))


async def measure(
    policy: str, jobs: Sequence[Job], addresses: Sequence[str], options: argparse.Namespace
) -> dict[str, Any]:
    """Send the requests by one policy to replicas that have none of them yet."""
    driver = Driver(addresses, policy, options.gateways)
    try:
        await driver.start()
        draw, began = random.Random(1), asyncio.get_running_loop().time() + 0.5
        asked = [
            driver.ask(number, job, draw.choice(driver.fleets), began + job.at / options.scale)
            for number, job in enumerate(jobs)
        ]
        found = await asyncio.gather(*asked)
    finally:
        await driver.stop()
    firsts = sorted(first for first, _ in found)
    return {
        "mean_s": round(statistics.fmean(firsts), 4),
        "p50_s": round(firsts[len(firsts) // 2], 4),
        "p99_s": round(firsts[int(len(firsts) * 0.99)], 4),
        "hit_share": round(1 - sum(computed for _, computed in found) / sum(job.tokens for job in jobs), 4),
    }


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.routing_live",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--policies", default=",".join(POLICIES), help="names, by commas")
    parser.add_argument("--traffic", default="documents", choices=sorted(GENERATORS))
    parser.add_argument("--replicas", type=int, default=4)
    parser.add_argument("--gateways", type=int, default=2)
    parser.add_argument("--requests", type=int, default=180)
    parser.add_argument(
        "--speed", type=float, default=1.0, help="how many times as fast requests come, beside the scale"
    )
    parser.add_argument("--scale", type=float, default=4.0, help="everything takes so much less time than simulated")
    parser.add_argument("--json", type=Path, help="write the figures here too")
    options = parser.parse_args()
    names = options.policies.split(",")
    if unknown := [name for name in names if name not in POLICIES]:
        parser.error(f"unknown policy {unknown[0]!r}; there are {', '.join(POLICIES)}")
    result: dict[str, Any] = {"benchmark": "routing_live", "replicas": options.replicas, "scale": options.scale}
    trace = GENERATORS[options.traffic](7)
    for name in names:
        jobs = scaled(trace, options.requests, options.speed)
        with replicas(options.replicas, options.scale) as addresses:
            live = asyncio.run(measure(name, jobs, addresses, options))
        jobs = scaled(trace, options.requests, options.speed)
        world, policies = simulate(jobs, name, [machine(1.0)] * options.replicas, options.gateways)
        simulated = figures(jobs, world, policies)
        kept = {figure: round(simulated[figure] / options.scale, 4) for figure in ("mean_s", "p50_s", "p99_s")}
        result[name] = {"live": live, "simulated": kept | {"hit_share": simulated["hit_share"]}}
    orders = {
        kind: sorted(names, key=lambda name: float(result[name][kind]["mean_s"])) for kind in ("live", "simulated")
    }
    result["order"] = orders | {"met": orders["live"] == orders["simulated"]}
    print(json.dumps(result, indent=2))
    if options.json:
        options.json.write_text(json.dumps(result, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
