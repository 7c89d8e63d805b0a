"""Steps of made-up tokens through the model and its head, for the self-test and the measurements at start."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from engine.execution.model_runner import ModelRunner
from engine.layers.decoder_layer import DecoderLayer
from prompt_cache.kv.block_keys import BLOCK_TOKENS
from prompt_cache.kv.grouped_pool import Block

_SEED = 20261
_MOST_OF_A_KIND = 3
"""Layers that are timed, of each kind."""


@dataclass(frozen=True)
class DummyChunk:
    """Tokens of one made-up sequence from position `start`, in block `block`. The positions before are in block
    PAST."""

    tokens: list[int]
    start: int
    block: int


class DummyBatch:
    """Computes chunks in the first blocks of the memory, which it clears: `BLOCK` for the chunk that matters, `OTHER`
    for its batch neighbours, `PAST`, repeated, for the positions before a chunk."""

    BLOCK = 0
    BLOCKS = 3
    """In a memory of fewer blocks some of these are the same."""

    def __init__(self, runner: ModelRunner) -> None:
        self.runner = runner
        self._first_of_kinds = [layers[0] for layers in layers_by_kind(runner.model.layers)]
        last = min(memory.data.shape[0] for memory in runner.memories) - 1
        self.OTHER, self.PAST = min(1, last), min(2, last)
        self._chance = random.Random(_SEED)  # noqa: S311  # which tokens does not matter, only that they vary
        groups = len(runner.memories)
        runner.clear([(block,) * groups for block in {self.BLOCK, self.OTHER, self.PAST}])
        self.compute([DummyChunk(self.tokens(BLOCK_TOKENS), 0, self.PAST)])

    def tokens(self, count: int) -> list[int]:
        """So many random token ids."""
        return [self._chance.randrange(self.runner.model.config.vocabulary) for _ in range(count)]

    def decodes(self, count: int) -> list[DummyChunk]:
        """So many chunks of one token."""
        return [DummyChunk(self.tokens(1), 0, self.OTHER) for _ in range(count)]

    def chunks(self, tokens: int) -> list[DummyChunk]:
        """Chunks of more than one token, of about so many tokens in all."""
        full, rest = divmod(max(0, tokens), BLOCK_TOKENS)
        sizes = [BLOCK_TOKENS] * full + ([rest] if rest > 1 else [])
        return [DummyChunk(self.tokens(size), 0, self.OTHER) for size in sizes]

    def compute(self, chunks: Sequence[DummyChunk]) -> torch.Tensor:
        """Hidden states [tokens, hidden] after one layer of each kind, one row a token. Chunks of one token come
        first."""
        with torch.inference_mode():
            return self.hidden(chunks, self._first_of_kinds)[: sum(len(chunk.tokens) for chunk in chunks)]

    def hidden(self, chunks: Sequence[DummyChunk], layers: Sequence[DecoderLayer]) -> torch.Tensor:
        """Hidden states [tokens + padding, hidden] after these layers. Chunks of one token come first."""
        runner = self.runner
        tokens = [token for chunk in chunks for token in chunk.tokens]
        positions = [at for chunk in chunks for at in range(chunk.start, chunk.start + len(chunk.tokens))]
        padding = [0] * runner.tiling.padding(len(tokens))
        plans = runner.plans(
            [(chunk.start, len(chunk.tokens), self._table(chunk)) for chunk in chunks],
            sum(len(chunk.tokens) == 1 for chunk in chunks),
        )
        return runner.model(
            torch.tensor(tokens + padding, device=runner.device),
            torch.tensor(positions + padding, device=runner.device),
            plans,
            runner.memories,
            layers,
        )

    def _table(self, chunk: DummyChunk) -> list[Block]:
        before = chunk.start // BLOCK_TOKENS
        return [(block,) * len(self.runner.memories) for block in [self.PAST] * before + [chunk.block]]


def layers_by_kind(layers: Sequence[DecoderLayer]) -> list[list[DecoderLayer]]:
    """The layers of each kind, in order. Layers made of the same parts are of one kind: a mixture of experts runs other
    operations than a dense feed-forward layer, and takes another time."""
    kinds: dict[tuple[type, ...], list[DecoderLayer]] = {}
    for layer in layers:
        kinds.setdefault((type(layer), *map(type, vars(layer).values())), []).append(layer)
    return list(kinds.values())


class TimedLayers:
    """Times runs with one layer of each kind, and with some more of each kind: the others are taken to be as fast.

    `clock` gives seconds. `spent_s`: what was timed so far.
    """

    def __init__(self, layers: Sequence[DecoderLayer], clock: Callable[[], float]) -> None:
        self._clock = clock
        self.spent_s = 0.0
        kinds = layers_by_kind(layers)
        self.one_of_each = [of_kind[0] for of_kind in kinds]
        more = [(of_kind[1:_MOST_OF_A_KIND], len(of_kind) - 1) for of_kind in kinds if len(of_kind) > 1]
        self._sets: list[list[DecoderLayer]] = [self.one_of_each, *([*self.one_of_each, *layers] for layers, _ in more)]
        self._more = [(len(layers), count) for layers, count in more]
        """Of each kind of several layers: how many more are run, and how many more there are."""

    def time(self, run: Callable[[Sequence[DecoderLayer]], object]) -> list[float]:
        """Seconds of a run with one layer of each kind, and of one with more of each kind in turn."""
        took = []
        for layers in self._sets:
            began = self._clock()
            run(layers)
            took.append(self._clock() - began)
        self.spent_s += sum(took)
        return took

    def of_all(self, took: Sequence[float]) -> float:
        """Seconds with all layers, by what `time` returned."""
        once, *with_more = took
        return once + sum(
            max(0.0, longer - once) / run * there for longer, (run, there) in zip(with_more, self._more, strict=True)
        )


def fastest(one: Sequence[float], other: Sequence[float]) -> list[float]:
    """Of each part the faster of two: what else the machine does only ever adds to it."""
    return list(map(min, one, other))
