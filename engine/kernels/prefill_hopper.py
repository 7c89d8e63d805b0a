"""Causal attention of prompt chunks on Hopper: `prefill_attention`, with the same bits, as a warp-specialized kernel.

A tile has 128 rows. One warp fetches blocks of keys and values into shared memory by the tensor memory accelerator; two
groups of four warps take 64 rows each, and both use every block that was fetched. Within a group the product of the
weights with a block's values runs beside the softmax of the next block (Shah et al. 2024, FlashAttention-3).

The arithmetic is that of `attention_splits`, operation by operation: the products of a row do not depend on who else is
in the tile, sums of weights are one partial sum for each key column and added up by the same tree, and splits are
folded in the same order. `tests/gpu/kernels` compares both kernels bit by bit.
"""

from __future__ import annotations

import torch
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from engine.kernels.attention_splits import LOG2_E
from engine.kernels.paged_kv import PagedKv, Scores
from engine.kernels.prefill_attention import PrefillTiles
from prompt_cache.kv.block_keys import BLOCK_TOKENS

TILE_ROWS = 128
_STAGES = 4
"""Blocks of keys, and as many of values, that are in shared memory at a time."""
_REGISTERS, _FETCHING_REGISTERS, _MOST_REGISTERS = 240, 24, 168
"""Registers of a thread that computes, of one that fetches, and of each if all had as many."""
BLOCK: gl.constexpr = gl.constexpr(BLOCK_TOKENS)
HIDDEN: gl.constexpr = gl.constexpr(-1e30)
GROUP_ROWS: gl.constexpr = gl.constexpr(64)


def fits(kv: PagedKv, heads: int, dtype: torch.dtype, scores: Scores) -> bool:
    """Whether the kernel computes attention of this kind, on a Hopper; KV in 8 bits is to be widened first."""
    each = heads // kv.kv_heads
    return (
        dtype in (torch.bfloat16, torch.float16)
        and (kv.data.dtype == dtype or kv.in_fp8)
        and kv.head_dim in (64, 128)
        # A tile lies within one block of keys, so that only its last one is masked.
        and each in (2, 4, 8, 16, 32, 64)
        and not scores.window
        and scores.soft_cap is None
        and scores.sinks is None
        and kv.data.is_contiguous()
    )


def prefill_attention_hopper(
    query: torch.Tensor,
    kv: PagedKv,
    block_tables: torch.Tensor,
    bounds: torch.Tensor,
    tiles: PrefillTiles,
    scores: Scores,
    output: torch.Tensor,
    *,
    stages: int = _STAGES,
) -> None:
    """As `prefill_attention.prefill_attention`; the tiles have 128 rows."""
    dim = kv.head_dim
    element = gl.bfloat16 if query.dtype == torch.bfloat16 else gl.float16
    layout = gl.NVMMASharedLayout.get_default_for([BLOCK_TOKENS, dim], element)
    rows = kv.data.view(-1, dim)
    blocks = TensorDescriptor(rows, list(rows.shape), [dim, 1], [BLOCK_TOKENS, dim], layout)
    _prefill[(len(tiles.table), kv.kv_heads)](
        query,
        blocks,
        output,
        block_tables,
        bounds,
        tiles.table,
        scores.scale * LOG2_E,
        kv.block_stride // dim,
        kv.layer_offset // dim,
        kv.part_stride // dim,
        query.stride(0),
        query.stride(1),
        output.stride(0),
        output.stride(1),
        block_tables.stride(0),
        EACH=query.shape[1] // kv.kv_heads,
        DIM=dim,
        STAGES=stages,
        REGISTERS=_REGISTERS,
        FETCHING_REGISTERS=_FETCHING_REGISTERS,
        num_warps=4,
        maxnreg=_MOST_REGISTERS,
    )


