"""Policies of routing on virtual replicas: time to the first token, what is read from caches, bursts of equal prompts.

`python -m benchmarks.routing --trace FILE --generated documents --policies round_robin,least_work,prefix_hash,dualmap,
turnpike --replicas 8 --json OUT` gives each policy the same requests on replicas that `benchmarks.routing_simulator`
describes. `turnpike` is the product's class, `gateway.fleet.router.Router`, as each of `--gateways` workers has one: it
knows its own requests, and of others what heartbeats say each second. `exact` is the same class with the replicas'
caches and queues as they are. The bars: mean and p99 below all policies of others, within 5 % of `exact`, and a hit
share within 10 % of the best. `--bursts` sends 64 equal prompts at once.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.cache_traces import BLOCK, Prompt, Trace, read_trace
from benchmarks.cache_traffic import GENERATORS
from benchmarks.routing_policies import BEAT_S, LOAD_S, POLICIES, Policy, Turnpike, hear_events
from benchmarks.routing_simulator import Job, Machine, Replica, World

NEAR_EXACT, NEAR_BEST_HITS, OF_OPTIMUM, EVEN = 1.05, 0.9, 1.1, 1.5
"""Bars: mean by that of `exact`; hit share by the best; last first token by the optimum; most by mean requests."""
OTHERS = ("round_robin", "least_work", "prefix_hash", "dualmap")


def simulate(
    jobs: Sequence[Job], policy: str, machines: Sequence[Machine], gateways: int, seed: int = 1
) -> tuple[World, list[Policy]]:
    """Run these requests; they are dealt to the gateways at random."""
    world, draw = World.of(machines), random.Random(seed)
    make = POLICIES[policy]
    policies = [
        make(world, gateway, gateways) if issubclass(make, Turnpike) else make(world, gateway)  # type: ignore[arg-type, call-arg]
        for gateway in range(gateways)
    ]
    routers = [one for one in policies if isinstance(one, Turnpike)]
    fresh: dict[int, list[tuple[int, Job]]] = {replica.number: [] for replica in world.replicas}
    """replica -> the requests that it took since its last heartbeat, each with its gateway"""

    def tell(replica: Replica) -> None:
        told[replica.number] = world.now
        for number, router in enumerate(routers):
            router.hear_beat(replica)
            for gateway, job in fresh[replica.number]:
                if gateway != number:
                    router.hear_others(job, replica)
        fresh[replica.number].clear()

    def beat(replica: Replica) -> None:
        tell(replica)
        if world.now < last:
            world.wake(world.now + BEAT_S, lambda: beat(replica))

    def tell_soon(replica: Replica) -> None:
        if routers and not waking[replica.number]:
            waking[replica.number] = True
            world.wake(max(world.now, told[replica.number] + LOAD_S), lambda: tell_load(replica))

    def tell_load(replica: Replica) -> None:
        waking[replica.number] = False
        tell(replica)

    def arrive(job: Job) -> None:
        gateway = draw.randrange(gateways)
        replica = policies[gateway].choose(job)
        replica.submit(job, world.now)
        fresh[replica.number].append((gateway, job))
        tell_soon(replica)

    told, waking = [0.0] * len(machines), [False] * len(machines)
    last = max(job.at for job in jobs)
    for number, replica in enumerate(world.replicas):
        hear_events(replica, tell_soon)
        if routers:
            for router in routers:
                router.hear_beat(replica)
            world.wake(BEAT_S * (number + 1) / len(machines), lambda replica=replica: beat(replica))  # type: ignore[misc]
    for job in jobs:
        world.wake(job.at, lambda job=job: arrive(job))  # type: ignore[misc]
    world.run()
    return world, policies


def figures(jobs: Sequence[Job], world: World, policies: Sequence[Policy]) -> dict[str, Any]:
    """What a policy did."""
    firsts = sorted(job.first - job.at for job in jobs)
    prompt = sum(job.tokens for job in jobs)
    result: dict[str, Any] = {
        "mean_s": round(statistics.fmean(firsts), 4),
        "p50_s": round(firsts[len(firsts) // 2], 4),
        "p99_s": round(firsts[int(len(firsts) * 0.99)], 4),
        "hit_share": round(1 - sum(job.computed for job in jobs) / prompt, 4),
        "computed": sum(replica.computed for replica in world.replicas),
        "busiest": round(max(replica.busy_s for replica in world.replicas) / max(job.ended for job in jobs), 3),
    }
    routers = [one for one in policies if isinstance(one, Turnpike)]
    if routers:
        result["warmed"] = sum(one.warmed for one in routers)
        result["why"] = {why: sum(one.reasons.get(why, 0) for one in routers) for why in routers[0].reasons}
    return result


def jobs_of(trace: Trace, speed: float, seed: int = 1) -> list[Job]:
    """The trace's requests, `speed` times as fast. Where it tells no output, 16 to 1024 tokens are drawn."""
    draw = random.Random(seed)

    def output(prompt: Prompt) -> int:
        return prompt.output or min(1024, max(16, int(draw.lognormvariate(5.3, 0.8))))

    return [Job(prompt.at / speed, prompt.tokens, prompt.blocks, output(prompt)) for prompt in trace.prompts]


