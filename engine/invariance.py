"""The self-test at start: does a row keep its bits in any batch on this machine, at this model's shapes? (E1, C2)

It is made of the very operations that requests run through, in the first layer and the head: a probe is computed alone
and in company, in one chunk and in several, and its logits are compared bitwise. On a GPU nothing is promised yet, so
nothing is tested.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

import structlog
import torch

from engine.layers.attention_plan import Chunk, padded_rows, plan_attention
from engine.layers.linear import ROW_MULTIPLE, Tiling
from engine.runner import Runner
from prompt_cache.keys import BLOCK_TOKENS

logger = structlog.get_logger("engine.invariance")

_SEED = 20261
_HEAD, _TAIL = 19, 4
"""Tokens of the probe that come in a chunk, and one by one."""


@dataclass(frozen=True)
class _Part:
    tokens: list[int]
    start: int
    block: int


def ensure_invariance(runner: Runner, tiling: Tiling, budget: int, max_running: int) -> bool:
    """Test; where it fails, fall back to fixed row tiles and test again. Logs which, and returns whether it holds.

    `budget` and `max_running` say how large chunks and decode batches get. Uses the first two blocks of the memory.
    """
    if runner.device.type != "cpu":
        logger.info("invariance not tested", device=runner.device.type)
        return False
    with torch.inference_mode():
        if _holds(runner, budget, max_running):
            logger.info("output is independent of the batch", threads=torch.get_num_threads())
            return True
        tiling.row_tile = ROW_MULTIPLE
        runner.prefill_tile = 1
        held = _holds(runner, budget, max_running)
    if held:
        logger.warning("kernels depend on the number of rows: fixed row tiles are used, which is slower")
    else:
        logger.error("kernels depend on the batch even with fixed row tiles: outputs may differ in low bits")
    return held


def _holds(runner: Runner, budget: int, max_running: int) -> bool:
    chance = random.Random(_SEED)  # noqa: S311  # which tokens does not matter, only that they vary
    vocabulary = runner.model.config.vocabulary
    other = min(1, runner.memory.data.shape[0] - 1)

    def some(count: int) -> list[int]:
        return [chance.randrange(vocabulary) for _ in range(count)]

    probe = some(_HEAD + _TAIL)
    runner.clear([0, other])
    rows = [_compute(runner, [_Part(probe[:_HEAD], 0, 0)])[-1:]]
    rows += [_compute(runner, [_Part(probe[at : at + 1], at, 0)]) for at in range(_HEAD, len(probe))]
    reference = torch.cat(rows)
    whole = _Part(probe, 0, 0)
    if not torch.equal(_compute(runner, [whole])[-_TAIL - 1 :], reference):
        return False
    # The probe behind decoding neighbours and one chunk of a neighbour, up to the largest batches that will come.
    for decodes, chunk in ((0, 1), (1, 0), (3, 40), (min(7, max_running), budget), (max_running - 1, budget)):
        steps = [_Part(some(1), 0, other)] * decodes
        left = budget - decodes - len(probe)
        long = [_Part(some(count), 0, other) for count in _chunks(min(chunk, left))]
        computed = _compute(runner, [*steps, *long, whole])
        if not torch.equal(computed[-_TAIL - 1 :], reference):
            return False
        last = _Part(probe[-1:], len(probe) - 1, 0)
        if not torch.equal(_compute(runner, [last, *steps, *long])[:1], reference[-1:]):
            return False
    return True


def _chunks(tokens: int) -> list[int]:
    """So many tokens in chunks of more than one token that fit a block."""
    full, rest = divmod(max(0, tokens), BLOCK_TOKENS)
    return [BLOCK_TOKENS] * full + ([rest] if rest > 1 else [])


def _compute(runner: Runner, parts: list[_Part]) -> torch.Tensor:
    """Logits of all rows after one layer; decoding parts come first."""
    tokens = [token for part in parts for token in part.tokens]
    positions = [at for part in parts for at in range(part.start, part.start + len(part.tokens))]
    padding = [0] * (padded_rows(len(tokens)) - len(tokens))
    plan = plan_attention(
        [Chunk(part.start, len(part.tokens), [part.block]) for part in parts],
        sum(len(part.tokens) == 1 for part in parts),
        runner.model.config.heads,
        group=runner.memory.group,
        device=runner.device,
        tile=runner.prefill_tile,
    )
    hidden = runner.model(torch.tensor(tokens + padding), torch.tensor(positions + padding), plan, runner.memory, 1)
    return runner.model.head(hidden)[: len(tokens)]
