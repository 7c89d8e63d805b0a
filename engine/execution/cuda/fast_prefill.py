"""Prompts' attention by libraries, in passes whose other parts our kernels compute (`--attention fast`).

A chunk's keys and values are copied from their blocks to one place, exactly as many as it sees: a library may read what
lies behind the keys that it is given, and there another request's NaN could lie. That takes a hundredth of the time of
the attention of a large chunk. Small chunks are left to our kernels.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from engine.attention_backends.backend import AttentionBackend
from engine.execution.cuda.model import FusedDecoder, FusedLayer
from engine.execution.cuda.slots import Chunk
from engine.kernels.gathered_kv import gather_kv
from engine.kernels.paged_kv import PagedKv
from prompt_cache.kv.block_keys import BLOCK_TOKENS

LEAST_ROWS = 1_024
"""Tokens of a chunk that a library computes, at least: it is called for each chunk of each layer."""
_GATHERED_BYTES = 5 << 28
"""Memory for a layer's keys and values of one chunk, at most."""


class FastPrefill:
    """`backends`: of each layer group, None for our kernels. `windows`: the groups' windows, 0 for none."""

    def __init__(
        self, backends: Sequence[AttentionBackend | None], windows: Sequence[int], least_rows: int = LEAST_ROWS
    ) -> None:
        self.backends = tuple(backends)
        self._windows = tuple(windows)
        self._least_rows = least_rows

    def taken(self, group: int, chunks: Sequence[Chunk], model: FusedDecoder, stored: PagedKv) -> list[int]:
        """How many of each chunk's first rows a library computes in the layers of this group."""
        backend = self.backends[group]
        if backend is None:
            return [0] * len(chunks)
        token_bytes = 2 * stored.kv_heads * stored.head_dim * model.embedding.itemsize
        most, rows = _GATHERED_BYTES // token_bytes - BLOCK_TOKENS, []
        for chunk in chunks:
            count = len(chunk.tokens) // backend.row_multiple * backend.row_multiple
            large = count >= self._least_rows and self._seen(group, chunk, count)[1] <= most
            rows.append(count if large else 0)
        return rows

    def attend(
        self,
        layer: FusedLayer,
        spans: Sequence[tuple[int, Chunk, int]],
        tables: Sequence[torch.Tensor],
        query: torch.Tensor,
        mixed: torch.Tensor,
    ) -> None:
        """Write the attention of these chunks to `mixed`: each with its first row in `query`, and how many of its rows
        to compute. `tables` int32: the blocks of each chunk in the layer's group, on the device."""
        backend = self.backends[layer.group]
        assert backend is not None
        for (first_row, chunk, rows), table in zip(spans, tables, strict=True):
            first, tokens = self._seen(layer.group, chunk, rows)
            keys, values = gather_kv(layer.kv, table[first : first + -(-tokens // BLOCK_TOKENS)], query)
            own = slice(first_row, first_row + rows)
            backend.prefill(query[own], keys[:tokens], values[:tokens], layer.scores, mixed[own])

    def _seen(self, group: int, chunk: Chunk, rows: int) -> tuple[int, int]:
        """The first block that the chunk's first rows see, and how many keys there are from there to their last one."""
        window, end = self._windows[group], chunk.start + rows
        first = max(0, chunk.start - window + 1) // BLOCK_TOKENS if window else 0
        return first, end - first * BLOCK_TOKENS