def spread(trace: Trace, seconds: float, seed: int = 3) -> Trace:
    """The trace with arrivals later by up to so many seconds: clocks of traces may tick as slowly."""
    draw = random.Random(seed)
    prompts = [Prompt(one.at + draw.random() * seconds, one.tokens, one.blocks, one.output) for one in trace.prompts]
    return Trace(trace.block, sorted(prompts, key=lambda prompt: prompt.at))


def compare(
    trace: Trace, names: Sequence[str], machines: Sequence[Machine], gateways: int, speed: float
) -> dict[str, Any]:
    """The figures of each policy on a trace, and which bars were met."""
    results: dict[str, Any] = {}
    for name in names:
        jobs, began = jobs_of(trace, speed), time.perf_counter()
        world, policies = simulate(jobs, name, machines, gateways)
        results[name] = figures(jobs, world, policies) | {"took_s": round(time.perf_counter() - began, 1)}
    return results | ({"bars": _bars(results)} if "turnpike" in results else {})


def _bars(results: dict[str, Any]) -> dict[str, Any]:
    ours = results["turnpike"]
    others = {name: results[name] for name in OTHERS if name in results}
    bars: dict[str, Any] = {}
    for figure in ("mean_s", "p99_s"):
        best = min(others, key=lambda name: others[name][figure], default="")
        if best:
            ratio = ours[figure] / others[best][figure]
            bars[figure] = {"by_best_other": round(ratio, 3), "best_other": best, "met": ratio < 1}
    if "exact" in results:
        ratio = ours["mean_s"] / results["exact"]["mean_s"]
        bars["by_exact"] = {"value": round(ratio, 3), "bar": NEAR_EXACT, "met": ratio <= NEAR_EXACT}
    best_hits = max(result["hit_share"] for result in results.values())
    if best_hits:
        share = ours["hit_share"] / best_hits
        bars["hits_by_best"] = {"value": round(share, 3), "bar": NEAR_BEST_HITS, "met": share >= NEAR_BEST_HITS}
    return bars


