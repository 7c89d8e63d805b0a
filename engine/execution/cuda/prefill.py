"""One forward pass over chunks of prompts."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from engine.attention_backends.backend import AttentionBackend
from engine.execution.cuda.adapters import AdaptedRows, AdapterMemory
from engine.execution.cuda.fast_prefill import FastPrefill
from engine.execution.cuda.linears import padded_rows
from engine.execution.cuda.model import FusedDecoder, FusedLayer, Rows
from engine.execution.cuda.slots import Chunk
from engine.kernels import prefill_attention as plain
from engine.kernels import prefill_hopper as hopper
from engine.kernels.latent_attention import prefill_latents
from engine.kernels.low_rank import plan_tiles
from engine.kernels.paged_kv import LatentKv, PagedKv
from engine.kernels.prefill_attention import PrefillTiles, plan_prefill_tiles, prefill_attention
from engine.kernels.stored_in_fp8 import widen_blocks
from engine.kernels.uploads import Ints, Uploads
from engine.kv_cache.memory import KvMemory
from prompt_cache.kv.block_keys import BLOCK_TOKENS

_TABLE_WIDTHS = 16
"""Block tables are as wide as a multiple of this."""
_WIDENED_BYTES = 5 << 28
"""Memory for a layer's keys and values in bf16, at most, where they are stored in 8 bits."""


def _runs_on_hopper(model: FusedDecoder, group: int) -> bool:
    """Whether the kernel for Hopper computes the layers of this group; the plain one, of the same bits, if not."""
    dtype = model.embedding.dtype
    layers = [layer for layer in model.layers if layer.group == group]
    return all(hopper.fits(layer.kv, model.heads, dtype, layer.scores) for layer in layers)


def _remaining(spans: Sequence[tuple[int, int, int, int]], taken: Sequence[int]) -> list[tuple[int, int, int, int]]:
    """The spans (first row, start position, tokens, row of the tables) without so many first rows of each."""
    return [
        (first + rows, start + rows, count - rows, index)
        for (first, start, count, index), rows in zip(spans, taken, strict=True)
        if count > rows
    ]


