"""A made-up sequence through the runner's own passes: for its test and its measurements at start, before requests."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import numpy as np
import torch

from engine.execution.cuda.runner import CudaRunner
from engine.execution.cuda.slots import Chunk
from engine.kernels.uploads import Ints
from prompt_cache.kv.block_keys import BLOCK_TOKENS

_SEED = 20261


class Probe:
    """A sequence of `length` tokens in the memory's first blocks, or of as many as these hold."""

    def __init__(self, runner: CudaRunner, length: int) -> None:
        self.runner = runner
        held = min(runner.sizes.blocks)
        self.length = min(length, runner.sizes.context, held * BLOCK_TOKENS)
        self.blocks = -(-self.length // BLOCK_TOKENS)
        chance = np.random.default_rng(_SEED)
        self.tokens: Ints = chance.integers(0, runner.fused.vocabulary, self.length).astype(np.int32)
        self.adapted: Ints | None = None
        """By position: slots of adapters, as of `DecodeSteps.run`."""
        self._table = np.tile(np.arange(self.blocks, dtype=np.int32), (len(runner.memories), 1))

    def prefill(self, cuts: Sequence[int]) -> torch.Tensor:
        """Hidden states of the whole sequence, computed in passes that begin at these positions."""
        ends = [*cuts[1:], self.length]
        passes = []
        for start, end in zip(cuts, ends, strict=True):
            hidden = self.runner.prefill([Chunk(self.tokens[start:end], start, self._table)], self._adapted(start, end))
            passes.append(hidden[: end - start])
        return torch.cat(passes)

    def _adapted(self, start: int, end: int) -> Ints | None:
        return None if self.adapted is None else self.adapted[start:end]

    def prefill_at_once(self, tokens: int) -> None:
        """One pass over about so many tokens, in chunks of the sequence from its begin."""
        counts = [self.length] * (tokens // self.length) + [tokens % self.length]
        self.runner.prefill([Chunk(self.tokens[:count], 0, self._table) for count in counts if count])

    def decode(self, positions: Ints) -> torch.Tensor:
        """Logits of these positions' tokens, decoded beside each other; all rows read the same blocks."""
        runner, rows = self.runner, len(positions)
        numbers = self._lay_tables(rows)
        runner.slots.tell(numbers, self.tokens[positions].tolist())
        adapted = None if self.adapted is None else self.adapted[positions]
        runner.steps.run(numbers, positions, numbers, adapted=adapted)
        return runner.steps.logits[:rows]

    def verify(self, ends: Sequence[int], rows: int) -> torch.Tensor:
        """Logits of the `rows` tokens before each of these positions, the rows of one request each, decoded together as
        a step that verifies drafts does it. All requests read the same blocks."""
        runner, steps = self.runner, self._verifying(ends, rows)
        steps()
        return runner.steps.logits[: len(ends) * rows]

    def _verifying(self, ends: Sequence[int], rows: int) -> Callable[[], None]:
        runner, count = self.runner, len(ends) * rows
        slots = np.repeat(self._lay_tables(len(ends)), rows)
        positions = np.concatenate([np.arange(end - rows, end, dtype=np.int32) for end in ends])
        sources = runner.slots.place_tokens(self.tokens[positions].tolist())
        order = np.arange(count, dtype=np.int32)
        return lambda: runner.steps.run(slots, positions, order, sources)

    def _lay_tables(self, requests: int) -> Ints:
        """Let the first slots of the device read the sequence's blocks; returns them."""
        slots, numbers = self.runner.slots, np.arange(requests, dtype=np.int32)
        places = np.tile(np.arange(self.blocks, dtype=np.int32), requests)
        slots.put(np.repeat(numbers, self.blocks), places, np.tile(places[:, None], (1, len(self.runner.memories))))
        return numbers

    def in_graph(self, count: int) -> torch.Tensor:
        """Logits of the last `count` tokens, computed as a short chunk in a graph."""
        runner, start = self.runner, self.length - count
        slots, sources = runner.slots.place([Chunk(self.tokens[start:], start, self._table)])
        positions = np.arange(start, self.length, dtype=np.int32)
        order, adapted = np.arange(count, dtype=np.int32), self._adapted(start, self.length)
        runner.steps.run(slots, positions, order, sources, adapted=adapted)
        return runner.steps.logits[:count]

    def apart(self, rows: int) -> Ints:
        """Positions of so many rows, near the end of the sequence: with tokens, and so experts, of their own."""
        return (self.length - 1 - np.arange(rows) % self.length).astype(np.int32)

    def time_decode(self, rows: int, rounds: int) -> float:
        """µs of a decode step of so many rows, the least of some."""
        positions = self.apart(rows)
        self.decode(positions)
        slots = np.arange(rows, dtype=np.int32)
        return self._least(lambda: self.runner.steps.run(slots, positions, slots), rounds)

    def time_verify(self, requests: int, rows: int, end: int, rounds: int) -> float:
        """µs of a step with so many rows of each of some requests, the last of them before `end`; the least of some."""
        step = self._verifying([end] * requests, rows)
        step()
        return self._least(step, rounds)

    def time_prefill(self, tokens: int, rounds: int) -> float:
        """µs of a pass over so many tokens, the least of some."""
        return self._least(lambda: self.prefill_at_once(tokens), rounds)

    def _least(self, call: Callable[[], None], rounds: int) -> float:
        took = []
        for _ in range(rounds):
            self._wait()
            began = time.perf_counter()
            call()
            self._wait()
            took.append((time.perf_counter() - began) * 1e6)
        return min(took)

    def _wait(self) -> None:
        if self.runner.device.type == "cuda":
            torch.cuda.synchronize(self.runner.device)
