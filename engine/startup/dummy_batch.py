"""Made-up tokens through the model and its head: what tests and measurements at start are made of."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from engine.execution.model_runner import ModelRunner
from prompt_cache.kv.block_keys import BLOCK_TOKENS
from prompt_cache.kv.grouped_pool import Block

_SEED = 20261
_TIMED_LAYERS = 3


@dataclass(frozen=True)
class DummyChunk:
    """Tokens of one made-up sequence from position `start`, in the block `block`; what comes before that is PAST."""

    tokens: list[int]
    start: int
    block: int


class DummyBatch:
    """Uses the memory's first blocks, which it clears: `BLOCK` for what matters, `OTHER` for its company, and `PAST`
    again and again for what comes before."""

    BLOCK = 0
    BLOCKS = 3
    """With fewer of them some are the same."""

    def __init__(self, runner: ModelRunner) -> None:
        self.runner = runner
        last = min(memory.data.shape[0] for memory in runner.memories) - 1
        self.OTHER, self.PAST = min(1, last), min(2, last)
        self._chance = random.Random(_SEED)  # noqa: S311  # which tokens does not matter, only that they vary
        groups = len(runner.memories)
        runner.clear([(block,) * groups for block in {self.BLOCK, self.OTHER, self.PAST}])
        self.compute([DummyChunk(self.tokens(BLOCK_TOKENS), 0, self.PAST)])

    def tokens(self, count: int) -> list[int]:
        """So many token ids."""
        return [self._chance.randrange(self.runner.model.config.vocabulary) for _ in range(count)]

    def decodes(self, count: int) -> list[DummyChunk]:
        """So many sequences of one token."""
        return [DummyChunk(self.tokens(1), 0, self.OTHER) for _ in range(count)]

    def chunks(self, tokens: int) -> list[DummyChunk]:
        """About so many tokens in chunks of more than one."""
        full, rest = divmod(max(0, tokens), BLOCK_TOKENS)
        sizes = [BLOCK_TOKENS] * full + ([rest] if rest > 1 else [])
        return [DummyChunk(self.tokens(size), 0, self.OTHER) for size in sizes]

    def compute(self, parts: Sequence[DummyChunk]) -> torch.Tensor:
        """Hidden states of all rows after one layer; parts of one token come first."""
        with torch.inference_mode():
            return self._hidden(parts, 1)[: sum(len(part.tokens) for part in parts)]

    def time_step(self, parts: Sequence[DummyChunk]) -> float:
        """µs of a step of these parts, all layers and the head of each part's last row; those of one token come first.

        Of many layers few are run, and the others are taken to be as quick.
        """
        layers = len(self.runner.model.layers)
        if layers <= _TIMED_LAYERS:
            return self._time(parts, layers)
        one, few = self._time(parts, 1), self._time(parts, _TIMED_LAYERS)
        return few + max(0.0, few - one) / (_TIMED_LAYERS - 1) * (layers - _TIMED_LAYERS)

    def _time(self, parts: Sequence[DummyChunk], depth: int) -> float:
        runner, rows = self.runner, sum(len(part.tokens) for part in parts)
        if runner.device.type == "cpu":
            runner.threads.use(rows)
        began = time.perf_counter()
        with torch.inference_mode():
            hidden = self._hidden(parts, depth)
            if rows > len(parts):
                hidden = hidden[[rows - 1] * (len(parts) + runner.tiling.padding(len(parts)))]
            # Brought back to the host, as a sampled token is: on a GPU nothing has been computed before.
            runner.model.head(hidden).argmax(-1).tolist()
        return (time.perf_counter() - began) * 1e6

    def _hidden(self, parts: Sequence[DummyChunk], depth: int | None) -> torch.Tensor:
        runner = self.runner
        tokens = [token for part in parts for token in part.tokens]
        positions = [at for part in parts for at in range(part.start, part.start + len(part.tokens))]
        padding = [0] * runner.tiling.padding(len(tokens))
        plans = runner.plans(
            [(part.start, len(part.tokens), self._table(part)) for part in parts],
            sum(len(part.tokens) == 1 for part in parts),
        )
        return runner.model(
            torch.tensor(tokens + padding, device=runner.device),
            torch.tensor(positions + padding, device=runner.device),
            plans,
            runner.memories,
            depth,
        )

    def _table(self, part: DummyChunk) -> list[Block]:
        before = part.start // BLOCK_TOKENS
        return [(block,) * len(self.runner.memories) for block in [self.PAST] * before + [part.block]]