class Prefill:
    """Prefill passes; keys are cut at `bounds`, given on the host and on the device."""

    def __init__(
        self,
        model: FusedDecoder,
        memories: Sequence[KvMemory],
        bounds: Sequence[int],
        bounds_there: torch.Tensor,
        upload: Uploads,
    ) -> None:
        self.model = model
        self._upload = upload
        self._windows = [memory.group.window for memory in memories]
        self._heads_per_kv_head = [model.heads // memory.group.kv_heads for memory in memories]
        self._on_hopper = [_runs_on_hopper(model, group) for group in range(len(memories))]
        first = {layer.group: layer.kv for layer in reversed(model.layers)}
        self._stored = [first[group] for group in range(len(memories))]
        self.fast: FastPrefill | None = None
        """What computes the attention of large chunks in place of our kernels, if anything does."""
        self.adapters: AdapterMemory | None = None
        self._bounds = np.array(bounds)
        self._bounds_there = bounds_there

    def __call__(self, chunks: Sequence[Chunk], adapted: Ints | None = None) -> torch.Tensor:
        """The normalized hidden states of all chunks' tokens, in order; padding rows follow them. `adapted`: as of
        `DecodeSteps.run`."""
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
        # A kernel is compiled anew where a stride begins to be a multiple of 16, or is 1: here it always is a multiple.
        widest = max(chunk.table.shape[1] for chunk in chunks)
        widest += -widest % _TABLE_WIDTHS
        blocks = np.zeros((len(self._windows), len(chunks), widest), np.int32)
        for index, chunk in enumerate(chunks):
            blocks[:, index, : chunk.table.shape[1]] = chunk.table
        ends = np.cumsum(counts)
        spans = [
            (int(end - count), chunk.start, count, index)
            for index, (chunk, count, end) in enumerate(zip(chunks, counts, ends, strict=True))
        ]
        on_hopper = list(self._on_hopper)
        widened: list[Ints | None] = [None] * len(self._windows)
        for group, stored in enumerate(self._stored):
            if on_hopper[group] and stored.in_fp8:
                widened[group] = self._renumber(group, blocks[group], chunks, counts)
                on_hopper[group] = widened[group] is not None
        taken = [self._taken(group, chunks) for group in range(len(self._windows))]
        tiles = [
            plan_prefill_tiles(
                _remaining(spans, fast), heads, self._bounds, window,  # type: ignore[arg-type]
                tile_rows=hopper.TILE_ROWS if large else plain.TILE_ROWS,
            )
            for heads, window, large, fast in zip(
                self._heads_per_kv_head, self._windows, on_hopper, taken, strict=True
            )
        ]  # fmt: skip
        lists = [one for one in widened if one is not None]
        lora = [] if adapted is None else [plan_tiles(adapted)]
        attended = [
            table if one is None else self._renumbered(table, one) for table, one in zip(blocks, widened, strict=True)
        ]
        there = self._upload(
            [tokens.astype(np.int32), positions.astype(np.int32), tables.astype(np.int32), *blocks,
             *[one.table.numpy() for one in tiles], *attended, *lists, *lora]
        )  # fmt: skip
        groups = len(self._windows)
        block_tables, attended_there = there[3 : 3 + groups], there[3 + 2 * groups : 3 + 3 * groups]
        planned = [
            PrefillTiles(table, one.tokens)
            for table, one in zip(there[3 + groups : 3 + 2 * groups], tiles, strict=True)
        ]
        more = iter(there[3 + 3 * groups :])
        wide = [None if one is None else self._wide_memory(group, next(more)) for group, one in enumerate(widened)]

        def attend(layer: FusedLayer, query: torch.Tensor, mixed: torch.Tensor) -> None:
            group, kv = layer.group, layer.kv
            if self.fast is not None and any(taken[group]):
                large = [(span, rows) for span, rows in zip(spans, taken[group], strict=True) if rows]
                self.fast.attend(
                    layer,
                    [(first, chunks[index], rows) for (first, _, _, index), rows in large],
                    [block_tables[group][index] for (*_, index), _ in large],
                    query,
                    mixed,
                )
            if not len(planned[group].table):
                return
            memory = wide[group]
            if memory is not None:
                numbers, data = memory
                widen_blocks(kv, numbers, data)
                kv = PagedKv(data, 0)
            if isinstance(kv, LatentKv):
                prefill_latents(
                    query, kv, attended_there[group], self._bounds_there, planned[group], layer.scores, mixed
                )  # fmt: skip
                return
            compute = hopper.prefill_attention_hopper if on_hopper[group] else prefill_attention
            compute(query, kv, attended_there[group], self._bounds_there, planned[group], layer.scores, mixed)

        changed = None
        if self.adapters is not None and lora:
            changed = AdaptedRows(self.adapters, there[-1], self.adapters.sums_for(rows))
        return self.model(Rows(there[0], there[1], there[2], block_tables, changed), attend)

    def attend_by(self, backends: Sequence[AttentionBackend | None]) -> None:
        """Have libraries compute the attention of large chunks in the layer groups for which there is one."""
        self.fast = FastPrefill(backends, self._windows)

    def _taken(self, group: int, chunks: Sequence[Chunk]) -> list[int]:
        """How many of each chunk's first rows a library computes."""
        return (
            [0] * len(chunks) if self.fast is None else self.fast.taken(group, chunks, self.model, self._stored[group])
        )

    def _renumber(self, group: int, table: Ints, chunks: Sequence[Chunk], counts: Sequence[int]) -> Ints | None:
        """The blocks that the chunks attend to, each once; None if they are too many to be widened beforehand.

        What of `table` they do not attend to becomes 0.
        """
        for row, chunk, count in zip(table, chunks, counts, strict=True):
            row[-(-(chunk.start + count) // BLOCK_TOKENS) :] = 0
        numbers: Ints = np.unique(table)
        kv = self._stored[group]
        size = 2 * kv.kv_heads * BLOCK_TOKENS * kv.head_dim * self.model.embedding.itemsize
        return numbers if len(numbers) * size <= _WIDENED_BYTES else None

    @staticmethod
    def _renumbered(table: Ints, numbers: Ints) -> Ints:
        return np.searchsorted(numbers, table).astype(np.int32)

    def _wide_memory(self, group: int, numbers: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        kv, like = self._stored[group], self.model.embedding
        return numbers, like.new_empty(len(numbers), 1, 2, kv.kv_heads, BLOCK_TOKENS, kv.head_dim)
