"""The workloads that engines are timed on, ours and others: token ids only, all prompts arrive at once."""

from __future__ import annotations

import random

Workloads = dict[str, tuple[list[list[int]], int]]
_FIRST, _END = 100, 120_000
"""Token ids are drawn from these."""
_CHILDREN = 4
"""Children of each node of a sharing tree, and how many trees there are."""
NAMES = ("single_decode", "batch32", "saturated", "shared_prefix", "long_prefill", "sharing_trees")


def _ids(chance: random.Random, count: int) -> list[int]:
    return [chance.randrange(_FIRST, _END) for _ in range(count)]


def workloads(seed: int = 0, scale: int = 1) -> Workloads:
    """(prompts, tokens of output) by name. Prompts, their tokens and those of output are `scale` times fewer."""

    def few(count: int) -> int:
        return max(1, count // scale)

    chance = random.Random(seed)  # the prompts that others are timed on
    single = [_ids(chance, few(1_024))]
    saturated = [_ids(chance, few(1_024)) for _ in range(few(512))]
    prefixes = [_ids(chance, few(8_192)) for _ in range(few(32))]
    shared = [prefixes[index % len(prefixes)] + _ids(chance, few(128)) for index in range(few(512))]
    long_prompt = [_ids(chance, few(32_768))]
    middle = [_ids(chance, few(1_024)) for _ in range(few(32))]
    trees = _sharing_trees(chance, (few(2_048), few(1_024), few(512)), few(256), few(64))
    return {
        "single_decode": (single, few(256)),
        "batch32": (middle, few(256)),
        "saturated": (saturated, few(256)),
        "shared_prefix": (shared, few(64)),
        "long_prefill": (long_prompt, 1),
        "sharing_trees": (trees, few(64)),
    }


def _sharing_trees(chance: random.Random, levels: tuple[int, ...], requests: int, own: int) -> list[list[int]]:
    """Prompts with random paths through trees whose nodes have so many tokens by level, and `own` tokens behind.

    Every other one on average leaves its path at a random token, in any node of it.
    """
    nodes: dict[tuple[int, ...], list[int]] = {}
    prompts = []
    for _ in range(requests):
        path = tuple(chance.randrange(_CHILDREN) for _ in levels)
        prefix: list[int] = []
        for depth, tokens in enumerate(levels, 1):
            if path[:depth] not in nodes:
                nodes[path[:depth]] = _ids(chance, tokens)
            prefix += nodes[path[:depth]]
        until = chance.randrange(1, len(prefix)) if chance.random() < 0.5 else len(prefix)
        prompts.append(prefix[:until] + _ids(chance, own))
    return prompts
