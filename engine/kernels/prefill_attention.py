"""Causal attention of prompt chunks over paged KV.

A tile is some tokens of one chunk with all query heads of one KV head, so that each key is read once for all of them.
Splits are folded as they come, in the order in which `decode_attention` merges them: a row has the same bits in both.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
import triton
import triton.language as tl

from engine.kernels.attention_splits import HIDDEN, LOG2_E, attend_split, fold, normalize, pipeline_stages
from engine.kernels.dependent_launch import LAUNCH, let_next_begin, wait_for_inputs
from engine.kernels.paged_kv import PagedKv, Scores

TILE_ROWS = 64


@dataclass(frozen=True)
class PrefillTiles:
    """`table` int32 [tiles, 6]: first row of the batch, tokens, position of the first token, row of the block tables,
    first split, last split. Long tiles come first."""

    table: torch.Tensor
    tokens: int


def plan_prefill_tiles(
    chunks: Sequence[tuple[int, int, int, int]],
    heads_per_kv_head: int,
    bounds: Sequence[int],
    window: int = 0,
    *,
    tile_rows: int = TILE_ROWS,
) -> PrefillTiles:
    """Tiles of chunks (first row, start position, tokens, row of the block tables), on the CPU.

    `bounds` are the positions at which keys are cut; `window` in tokens, 0 for none. `tile_rows`: tokens
    · heads of a tile.
    """
    tokens = max(1, tile_rows // heads_per_kv_head)
    rows = []
    for first_row, start, count, table_row in chunks:
        # Cut at multiples of the tile, so that a chunk that goes on at another place meets tiles of the same kind.
        at = start
        while at < start + count:
            end = min((at // tokens + 1) * tokens, start + count)
            rows.append((first_row + at - start, end - at, at, table_row))
            at = end
    table = np.array(rows, np.int32).reshape(-1, 4)
    last = np.searchsorted(bounds, table[:, 2] + table[:, 1] - 1, side="right") - 1
    oldest = np.maximum(table[:, 2] - window + 1, 0) if window else np.zeros(len(rows), np.int64)
    first = np.searchsorted(bounds, oldest, side="right") - 1
    table = np.concatenate([table, first[:, None], last[:, None]], 1).astype(np.int32)
    order = np.argsort(first - last, kind="stable")
    return PrefillTiles(torch.from_numpy(np.ascontiguousarray(table[order])), tokens)


def prefill_attention(
    query: torch.Tensor,
    kv: PagedKv,
    block_tables: torch.Tensor,
    bounds: torch.Tensor,
    tiles: PrefillTiles,
    scores: Scores,
    output: torch.Tensor,
    *,
    warps: int = 4,
    stages: int | None = None,
) -> None:
    """Write the attention of [rows, heads, head dim] queries to `output`, of the same shape.

    `block_tables` int32 [sequences, blocks]; `bounds` int32 as `split_bounds` gives them; all on the queries' device.
    Rows that no tile has are left as they are.
    """
    count = len(tiles.table)
    heads_per_kv_head = query.shape[1] // kv.kv_heads
    rows = triton.next_power_of_2(max(16, tiles.tokens * heads_per_kv_head))
    _prefill[(count, kv.kv_heads)](
        query,
        kv.data,
        output,
        block_tables,
        bounds,
        tiles.table,
        query if scores.sinks is None else scores.sinks,
        scores.scale * LOG2_E,
        kv.layer_offset,
        query.stride(0),
        query.stride(1),
        output.stride(0),
        output.stride(1),
        block_tables.stride(0),
        HEADS_PER_KV_HEAD=heads_per_kv_head,
        TOKENS=tiles.tokens,
        ROWS=rows,
        BLOCK_STRIDE=kv.block_stride,
        PART_STRIDE=kv.part_stride,
        HEAD_STRIDE=kv.head_stride,
        DIM=kv.head_dim,
        DIM_PADDED=triton.next_power_of_2(kv.head_dim),
        WINDOW=scores.window,
        SOFT_CAP=scores.soft_cap or 0.0,
        SINKS=scores.sinks is not None,
        num_warps=warps,
        num_stages=stages or min(2, pipeline_stages(triton.next_power_of_2(kv.head_dim), query.dtype)),
        **LAUNCH,
    )


@triton.jit
def _prefill(
    query,
    kv,
    output,
    block_tables,
    bounds,
    tiles,
    sinks,
    scale,
    layer_offset,
    query_row,
    query_head,
    output_row,
    output_head,
    table_row,
    HEADS_PER_KV_HEAD: tl.constexpr,
    TOKENS: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK_STRIDE: tl.constexpr,
    PART_STRIDE: tl.constexpr,
    HEAD_STRIDE: tl.constexpr,
    DIM: tl.constexpr,
    DIM_PADDED: tl.constexpr,
    WINDOW: tl.constexpr,
    SOFT_CAP: tl.constexpr,
    SINKS: tl.constexpr,
):
    wait_for_inputs()
    let_next_begin()
    tile = tiles + tl.program_id(0) * 6
    first_row = tl.load(tile)
    tokens = tl.load(tile + 1)
    position = tl.load(tile + 2)
    table = block_tables + tl.load(tile + 3).to(tl.int64) * table_row
    first_split = tl.load(tile + 4)
    last_split = tl.load(tile + 5)
    kv_head = tl.program_id(1)

    lane = tl.arange(0, ROWS)
    token = tl.minimum(lane // HEADS_PER_KV_HEAD, tokens - 1)
    head = kv_head * HEADS_PER_KV_HEAD + lane % HEADS_PER_KV_HEAD
    real = lane < tokens * HEADS_PER_KV_HEAD
    positions = position + token
    d = tl.arange(0, DIM_PADDED)
    held = real[:, None] & (d < DIM)[None, :]
    row = (first_row + token).to(tl.int64)
    q = tl.load(query + row[:, None] * query_row + head[:, None] * query_head + d[None, :], mask=held, other=0.0)
    keys = kv + layer_offset + kv_head * HEAD_STRIDE
    values = keys + PART_STRIDE

    top = tl.full((ROWS,), HIDDEN, tl.float32)
    total = tl.zeros((ROWS,), tl.float32)
    out = tl.zeros((ROWS, DIM_PADDED), tl.float32)
    # Splits that end before the tile are seen whole by all its rows, unless they begin before a row's window.
    masked = last_split
    if tl.load(bounds + last_split + 1) <= position + 1:
        masked = last_split + 1
    elif tl.load(bounds + last_split) > position + 1:
        masked = last_split - 1
    before = first_split
    if WINDOW:
        while (before <= last_split) & (tl.load(bounds + before) <= position + tokens - 1 - WINDOW):
            before += 1
        for split in range(first_split, tl.minimum(before, masked)):
            split_top, split_total, split_out = attend_split(
                q, keys, values, table, tl.load(bounds + split), tl.load(bounds + split + 1), positions, position,
                position + tokens - 1, scale, ROWS, BLOCK_STRIDE, DIM, DIM_PADDED, WINDOW, SOFT_CAP, False,
            )  # fmt: skip
            top, total, out = fold(top, total, out, split_top, split_total, split_out)
    for split in range(before, masked):
        split_top, split_total, split_out = attend_split(
            q, keys, values, table, tl.load(bounds + split), tl.load(bounds + split + 1), positions, position,
            position + tokens - 1, scale, ROWS, BLOCK_STRIDE, DIM, DIM_PADDED, WINDOW, SOFT_CAP, True,
        )  # fmt: skip
        top, total, out = fold(top, total, out, split_top, split_total, split_out)
    for split in range(masked, last_split + 1):
        split_top, split_total, split_out = attend_split(
            q, keys, values, table, tl.load(bounds + split), tl.load(bounds + split + 1), positions, position,
            position + tokens - 1, scale, ROWS, BLOCK_STRIDE, DIM, DIM_PADDED, WINDOW, SOFT_CAP, False,
        )  # fmt: skip
        top, total, out = fold(top, total, out, split_top, split_total, split_out)
    if SINKS:
        sink = tl.load(sinks + head, mask=real, other=0.0) * 1.4426950408889634
    else:
        sink = tl.full((ROWS,), HIDDEN, tl.float32)
    mean = normalize(top, total, out, sink)
    place = output + row[:, None] * output_row + head[:, None] * output_head + d[None, :]
    tl.store(place, mean.to(output.dtype.element_ty), mask=held)
