"""One forward pass over chunks of prompts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from engine.execution.cuda.linears import padded_rows
from engine.execution.cuda.model import FusedDecoder, FusedLayer, Rows
from engine.execution.cuda.uploads import Ints, upload
from engine.kernels.prefill_attention import PrefillTiles, plan_prefill_tiles, prefill_attention
from engine.kv_cache.memory import KvMemory


@dataclass(frozen=True)
class Chunk:
    """Tokens of one sequence from position `start` on; `table` [layer groups, blocks] are its blocks."""

    tokens: Ints
    start: int
    table: Ints


class Prefill:
    """Prefill passes; keys are cut at `bounds`, given on the host and on the device."""

    def __init__(
        self, model: FusedDecoder, memories: Sequence[KvMemory], bounds: Sequence[int], bounds_there: torch.Tensor
    ) -> None:
        self.model = model
        self._windows = [memory.group.window for memory in memories]
        self._heads_per_kv_head = [model.heads // memory.group.kv_heads for memory in memories]
        self._bounds = np.array(bounds)
        self._bounds_there = bounds_there

    def __call__(self, chunks: Sequence[Chunk]) -> torch.Tensor:
        """The normalized hidden states of all chunks' tokens, in order; padding rows follow them."""
        counts = [len(chunk.tokens) for chunk in chunks]
        rows = sum(counts)
        padding = padded_rows(rows) - rows
        nothing = np.zeros(padding, np.int32)
        tokens = np.concatenate([*[chunk.tokens for chunk in chunks], nothing])
        positions = np.concatenate(
            [*[np.arange(chunk.start, chunk.start + count) for chunk, count in zip(chunks, counts, strict=True)],
             nothing - 1]
        )  # fmt: skip
        tables = np.concatenate([np.repeat(np.arange(len(chunks)), counts), nothing])
        widest = max(chunk.table.shape[1] for chunk in chunks)
        blocks = np.zeros((len(self._windows), len(chunks), widest), np.int32)
        for index, chunk in enumerate(chunks):
            blocks[:, index, : chunk.table.shape[1]] = chunk.table
        ends = np.cumsum(counts)
        spans = [
            (int(end - count), chunk.start, count, index)
            for index, (chunk, count, end) in enumerate(zip(chunks, counts, ends, strict=True))
        ]
        tiles = [
            plan_prefill_tiles(spans, heads, self._bounds, window)  # type: ignore[arg-type]
            for heads, window in zip(self._heads_per_kv_head, self._windows, strict=True)
        ]
        there = upload(
            [tokens.astype(np.int32), positions.astype(np.int32), tables.astype(np.int32), *blocks,
             *[one.table.numpy() for one in tiles]],
            self.model.device,
        )  # fmt: skip
        groups = len(self._windows)
        block_tables = there[3 : 3 + groups]
        planned = [PrefillTiles(table, one.tokens) for table, one in zip(there[3 + groups :], tiles, strict=True)]

        def attend(layer: FusedLayer, query: torch.Tensor, mixed: torch.Tensor) -> None:
            group = layer.group
            prefill_attention(
                query, layer.kv, block_tables[group], self._bounds_there, planned[group], layer.scores, mixed
            )

        return self.model(Rows(there[0], there[1], there[2], block_tables), attend)