def burst(
    prefix: int, machines: Sequence[Machine], gateways: int, requests: int = 64, tail: int = 20
) -> dict[str, Any]:
    """So many equal prompts at once, on empty replicas: `prefix` tokens of whole blocks and an end of `tail`."""
    block = machines[0].block
    blocks = tuple(range(1, prefix // block + 1))
    jobs = [Job(0.0, prefix + tail, blocks, 64) for _ in range(requests)]
    world, _ = simulate(jobs, "turnpike", machines, gateways)
    counts = [sum(job.replica == replica.number for job in jobs) for replica in world.replicas]
    used = [count for count in counts if count]
    last = max(job.first for job in jobs)
    optimum = min(_spread(prefix, tail, machines[:count], requests) for count in range(1, len(machines) + 1))
    whole = [sum(job.computed > prefix // 2 for job in jobs if job.replica == at) for at in range(len(machines))]
    long = prefix * machines[0].token_s >= 1.0
    over = statistics.fmean(used) if long else statistics.fmean(counts)
    return {
        "prefix_s": round(prefix * machines[0].token_s, 3),
        "requests_by_replica": counts,
        "computed_most_per_replica": max(whole),
        "last_first_token_s": round(last, 4),
        "optimum_s": round(optimum, 4),
        "by_optimum": {"value": round(last / optimum, 3), "bar": OF_OPTIMUM, "met": last <= optimum * OF_OPTIMUM},
        "most_by_mean": {"value": round(max(counts) / over, 3), "bar": EVEN, "met": max(counts) <= EVEN * over},
    }


def _spread(prefix: int, tail: int, machines: Sequence[Machine], requests: int) -> float:
    """The last first token where so many replicas share the requests evenly."""
    world = World.of(machines)
    blocks = tuple(range(1, prefix // machines[0].block + 1))
    jobs = [Job(0.0, prefix + tail, blocks, 64) for _ in range(requests)]
    for number, job in enumerate(jobs):
        world.wake(0.0, lambda job=job, number=number: world.replicas[number % len(machines)].submit(job, 0.0))  # type: ignore[misc]
    world.run()
    return max(job.first for job in jobs)


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.routing", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--trace", type=Path, help="a file in Mooncake's format")
    parser.add_argument("--generated", nargs="*", default=[], choices=sorted(GENERATORS), help="generated traffic")
    parser.add_argument("--policies", default=",".join((*OTHERS, "turnpike", "exact")), help="names, by commas")
    parser.add_argument("--replicas", type=int, default=8)
    parser.add_argument("--gateways", type=int, default=4)
    parser.add_argument("--requests", type=int, default=0, help="first so many of each trace; 0: all")
    parser.add_argument("--speed", type=float, default=1.5, help="how many times as fast requests come")
    parser.add_argument(
        "--spread", type=float, default=0.0, help="requests of the file come at random within so many seconds more"
    )
    parser.add_argument("--slow", type=float, default=1.0, help="the last replica takes so many times as long")
    parser.add_argument("--bursts", action="store_true", help="bursts of 64 equal prompts too")
    parser.add_argument("--json", type=Path, help="write the figures here too")
    options = parser.parse_args()
    names = options.policies.split(",")
    if unknown := [name for name in names if name not in POLICIES]:
        parser.error(f"unknown policy {unknown[0]!r}; there are {', '.join(POLICIES)}")
    traces = {kind: GENERATORS[kind](7) for kind in options.generated}
    if options.trace:
        traces = {options.trace.stem: spread(read_trace(options.trace), options.spread), **traces}
    result: dict[str, Any] = {"benchmark": "routing", "replicas": options.replicas, "gateways": options.gateways}
    result |= {"speed": options.speed, "spread_s": options.spread, "slow": options.slow}
    for name, trace in traces.items():
        kept = Trace(trace.block, trace.prompts[: options.requests or None])
        machine = Machine(block=trace.block)
        machines = [machine] * (options.replicas - 1) + [machine.slower(options.slow)]
        result[name] = compare(kept, names, machines, options.gateways, options.speed)
    if options.bursts:
        machines = [Machine(block=BLOCK)] * options.replicas
        result["bursts"] = [burst(prefix, machines, options.gateways) for prefix in (BLOCK * 24, BLOCK * 40, 0)]
        result["bursts"].append(burst(0, machines, options.gateways, tail=400))
    print(json.dumps(result, indent=2))
    if options.json:
        options.json.write_text(json.dumps(result, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
