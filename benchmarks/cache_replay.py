"""Hit share of eviction policies: a trace through the real index, beside the optimum that knows the future.

A request looks for the longest prefix that is cached, takes blocks for the rest, publishes and frees all. The hit share
is tokens found of tokens asked for, over the whole trace from an empty cache. Only whole blocks are cached, by every
policy. A block of the trace is one block of the pool; the shipped policy runs at its default settings.

`--generated SEED...` replays traces of other traffic too, and `--halves` the file's halves, each from an empty cache.

Last comes the regret of each online policy: by how many points of hit share it is below the best of them, 0 where it is
the best itself; in the mean, in the worst family (a kind of traffic and a capacity, the mean of its seeds), and in the
worst replay. Replays in which all online policies do the same do not count.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TypeAlias

from benchmarks.cache_policies import ONLINE, POLICIES, key_of
from benchmarks.cache_traces import Trace, read_trace
from benchmarks.cache_traffic import generated
from prompt_cache.kv.block_pool import BlockPool
from prompt_cache.placement.eviction_order import NO_PARENT

CAPACITIES = (3_000_000, 10_200_000)
INDISTINCT = 0.01
"""Points of hit share by which policies must differ on a trace for its regret to count."""
Run: TypeAlias = tuple[str, int, dict[str, dict[str, float]]]
"""(trace, capacity in tokens, what each policy reaches)"""


def replay(trace: Trace, policy: str, capacity_tokens: int) -> float:
    """The token-weighted hit share of a policy on a trace, with room for so many tokens."""
    total = max(1, capacity_tokens // trace.block)
    pool = BlockPool(total, order=POLICIES[policy](total, trace))
    found_tokens = 0
    for prompt in trace.prompts:
        keys = [key_of(block) for block in prompt.blocks[:total]]
        table = pool.find(keys)
        pool.share(table)
        found_tokens += len(table) * trace.block
        parent = table[-1] if table else NO_PARENT
        found = len(table)
        for key, block in zip(keys[found:], pool.allocate(len(keys) - found), strict=True):
            parent = pool.publish(block, key, "", parent)
            table.append(parent)
        pool.free(table)
    return found_tokens / max(1, trace.tokens)


def figures(trace: Trace, capacity_tokens: int, policies: Sequence[str]) -> dict[str, dict[str, float]]:
    """What each policy reaches."""
    results = {}
    for policy in policies:
        began = time.perf_counter()
        share = replay(trace, policy, capacity_tokens)
        results[policy] = {"hit_share": round(share, 5), "seconds": round(time.perf_counter() - began, 2)}
    return results


def _row(name: str, capacity: int, results: dict[str, dict[str, float]]) -> str:
    best = max(
        (results[policy]["hit_share"] for policy in ONLINE if policy in results and policy != "turnpike"), default=0
    )
    shares = " | ".join(f"{100 * result['hit_share']:.2f}" for result in results.values())
    way = ""
    if {"turnpike", "belady"} <= results.keys() and results["belady"]["hit_share"] > best:
        way = f"{100 * (results['turnpike']['hit_share'] - best) / (results['belady']['hit_share'] - best):.0f} %"
    return f"| {name} | {capacity / 1e6:g} M | {shares} | {way} |"


def regrets(runs: Sequence[Run], policy: str) -> dict[tuple[str, int], float]:
    """(trace, capacity) -> by how many points of hit share the policy is below the best online one."""
    result = {}
    for name, capacity, results in runs:
        shares = {online: 100 * results[online]["hit_share"] for online in ONLINE if online in results}
        if policy in shares and max(shares.values()) - min(shares.values()) > INDISTINCT:
            result[name, capacity] = max(shares.values()) - shares[policy]
    return result


def _regret_rows(runs: Sequence[Run]) -> Iterator[str]:
    yield "| regret of | mean | worst family | worst replay | replays |"
    yield "|---|---|---|---|---|"
    for policy in ONLINE:
        by_replay = regrets(runs, policy)
        families: dict[tuple[str, int], list[float]] = {}
        for (name, capacity), regret in by_replay.items():
            families.setdefault((name.partition(", ")[0], capacity), []).append(regret)
        if by_replay:
            family = max(map(statistics.mean, families.values()))
            replay, capacity = worst = max(by_replay, key=by_replay.__getitem__)
            most = f"{by_replay[worst]:.2f} ({replay}, {capacity / 1e6:g} M)"
            yield f"| {policy} | {statistics.mean(by_replay.values()):.2f} | {family:.2f} | {most} | {len(by_replay)} |"


def _traces(options: argparse.Namespace) -> Iterator[tuple[str, Trace]]:
    if options.trace:
        trace = read_trace(options.trace)
        yield options.trace.stem, trace
        if options.halves:
            yield from zip(("first half", "second half"), trace.halves(), strict=True)
    for seed in options.generated:
        for name, trace in generated(seed):
            yield f"{name}, {seed}" if len(options.generated) > 1 else name, trace


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.cache_replay", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--trace", type=Path, help="a file in Mooncake's format")
    parser.add_argument("--capacity-tokens", type=int, action="append", help="default: 3 M and 10.2 M")
    parser.add_argument("--policies", nargs="+", choices=list(POLICIES), default=list(POLICIES))
    parser.add_argument("--halves", action="store_true", help="the trace's halves too, each from an empty cache")
    parser.add_argument("--generated", type=int, nargs="+", default=[], metavar="SEED", help="traces of other traffic")
    parser.add_argument("--json", type=Path, help="write the figures here too")
    options = parser.parse_args()
    if not options.trace and not options.generated:
        parser.error("name a --trace, or a seed for --generated")
    if any(capacity < 1 for capacity in options.capacity_tokens or ()):
        parser.error("--capacity-tokens must be at least 1")
    try:
        traces = _traces(options)
        first = next(traces)
    except (OSError, ValueError) as error:
        parser.error(str(error))
    print(f"| trace | capacity | {' | '.join(options.policies)} | of the way to Belady |", flush=True)
    print("|---|---|" + "---|" * (len(options.policies) + 1))
    runs: list[Run] = []
    for name, trace in itertools.chain([first], traces):
        for capacity in options.capacity_tokens or CAPACITIES:
            results = figures(trace, capacity, options.policies)
            runs.append((name, capacity, results))
            print(_row(name, capacity, results), flush=True)
    print("", *_regret_rows(runs), sep="\n")
    if options.json:
        rows = [{"trace": name, "capacity_tokens": capacity, "policies": found} for name, capacity, found in runs]
        options.json.write_text(json.dumps({**rows[0], "runs": rows}, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