@gluon.jit
def _fetch(
    blocks, block_tables, tiles, table_row, block_rows, first_row, part_rows, k_smem, v_smem, full, empty,
    STAGES: gl.constexpr,
):  # fmt: skip
    """Stage i has the keys of block i and the values of block i − 1, which are used at the same time."""
    tile = tiles + gl.program_id(0) * 6
    last = gl.load(tile + 2) + gl.load(tile + 1) - 1
    table = block_tables + gl.load(tile + 3).to(gl.int64) * table_row
    count = last // BLOCK + 1
    size: gl.constexpr = blocks.block_type.nbytes
    key_row = gl.load(table) * block_rows + first_row
    value_row = key_row + part_rows
    following = gl.load(table + gl.minimum(1, count - 1))
    for i in range(0, count + 1):
        stage = i % STAGES
        ready = full.index(stage)
        mbarrier.wait(empty.index(stage), ((i // STAGES) & 1) ^ 1)
        both = (i > 0) & (i < count)
        mbarrier.expect(ready, 2 * size, pred=both)
        mbarrier.expect(ready, size, pred=both ^ True)
        tma.async_copy_global_to_shared(blocks, [key_row, 0], ready, k_smem.index(stage), pred=i < count)
        tma.async_copy_global_to_shared(blocks, [value_row, 0], ready, v_smem.index(stage), pred=i > 0)
        value_row = key_row + part_rows
        key_row = following * block_rows + first_row
        following = gl.load(table + gl.minimum(i + 2, count - 1))


@gluon.jit
def _sum_columns(x, LAYOUT: gl.constexpr):
    """[64, 64] → [64], by a tree of neighbours: a sum of two does not depend on their order."""
    x = gl.sum(gl.reshape(x, (GROUP_ROWS, 32, 2)), 2)
    x = gl.sum(gl.reshape(x, (GROUP_ROWS, 16, 2)), 2)
    x = gl.sum(gl.reshape(x, (GROUP_ROWS, 8, 2)), 2)
    x = gl.sum(gl.reshape(x, (GROUP_ROWS, 4, 2)), 2)
    x = gl.sum(gl.reshape(x, (GROUP_ROWS, 2, 2)), 2)
    return gl.convert_layout(gl.sum(x, 1), LAYOUT)


@gluon.jit
def _softmax(score, top, weights, scale):
    """A block's weights: (top, sums, weights, shrink); see `attention_splits`."""
    new_top = gl.maximum(top, gl.max(score, 1) * scale)
    weight = gl.exp2(gl.fma(score, gl.zeros_like(score) + scale, gl.zeros_like(score) - new_top[:, None]))
    shrink = gl.exp2(top - new_top)
    weights = gl.fma(weights, gl.zeros_like(weights) + shrink[:, None], weight)
    return new_top, weights, weight, shrink


@gluon.jit
def _fold(top, total, folded, split_top, split_total, split_out, LAYOUT: gl.constexpr):
    """See `attention_splits.fold`; the weighted values are in shared memory."""
    new_top = gl.maximum(top, split_top)
    shrink = gl.exp2(top - new_top)
    split_shrink = gl.exp2(split_top - new_top)
    total = gl.fma(total, shrink, split_total * split_shrink)
    out = folded.load(LAYOUT)
    shrink_out = gl.convert_layout(shrink, gl.SliceLayout(1, LAYOUT))[:, None]
    split_shrink_out = gl.convert_layout(split_shrink, gl.SliceLayout(1, LAYOUT))[:, None]
    out = gl.fma(out, gl.zeros_like(out) + shrink_out, split_out * split_shrink_out)
    return new_top, total, out


@gluon.jit
def _step(
    q, k_smem, v_smem, full, empty, j, top, weights, p, out, nothing, positions, scale,
    MASKED: gl.constexpr, STAGES: gl.constexpr,
    S: gl.constexpr, P: gl.constexpr, OROW: gl.constexpr,
):  # fmt: skip
    """Block j's scores and softmax, beside the product of the weights `p` with the values of the block before it."""
    stage = j % STAGES
    score = warpgroup_mma(q, k_smem.index(stage).permute((1, 0)), nothing, use_acc=False, is_async=True)
    product = warpgroup_mma(p, v_smem.index(stage), out, is_async=True)
    score = warpgroup_mma_wait(1, deps=(score,))
    if MASKED:
        key = j * BLOCK + gl.arange(0, BLOCK, gl.SliceLayout(0, S))
        score = gl.where(key[None, :] <= positions[:, None], score, HIDDEN)
    top, weights, weight, shrink = _softmax(score, top, weights, scale)
    following = gl.convert_layout(weight.to(p.dtype), P)
    # Here, since instructions stay on their side of it: the softmax is to run beside the product.
    mbarrier.wait(full.index((j + 1) % STAGES), ((j + 1) // STAGES) & 1)
    # What the product reads must stay until it is done.
    out, p, following, weights, shrink = warpgroup_mma_wait(0, deps=(product, p, following, weights, shrink))
    mbarrier.arrive(empty.index(stage), count=1)
    out = out * gl.convert_layout(shrink, OROW)[:, None]
    return top, weights, following, out


@gluon.jit
def _compute(
    query, output, bounds, tiles, scale, query_row, query_head, output_row, output_head,
    k_smem, v_smem, folded, full, empty,
    EACH: gl.constexpr, DIM: gl.constexpr, STAGES: gl.constexpr, GROUP: gl.constexpr,
):  # fmt: skip
    """64 rows of a tile: those of group 0 or 1."""
    S: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 64, 16])
    OUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, DIM, 16])
    P: gl.constexpr = gl.DotOperandLayout(0, OUT, 2)
    ROW: gl.constexpr = gl.SliceLayout(1, S)
    OROW: gl.constexpr = gl.SliceLayout(1, OUT)
    LOAD: gl.constexpr = gl.BlockedLayout([1, 8], [256 // DIM, DIM // 8], [4, 1], [1, 0])
    tile = tiles + gl.program_id(0) * 6
    first_row = gl.load(tile)
    tokens = gl.load(tile + 1)
    position = gl.load(tile + 2)
    last_split = gl.load(tile + 5)
    last = position + tokens - 1
    count = last // BLOCK + 1
    first_head = gl.program_id(1) * EACH

    lane = GROUP * GROUP_ROWS + gl.arange(0, GROUP_ROWS, gl.SliceLayout(1, LOAD))
    d = gl.arange(0, DIM, gl.SliceLayout(0, LOAD))
    row = (first_row + gl.minimum(lane // EACH, tokens - 1)).to(gl.int64)
    at = row * query_row + (first_head + lane % EACH) * query_head
    q = gl.load(query + at[:, None] + d[None, :], mask=(lane < tokens * EACH)[:, None], other=0.0)
    q = gl.convert_layout(q, gl.DotOperandLayout(0, S, 2))
    folded.store(gl.zeros((GROUP_ROWS, DIM), gl.float32, OUT))

    lane = GROUP * GROUP_ROWS + gl.arange(0, GROUP_ROWS, ROW)
    positions = position + gl.minimum(lane // EACH, tokens - 1)
    nothing = gl.zeros((GROUP_ROWS, BLOCK), gl.float32, S)
    blank = gl.zeros((GROUP_ROWS, DIM), gl.float32, OUT)
    hidden = gl.full((GROUP_ROWS,), HIDDEN, gl.float32, ROW)
    folded_top = hidden
    folded_total = gl.zeros((GROUP_ROWS,), gl.float32, ROW)

    mbarrier.wait(full.index(0), 0)
    score = warpgroup_mma(q, k_smem.index(0).permute((1, 0)), nothing, use_acc=False, is_async=True)
    score = warpgroup_mma_wait(0, deps=(score,))
    mbarrier.arrive(empty.index(0), count=1)
    begin = 0
    # Splits that all rows see whole.
    for split in range(0, last_split):
        end = gl.load(bounds + split + 1) // BLOCK
        top, weights, weight, shrink = _softmax(score, hidden, nothing, scale)
        p = gl.convert_layout(weight.to(query.dtype.element_ty), P)
        out = blank
        mbarrier.wait(full.index((begin + 1) % STAGES), ((begin + 1) // STAGES) & 1)
        for j in range(begin + 1, end):
            top, weights, p, out = _step(
                q, k_smem, v_smem, full, empty, j, top, weights, p, out, nothing, positions,
                scale, False, STAGES, S, P, OROW,
            )  # fmt: skip
        product = warpgroup_mma(p, v_smem.index(end % STAGES), out, is_async=True)
        score = warpgroup_mma(
            q, k_smem.index(end % STAGES).permute((1, 0)), nothing, use_acc=False, is_async=True
        )  # fmt: skip
        split_total = _sum_columns(weights, ROW)
        out, score, p, split_total = warpgroup_mma_wait(0, deps=(product, score, p, split_total))
        mbarrier.arrive(empty.index(end % STAGES), count=1)
        folded_top, folded_total, sums = _fold(folded_top, folded_total, folded, top, split_total, out, OUT)
        folded.store(sums)
        begin = end

    # The last one, of whose blocks the last is masked.
    key = begin * BLOCK + gl.arange(0, BLOCK, gl.SliceLayout(0, S))
    score = gl.where((key[None, :] <= positions[:, None]) | (begin < count - 1), score, HIDDEN)
    top, weights, weight, shrink = _softmax(score, hidden, nothing, scale)
    p = gl.convert_layout(weight.to(query.dtype.element_ty), P)
    out = blank
    mbarrier.wait(full.index((begin + 1) % STAGES), ((begin + 1) // STAGES) & 1)
    for j in range(begin + 1, count - 1):
        top, weights, p, out = _step(
            q, k_smem, v_smem, full, empty, j, top, weights, p, out, nothing, positions, scale,
            False, STAGES, S, P, OROW,
        )  # fmt: skip
    if begin < count - 1:
        top, weights, p, out = _step(
            q, k_smem, v_smem, full, empty, count - 1, top, weights, p, out, nothing, positions,
            scale, True, STAGES, S, P, OROW,
        )  # fmt: skip

    # What lies behind the last token was never written: 0 · NaN would be NaN.
    block = v_smem.index(count % STAGES)
    values = block.load(LOAD)
    held = gl.arange(0, BLOCK, gl.SliceLayout(1, LOAD)) + (count - 1) * BLOCK <= last
    gl.thread_barrier()
    block.store(gl.where(held[:, None], values, gl.zeros_like(values)))
    fence_async_shared()
    gl.thread_barrier()
    product = warpgroup_mma(p, block, out, is_async=True)
    split_total = _sum_columns(weights, ROW)
    out, p = warpgroup_mma_wait(0, deps=(product, p))
    folded_top, folded_total, out = _fold(folded_top, folded_total, folded, top, split_total, out, OUT)

    # `attention_splits.normalize` without a sink.
    new_top = gl.maximum(folded_top, hidden)
    shrink = gl.exp2(folded_top - new_top)
    factor = shrink / gl.fma(folded_total, shrink, gl.exp2(hidden - new_top))
    mean = out * gl.convert_layout(factor, OROW)[:, None]
    lane = GROUP * GROUP_ROWS + gl.arange(0, GROUP_ROWS, OROW)
    d = gl.arange(0, DIM, gl.SliceLayout(0, OUT))
    row = (first_row + gl.minimum(lane // EACH, tokens - 1)).to(gl.int64)
    at = row * output_row + (first_head + lane % EACH) * output_head
    gl.store(output + at[:, None] + d[None, :], mean.to(output.dtype.element_ty), mask=(lane < tokens * EACH)[:, None])


@gluon.jit
def _prefill(
    query,
    blocks,
    output,
    block_tables,
    bounds,
    tiles,
    scale,
    block_rows,
    layer_rows,
    part_rows,
    query_row,
    query_head,
    output_row,
    output_head,
    table_row,
    EACH: gl.constexpr,
    DIM: gl.constexpr,
    STAGES: gl.constexpr,
    REGISTERS: gl.constexpr,
    FETCHING_REGISTERS: gl.constexpr,
):
    dtype: gl.constexpr = query.dtype.element_ty
    f_layout: gl.constexpr = gl.SwizzledSharedLayout(2, 1, 16, [1, 0])
    folded = gl.allocate_shared_memory(gl.float32, [2, GROUP_ROWS, DIM], f_layout)
    k_smem = gl.allocate_shared_memory(dtype, [STAGES, BLOCK, DIM], blocks.layout)
    v_smem = gl.allocate_shared_memory(dtype, [STAGES, BLOCK, DIM], blocks.layout)
    full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for stage in gl.static_range(STAGES):
        mbarrier.init(full.index(stage), count=1)
        mbarrier.init(empty.index(stage), count=2)
    fence_async_shared()
    first_row = gl.to_tensor(layer_rows) + gl.program_id(1) * BLOCK
    strides = (
        gl.to_tensor(query_row), gl.to_tensor(query_head), gl.to_tensor(output_row), gl.to_tensor(output_head)
    )  # fmt: skip
    gl.warp_specialize(
        [
            (
                _compute,
                (query, output, bounds, tiles, scale, strides[0], strides[1], strides[2], strides[3],
                 k_smem, v_smem, folded.index(0), full, empty,
                 EACH, DIM, STAGES, 0),
            ),
            (
                _compute,
                (query, output, bounds, tiles, scale, strides[0], strides[1], strides[2], strides[3],
                 k_smem, v_smem, folded.index(1), full, empty,
                 EACH, DIM, STAGES, 1),
            ),
            (
                _fetch,
                (blocks, block_tables, tiles, gl.to_tensor(table_row), gl.to_tensor(block_rows), first_row,
                 gl.to_tensor(part_rows), k_smem, v_smem, full, empty, STAGES),
            ),
        ],
        [4, 1],
        [REGISTERS, FETCHING_REGISTERS],
    )  # fmt: skip
