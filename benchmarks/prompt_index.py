"""Cost of finding and inserting a long prompt in the prefix index, beside hashing its blocks, at several pool sizes.

`hash`: the keys of all whole blocks. `lookup`: keys, the longest cached prefix, a reference on it, and giving it back.
`insert`: keys, no prefix found, blocks for all tokens (evicting others: the pool is full), publishing and freeing them.
Each is the least of some rounds in ms of CPU time of one core; the bar is 2.5 times hashing.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from array import array
from pathlib import Path

from prompt_cache.kv.block_keys import BLOCK_TOKENS, chain
from prompt_cache.kv.grouped_pool import GroupedPool

BAR = 2.5


def keys_of(number: int, tokens: int) -> list[bytes]:
    """The keys of a prompt of its own."""
    return chain(b"model", [(tokens, b"scope")], array("I", range(number, number + tokens)))


def insert(pool: GroupedPool, keys: list[bytes]) -> None:
    """What the scheduler does for a prompt, without computing it."""
    table = pool.find(keys)
    pool.share(table)
    found = len(table)
    table += pool.begin(len(keys) - found)
    for index in range(found, len(keys)):
        pool.publish(table, index, keys[index], "scope")
    pool.free(table)


def measure(blocks: int, tokens: int, rounds: int) -> dict[str, float]:
    """ms of each, in a pool of so many blocks that is full."""
    pool = GroupedPool([(blocks, 0)])
    each = tokens // BLOCK_TOKENS
    for number in range(blocks // each + 2):  # keys need not be chained to fill a pool
        insert(pool, [(number * each + index).to_bytes(32, "big") for index in range(each)])
    took: dict[str, list[float]] = {"hash": [], "lookup": [], "insert": []}
    for number in range(rounds):
        began = time.thread_time()
        keys_of(number, tokens)
        hashed = time.thread_time()
        insert(pool, keys_of(number, tokens))
        inserted = time.thread_time()
        insert(pool, keys_of(number, tokens))
        found = time.thread_time()
        took["hash"].append(hashed - began)
        took["insert"].append(inserted - hashed)
        took["lookup"].append(found - inserted)
    return {name: round(1e3 * min(times), 3) for name, times in took.items()}


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.prompt_index", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--tokens", type=int, default=100_000)
    parser.add_argument("--blocks", type=int, nargs="+", default=[10_000, 100_000, 1_000_000])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--json", type=Path, help="write the figures here too")
    options = parser.parse_args()
    pools = {}
    for blocks in options.blocks:
        figures = measure(blocks, options.tokens, options.rounds)
        figures["times_hashing"] = round(max(figures["lookup"], figures["insert"]) / figures["hash"], 2)
        pools[str(blocks)] = figures
    result = {"benchmark": "prompt_index", "tokens": options.tokens, "pools": pools, "bar": BAR}
    result["met"] = all(figures["times_hashing"] <= BAR for figures in pools.values())
    print(json.dumps(result, indent=2))
    if options.json:
        options.json.write_text(json.dumps(result, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
