"""The self-test at start: does a row keep its bits in any batch on this machine, at this model's shapes? (E1, C2)

It is made of the very operations that requests run through: the same tokens are computed alone and in company, in one
chunk and in several, and the logits compared bitwise. On a GPU nothing is promised yet, so nothing is tested.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

import structlog
import torch

from engine.layers.attention_plan import Chunk, padded_rows, plan_attention
from engine.layers.linear import ROW_MULTIPLE, Tiling
from engine.runner import Runner

logger = structlog.get_logger("engine.invariance")

_SEED = 20261
_SHARED = 5
"""Tokens of the probe that come in a second chunk, as decode steps do."""


@dataclass(frozen=True)
class _Part:
    tokens: list[int]
    start: int
    table: list[int]


def ensure_invariance(runner: Runner, tiling: Tiling, budget: int) -> bool:
    """Test; where it fails, fall back to fixed row tiles and test again. Logs which, and returns whether it holds.

    Uses the first blocks of the memory, and clears them.
    """
    if runner.device.type != "cpu":
        logger.info("invariance not tested", device=runner.device.type)
        return False
    with torch.inference_mode():
        if _holds(runner, budget):
            logger.info("output is independent of the batch", rows="multiples of 8", threads=torch.get_num_threads())
            return True
        tiling.row_tile = ROW_MULTIPLE
        runner.prefill_tile = 1
        held = _holds(runner, budget)
    if held:
        logger.warning("kernels depend on the number of rows: fixed row tiles are used, which is slower")
    else:
        logger.error("kernels depend on the batch even with fixed row tiles: outputs may differ in low bits")
    return held


def _holds(runner: Runner, budget: int) -> bool:
    blocks = runner.memory.data.shape[0]
    random_ = random.Random(_SEED)  # noqa: S311 - which tokens does not matter, only that they vary
    vocabulary = runner.model.config.vocabulary

    def some(count: int) -> list[int]:
        return [random_.randrange(vocabulary) for _ in range(count)]

    probe = some(2 * ROW_MULTIPLE + _SHARED)
    used = min(blocks, 3)
    table = list(range(used))
    head = probe[:-_SHARED]

    def alone() -> torch.Tensor:
        rows = [_compute(runner, [_Part(head, 0, table[:1])])[-1:]]
        for at, token in enumerate(probe[-_SHARED:], len(head)):
            rows.append(_compute(runner, [_Part([token], at, table[:1])])[-1:])
        return torch.cat(rows)

    reference = alone()
    try:
        # In one chunk: every row of the second part beside the others.
        if not torch.equal(_compute(runner, [_Part(probe, 0, table[:1])])[-_SHARED - 1 :], reference):
            return False
        # In company of every size up to the budget, first and last in the batch.
        sizes = {
            count for count in (1, 2, 7, 30, 61, 127, 250, 509, budget - len(probe)) if count + len(probe) <= budget
        }
        for size in sorted(sizes) if used > 1 else []:
            room = min(size, 64 * (used - 1))
            company = [_Part(some(room), 0, table[1:])]
            company += [_Part(some(1), 0, table[1:])] * (size - room)
            parts = sorted([*company, _Part(probe, 0, table[:1])], key=lambda part: len(part.tokens) > 1)
            rows = _compute(runner, parts)
            at = 0
            for part in parts:
                at += len(part.tokens)
                if part.tokens is probe and not torch.equal(rows[at - _SHARED - 1 : at], reference):
                    return False
            # A decode step in the company of others.
            steps = [_Part(probe[-1:], len(probe) - 1, table[:1]), *[_Part(some(1), 0, table[1:])] * size]
            if not torch.equal(_compute(runner, steps)[:1], reference[-1:]):
                return False
        return True
    finally:
        runner.clear(table)


def _compute(runner: Runner, parts: list[_Part]) -> torch.Tensor:
    """Logits of all rows, decoding parts first."""
    tokens = [token for part in parts for token in part.tokens]
    positions = [at for part in parts for at in range(part.start, part.start + len(part.tokens))]
    padding = [0] * (padded_rows(len(tokens)) - len(tokens))
    plan = plan_attention(
        [Chunk(part.start, len(part.tokens), part.table) for part in parts],
        sum(len(part.tokens) == 1 for part in parts),
        runner.model.config.heads,
        group=runner.memory.group,
        device=runner.device,
        tile=runner.prefill_tile,
    )
    hidden = runner.model(torch.tensor(tokens + padding), torch.tensor(positions + padding), plan, runner.memory)
    return runner.model.head(hidden)[: len(tokens)]
