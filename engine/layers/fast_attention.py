"""One step's attention by a library (`engine.attention_backends`) in place of the splits of `attention_plan`.

The works of one token are a batch of decodes; each chunk of a prompt is computed by itself. With a window, only the
blocks that it reaches into are read.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from engine.attention_backends.backend import AttentionBackend, DecodeKv
from engine.kernels.paged_kv import PagedKv, Scores
from engine.kv_cache.memory import KvMemory, parts
from engine.layers.attention_plan import AttentionPlan, Chunk, Indices
from prompt_cache.kv.block_keys import BLOCK_TOKENS
from prompt_cache.kv.grouped_pool import ABSENT
from protocol.replicas import LayerGroup


@dataclass(frozen=True)
class FastChunk:
    """The rows `first`..`first + count` of the batch; `gather`: the rows of KvMemory's `heads` with their `tokens`
    keys, the last of which is that of the last row."""

    first: int
    count: int
    tokens: int
    gather: torch.Tensor


@dataclass(frozen=True)
class FastDecodes:
    """The first rows of the batch, as `DecodeKv` has them."""

    tables: torch.Tensor
    lengths: torch.Tensor
    gather: torch.Tensor


@dataclass(frozen=True)
class FastAttention:
    """The attention of one layer group in one step, by `backend`."""

    backend: AttentionBackend
    decodes: FastDecodes | None
    chunks: tuple[FastChunk, ...]

    def __call__(
        self, query: torch.Tensor, memory: KvMemory, layer: int, scores: Scores, value_dim: int
    ) -> torch.Tensor:
        """[rows, heads, head dim] queries, padding at their end → [rows without it, heads · value dim]. Their keys and
        values are stored."""
        rows = sum(chunk.count for chunk in self.chunks) + (0 if self.decodes is None else len(self.decodes.lengths))
        output = torch.empty(rows, *query.shape[1:], dtype=query.dtype, device=query.device)
        decodes = self.decodes
        if decodes is not None:
            count = len(decodes.lengths)

            def gather() -> tuple[torch.Tensor, torch.Tensor]:
                keys, values = memory.gather(layer, decodes.gather, count)
                return keys.transpose(1, 2), values.transpose(1, 2)

            kv = DecodeKv(PagedKv(memory.data, layer), decodes.tables, decodes.lengths, gather)
            output[:count] = self.backend.decode(query[:count], kv, scores)
        for chunk in self.chunks:
            keys, values = memory.gather(layer, chunk.gather, 1)
            own = slice(chunk.first, chunk.first + chunk.count)
            self.backend.prefill(
                query[own],
                keys[0].transpose(0, 1)[: chunk.tokens],
                values[0].transpose(0, 1)[: chunk.tokens],
                scores,
                output[own],
            )
        return output[..., :value_dim].reshape(rows, -1)


def plan_fast_attention(
    plan: AttentionPlan, chunks: Sequence[Chunk], decodes: int, backend: AttentionBackend
) -> FastAttention:
    """The attention of these chunks, the first `decodes` of them of one token each, of the plan's layer group."""
    group, device = plan.group, plan.device
    blocks = [_seen_blocks(chunk, group.window) for chunk in chunks]
    decoding = None
    if decodes:
        widest = max(len(seen) for seen, _ in blocks[:decodes])
        tables = np.stack([np.pad(seen, (0, widest - len(seen)), "edge") for seen, _ in blocks[:decodes]])
        lengths = np.array([tokens for _, tokens in blocks[:decodes]], np.int32)
        decoding = FastDecodes(
            torch.from_numpy(tables.astype(np.int32)).to(device),
            torch.from_numpy(lengths).to(device),
            _gathered_rows(group, tables, device),
        )
    ends = np.cumsum([chunk.count for chunk in chunks])
    planned = [
        FastChunk(int(end) - chunk.count, chunk.count, tokens, _gathered_rows(group, seen[None], device))
        for chunk, end, (seen, tokens) in zip(chunks[decodes:], ends[decodes:], blocks[decodes:], strict=True)
    ]
    return FastAttention(backend, decoding, tuple(planned))


def _seen_blocks(chunk: Chunk, window: int) -> tuple[Indices, int]:
    """The blocks that the chunk's tokens see, and how many tokens there are in them up to the chunk's last one."""
    end = chunk.start + chunk.count
    first = max(0, chunk.start - window + 1) // BLOCK_TOKENS if window else 0
    seen = np.asarray(chunk.table, np.int64)[first : -(-end // BLOCK_TOKENS)]
    assert (seen != ABSENT).all()
    return seen, end - first * BLOCK_TOKENS


def _gathered_rows(group: LayerGroup, blocks: Indices, device: torch.device) -> torch.Tensor:
    """The rows of `KvMemory.heads` for blocks [sequences, blocks], as `KvMemory.gather` takes them."""
    lanes = np.arange(parts(group) * group.kv_heads).reshape(-1, group.kv_heads)
    rows = blocks[:, None, None] * (len(group.layers) * lanes.size) + lanes.T[:, :, None]
    return torch.from_numpy(np.ascontiguousarray(rows.reshape(-1))).to(device)
