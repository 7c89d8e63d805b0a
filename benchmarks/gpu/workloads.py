"""The workloads that engines are timed on, ours and others: token ids only, all prompts arrive at once."""

from __future__ import annotations

import random

Workloads = dict[str, tuple[list[list[int]], int]]
_FIRST, _END = 100, 120_000
"""Token ids are drawn from these."""


def _ids(chance: random.Random, count: int) -> list[int]:
    return [chance.randrange(_FIRST, _END) for _ in range(count)]


def workloads(seed: int = 0) -> Workloads:
    """(prompts, tokens of output) by name."""
    chance = random.Random(seed)  # the prompts that others are timed on
    single = [_ids(chance, 1_024)]
    saturated = [_ids(chance, 1_024) for _ in range(512)]
    prefixes = [_ids(chance, 8_192) for _ in range(32)]
    shared = [prefixes[index % 32] + _ids(chance, 128) for index in range(512)]
    long_prompt = [_ids(chance, 32_768)]
    middle = [_ids(chance, 1_024) for _ in range(32)]
    return {
        "single_decode": (single, 256),
        "batch32": (middle, 256),
        "saturated": (saturated, 256),
        "shared_prefix": (shared, 64),
        "long_prefill": (long_prompt, 1),
    }
