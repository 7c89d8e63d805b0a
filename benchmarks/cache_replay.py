"""Hit share of eviction policies: a trace through the real index, beside the optimum that knows the future.

A request looks for the longest prefix that is cached, takes blocks for the rest, publishes and frees all. The hit share
is tokens found of tokens asked for, over the whole trace from an empty cache. Only whole blocks are cached, by every
policy. A block of the trace is one block of the pool; the shipped policy runs at its default settings.

`--generated SEED` replays traces of other traffic too, and `--halves` the file's halves, each from an empty cache.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.cache_policies import ONLINE, POLICIES, key_of
from benchmarks.cache_traces import Trace, read_trace
from benchmarks.cache_traffic import generated
from prompt_cache.kv.block_pool import BlockPool
from prompt_cache.placement.eviction_order import NO_PARENT

CAPACITIES = (3_000_000, 10_200_000)


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


def _traces(options: argparse.Namespace) -> Iterator[tuple[str, Trace]]:
    if options.trace:
        trace = read_trace(options.trace)
        yield options.trace.stem, trace
        if options.halves:
            yield from zip(("first half", "second half"), trace.halves(), strict=True)
    if options.generated is not None:
        yield from generated(options.generated)


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.cache_replay", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--trace", type=Path, help="a file in Mooncake's format")
    parser.add_argument("--capacity-tokens", type=int, action="append", help="default: 3 M and 10.2 M")
    parser.add_argument("--policies", nargs="+", choices=list(POLICIES), default=list(POLICIES))
    parser.add_argument("--halves", action="store_true", help="the trace's halves too, each from an empty cache")
    parser.add_argument("--generated", type=int, metavar="SEED", help="traces of other traffic")
    parser.add_argument("--json", type=Path, help="write the figures here too")
    options = parser.parse_args()
    if not options.trace and options.generated is None:
        parser.error("name a --trace, or a seed for --generated")
    if any(capacity < 1 for capacity in options.capacity_tokens or ()):
        parser.error("--capacity-tokens must be at least 1")
    try:
        traces = list(_traces(options))
    except (OSError, ValueError) as error:
        parser.error(str(error))
    print(f"| trace | capacity | {' | '.join(options.policies)} | of the way to Belady |", flush=True)
    print("|---|---|" + "---|" * (len(options.policies) + 1))
    runs = []
    for name, trace in traces:
        for capacity in options.capacity_tokens or CAPACITIES:
            results = figures(trace, capacity, options.policies)
            runs.append({"trace": name, "capacity_tokens": capacity, "policies": results})
            print(_row(name, capacity, results), flush=True)
    if options.json:
        options.json.write_text(json.dumps({**runs[0], "runs": runs}, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
