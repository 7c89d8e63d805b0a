"""What latent attention does to each row by itself: queries for latents, the entries that are kept, and values.

- *absorb*: a head's query part without positions, times its W_uk, becomes a query for latents; the other part is turned
  (Su et al. 2021). In the same launch each row's entry, its normalized latent and its turned key, is appended.
- *values*: the mean of latents that a head saw, times its W_uv. For few rows the kernel that merges the splits does it.

Products are added up along their inputs by one accumulator, in tiles whose height changes no bits.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from engine.kernels.attention_splits import HIDDEN, fold, normalize
from engine.kernels.decode_plan import SplitResults, WorkList
from engine.kernels.dependent_launch import LAUNCH, let_next_begin, prefetch, wait_for_inputs
from engine.kernels.paged_kv import PagedKv

_OUTPUTS = 128
"""Outputs of a tile of a head's product, at most."""
_NORMALIZED = 8
"""Rows whose entries a program makes at a time."""
_MERGED_OUTPUTS = 32
"""Outputs of a program that merges splits as well: each merges them again."""


def _high(rows: int) -> int:
    """Rows of a tile."""
    return 16 if rows <= 16 else 32 if rows <= 32 else 64


def _step(inputs: int, most: int = 128) -> int:
    """Inputs of a product at a time, which divide all of them."""
    return next(step for step in (128, 64, 32, 16) if step <= most and inputs % step == 0)


def absorb_and_append(
    query: torch.Tensor,
    entry: torch.Tensor,
    absorb: torch.Tensor,
    out: torch.Tensor,
    kv: PagedKv,
    norm: torch.Tensor,
    eps: float,
    cosines: torch.Tensor,
    sines: torch.Tensor,
    positions: torch.Tensor,
    table_rows: torch.Tensor,
    block_tables: torch.Tensor,
    *,
    interleaved: bool,
) -> None:
    """Queries [rows, heads · (nope + rope)] → `out` [rows, heads, rank + rope]; entries [rows, rank + rope] → paged KV.

    `absorb` [heads, nope, rank], W_uk of each head. `norm` [rank], `eps`: of the latents' norm. `cosines`, `sines` fp32
    [context, rope / 2]. `interleaved`: pairs that are turned are neighbours; they become two halves. Rows with position
    −1 are not kept.
    """
    rows, heads, wide = out.shape
    _, nope, rank = absorb.shape
    high, outputs = _high(rows), min(_OUTPUTS, max(16, triton.next_power_of_2(rank)))
    tiles = triton.cdiv(rank, outputs)
    _absorb_and_append[(heads * tiles + 1, triton.cdiv(rows, high))](
        query, entry, absorb, out, kv.data, norm, eps, cosines, sines, positions, table_rows, block_tables, rows,
        kv.layer_offset, query.stride(0), entry.stride(0), out.stride(0), block_tables.stride(0),
        NOPE=nope, ROPE=wide - rank, ROPE_PADDED=triton.next_power_of_2(wide - rank), RANK=rank,
        RANK_PADDED=triton.next_power_of_2(rank), TILES=tiles, OUTPUTS=outputs, HIGH=high, STEP=_step(nope),
        TOGETHER=_NORMALIZED, BLOCK_STRIDE=kv.block_stride, INTERLEAVED=interleaved, num_warps=4, num_stages=3,
        **LAUNCH,
    )  # fmt: skip


@triton.jit(do_not_specialize=["rows"])
def _absorb_and_append(
    query, entry, absorb, out, kv, norm, eps, cosines, sines, positions, table_rows, block_tables, rows, layer_offset,
    query_row, entry_row, out_row, table_row,
    NOPE: tl.constexpr, ROPE: tl.constexpr, ROPE_PADDED: tl.constexpr, RANK: tl.constexpr, RANK_PADDED: tl.constexpr,
    TILES: tl.constexpr, OUTPUTS: tl.constexpr, HIGH: tl.constexpr, STEP: tl.constexpr, TOGETHER: tl.constexpr,
    BLOCK_STRIDE: tl.constexpr, INTERLEAVED: tl.constexpr,
):  # fmt: skip
    """The first program of a tile of rows makes their entries; each other one a tile of a head's queries."""
    work = tl.program_id(0) - 1
    first = tl.program_id(1) * HIGH
    if work < 0:
        wait_for_inputs()
        let_next_begin()
        for next_row in range(first, tl.minimum(first + HIGH, rows), TOGETHER):
            _append(
                entry, kv, norm, eps, cosines, sines, positions, table_rows, block_tables, next_row, rows, layer_offset,
                entry_row, table_row, RANK, RANK_PADDED, ROPE, ROPE_PADDED, TOGETHER, BLOCK_STRIDE, INTERLEAVED,
            )  # fmt: skip
    else:
        head, tile = work // TILES, work % TILES
        k = tl.arange(0, STEP)
        n = tile * OUTPUTS + tl.arange(0, OUTPUTS)
        weight = absorb + head.to(tl.int64) * NOPE * RANK + n[None, :]
        prefetch(weight + tl.arange(0, STEP)[:, None] * RANK + tl.zeros_like(n)[None, :])
        wait_for_inputs()
        let_next_begin()
        m = first + tl.arange(0, HIGH)
        inside = (m < rows)[:, None]
        at = m.to(tl.int64)[:, None]
        start = query + at * query_row + head * (NOPE + ROPE)
        total = tl.zeros((HIGH, OUTPUTS), tl.float32)
        for begin in range(0, NOPE, STEP):
            x = tl.load(start + (begin + k)[None, :], mask=inside, other=0.0)
            w = tl.load(weight + (begin + k)[:, None] * RANK, mask=(n < RANK)[None, :], other=0.0)
            total = tl.dot(x, w, total, input_precision="ieee")
        to = out + at * out_row + head * (RANK + ROPE)
        tl.store(to + n[None, :], total.to(out.dtype.element_ty), mask=inside & (n < RANK)[None, :])
        if tile == 0:
            position = tl.load(positions + m, mask=m < rows, other=-1)
            turned = _turned(start + NOPE, position, cosines, sines, inside, ROPE, ROPE_PADDED, INTERLEAVED)
            t = tl.arange(0, ROPE_PADDED)
            tl.store(
                to + RANK + t[None, :], turned.to(out.dtype.element_ty), mask=inside & (t < ROPE)[None, :]
            )  # fmt: skip


@triton.jit
def _turned(
    x, position, cosines, sines, inside, ROPE: tl.constexpr, ROPE_PADDED: tl.constexpr, INTERLEAVED: tl.constexpr
):  # fmt: skip
    """The vectors […, ROPE] at `x`, turned by halves, in fp32; those of position −1 as if it were 0."""
    HALF: tl.constexpr = ROPE // 2
    t = tl.arange(0, ROPE_PADDED)
    is_first = t < HALF
    angle = tl.where(is_first, t, t - HALF)
    if INTERLEAVED:
        own = tl.where(is_first, 2 * angle, 2 * angle + 1)
        partner = tl.where(is_first, 2 * angle + 1, 2 * angle)
    else:
        own = t
        partner = tl.where(is_first, t + HALF, t - HALF)
    held = inside & (t < ROPE)[None, :]
    a = tl.load(x + own[None, :], mask=held, other=0.0).to(tl.float32)
    b = tl.load(x + partner[None, :], mask=held, other=0.0).to(tl.float32)
    place = tl.maximum(position, 0).to(tl.int64)[:, None] * HALF + angle[None, :]
    cosine = tl.load(cosines + place, mask=held, other=1.0)
    sine = tl.load(sines + place, mask=held, other=0.0)
    return tl.fma(b, tl.where(is_first[None, :], -sine, sine), a * cosine)


@triton.jit
def _append(
    entry, kv, norm, eps, cosines, sines, positions, table_rows, block_tables, start, rows, layer_offset, entry_row,
    table_row,
    RANK: tl.constexpr, RANK_PADDED: tl.constexpr, ROPE: tl.constexpr, ROPE_PADDED: tl.constexpr,
    TOGETHER: tl.constexpr, BLOCK_STRIDE: tl.constexpr, INTERLEAVED: tl.constexpr,
):  # fmt: skip
    """The entries of a few rows, to their places in the paged KV."""
    m = start + tl.arange(0, TOGETHER)
    r = tl.arange(0, RANK_PADDED)
    t = tl.arange(0, ROPE_PADDED)
    position = tl.load(positions + m, mask=m < rows, other=-1)
    kept = (position >= 0)[:, None]
    x = entry + m.to(tl.int64)[:, None] * entry_row
    latent = tl.load(x + r[None, :], mask=kept & (r < RANK)[None, :], other=0.0).to(tl.float32)
    scale = tl.rsqrt(tl.sum(latent * latent, 1) / RANK + eps)
    weight = tl.load(norm + r, mask=r < RANK, other=0.0).to(tl.float32)
    latent = latent * scale[:, None] * weight[None, :]
    turned = _turned(x + RANK, position, cosines, sines, kept, ROPE, ROPE_PADDED, INTERLEAVED)
    table = block_tables + tl.load(table_rows + m, mask=m < rows, other=0).to(tl.int64) * table_row
    block = tl.load(table + position // 64, mask=position >= 0, other=0).to(tl.int64)
    place = kv + (block * BLOCK_STRIDE + layer_offset + position % 64 * (RANK + ROPE))[:, None]
    tl.store(place + r[None, :], latent.to(kv.dtype.element_ty), mask=kept & (r < RANK)[None, :])
    tl.store(place + RANK + t[None, :], turned.to(kv.dtype.element_ty), mask=kept & (t < ROPE)[None, :])


def head_values(latents: torch.Tensor, values: torch.Tensor, output: torch.Tensor) -> None:
    """Latents [rows, heads, rank] · `values` [heads, rank, value dim] → `output` [rows, heads, value dim]."""
    rows, heads, rank = latents.shape
    size = values.shape[2]
    high, outputs = _high(rows), min(_OUTPUTS, max(16, triton.next_power_of_2(size)))
    tiles = triton.cdiv(size, outputs)
    _head_values[(heads * tiles, triton.cdiv(rows, high))](
        latents, values, output, rows, latents.stride(0), output.stride(0),
        RANK=rank, SIZE=size, TILES=tiles, OUTPUTS=outputs, HIGH=high, STEP=_step(rank, 64), num_warps=4, num_stages=4,
        **LAUNCH,
    )  # fmt: skip


@triton.jit(do_not_specialize=["rows"])
def _head_values(
    latents, values, output, rows, latent_row, output_row,
    RANK: tl.constexpr, SIZE: tl.constexpr, TILES: tl.constexpr, OUTPUTS: tl.constexpr, HIGH: tl.constexpr,
    STEP: tl.constexpr,
):  # fmt: skip
    wait_for_inputs()
    let_next_begin()
    head, tile = tl.program_id(0) // TILES, tl.program_id(0) % TILES
    m = tl.program_id(1) * HIGH + tl.arange(0, HIGH)
    n = tile * OUTPUTS + tl.arange(0, OUTPUTS)
    k = tl.arange(0, STEP)
    inside, wanted = (m < rows)[:, None], (n < SIZE)[None, :]
    at = m.to(tl.int64)[:, None]
    weight = values + head.to(tl.int64) * RANK * SIZE + n[None, :]
    total = tl.zeros((HIGH, OUTPUTS), tl.float32)
    for begin in range(0, RANK, STEP):
        x = tl.load(latents + at * latent_row + head * RANK + (begin + k)[None, :], mask=inside, other=0.0)
        w = tl.load(weight + (begin + k)[:, None] * SIZE, mask=wanted, other=0.0)
        total = tl.dot(x, w, total, input_precision="ieee")
    to = output + at * output_row + head * SIZE + n[None, :]
    tl.store(to, total.to(output.dtype.element_ty), mask=inside & wanted)


def merge_values(
    results: SplitResults,
    positions: torch.Tensor,
    work: WorkList,
    values: torch.Tensor,
    output: torch.Tensor,
    *,
    ahead: bool = False,
) -> None:
    """Fold the splits of each row, and multiply as `head_values` does: for few rows. `ahead`: see `rows.rms_norm`."""
    rows, heads, size = output.shape
    rank, splits = values.shape[1], results.tops.shape[1]
    outputs = min(_MERGED_OUTPUTS, max(16, triton.next_power_of_2(size)))
    _merge_values[(heads * triton.cdiv(size, outputs), triton.cdiv(rows, 16))](
        results.tops, results.totals, results.outs, positions, work.bounds, work.folded_rows, values, output, rows,
        splits, output.stride(0),
        HEADS=heads, RANK=rank, RANK_PADDED=max(16, triton.next_power_of_2(rank)),
        SPLITS_PADDED=triton.next_power_of_2(splits),
        FOLDED=work.folded, SIZE=size, OUTPUTS=outputs, AHEAD=ahead, num_warps=8, **LAUNCH,
    )  # fmt: skip


@triton.jit
def _folded(
    tops, totals, outs, positions, bounds, folded_rows, m, head, rows, splits,
    HEADS: tl.constexpr, RANK: tl.constexpr, RANK_PADDED: tl.constexpr, SPLITS_PADDED: tl.constexpr,
    FOLDED: tl.constexpr, HIGH: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """The mean latents [HIGH, RANK_PADDED] of these rows and one head, in fp32; zeros for padding."""
    r = tl.arange(0, RANK_PADDED)
    j = tl.arange(0, SPLITS_PADDED)
    position = tl.load(positions + m, mask=m < rows, other=-1)
    begins = tl.load(bounds + j, mask=j < splits, other=2147483647)
    last = tl.sum((begins[None, :] <= position[:, None]).to(tl.int32), 1)
    first = tl.zeros_like(last)
    if FOLDED:
        # Those that were folded already lie where those of the first split would.
        is_folded = tl.load(folded_rows + m, mask=m < rows, other=0) != 0
        first = tl.where(is_folded, tl.maximum(tl.minimum(last, FOLDED) - 1, 0), 0)
    top = tl.full((HIGH,), HIDDEN, tl.float32)
    total = tl.zeros((HIGH,), tl.float32)
    out = tl.zeros((HIGH, RANK_PADDED), tl.float32)
    for split in tl.range(tl.min(first, 0), tl.max(last, 0), num_stages=STAGES):
        has = (split >= first) & (split < last)
        place = tl.where(split == first, 0, split) if FOLDED else split
        at = (m.to(tl.int64) * splits + place) * HEADS + head
        split_top = tl.load(tops + at, mask=has, other=HIDDEN)
        split_total = tl.load(totals + at, mask=has, other=0.0)
        split_out = tl.load(
            outs + at[:, None] * RANK + r[None, :], mask=has[:, None] & (r < RANK)[None, :], other=0.0
        )  # fmt: skip
        new_top, new_total, new_out = fold(top, total, out, split_top, split_total, split_out)
        # Rows with fewer splits stay as they are, to the sign of a zero.
        top, total, out = (
            tl.where(has, new_top, top),
            tl.where(has, new_total, total),
            tl.where(has[:, None], new_out, out),
        )
    mean = normalize(top, total, out, tl.full((HIGH,), HIDDEN, tl.float32))
    return tl.where((last > 0)[:, None], mean, 0.0)


@triton.jit(do_not_specialize=["rows"])
def _merge_values(
    tops, totals, outs, positions, bounds, folded_rows, values, output, rows, splits, output_row,
    HEADS: tl.constexpr, RANK: tl.constexpr, RANK_PADDED: tl.constexpr, SPLITS_PADDED: tl.constexpr,
    FOLDED: tl.constexpr, SIZE: tl.constexpr, OUTPUTS: tl.constexpr, AHEAD: tl.constexpr,
):  # fmt: skip
    TILES: tl.constexpr = (SIZE + OUTPUTS - 1) // OUTPUTS
    head, tile = tl.program_id(0) // TILES, tl.program_id(0) % TILES
    n = tile * OUTPUTS + tl.arange(0, OUTPUTS)
    r = tl.arange(0, RANK_PADDED)
    m = tl.program_id(1) * 16 + tl.arange(0, 16)
    weight = values + head.to(tl.int64) * RANK * SIZE + r[:, None] * SIZE + n[None, :]
    # The weight comes while the splits are still computed.
    w = tl.load(weight, mask=(r < RANK)[:, None] & (n < SIZE)[None, :], other=0.0)
    if AHEAD:
        let_next_begin()
    wait_for_inputs()
    if not AHEAD:
        let_next_begin()
    mean = _folded(
        tops, totals, outs, positions, bounds, folded_rows, m, head, rows, splits, HEADS, RANK, RANK_PADDED,
        SPLITS_PADDED, FOLDED, 16, 2,
    )  # fmt: skip
    # Rounded first, as where the mean is stored.
    y = tl.dot(mean.to(w.dtype), w, input_precision="ieee")
    to = output + m.to(tl.int64)[:, None] * output_row + head * SIZE + n[None, :]
    tl.store(to, y.to(output.dtype.element_ty), mask=(m < rows)[:, None] & (n < SIZE)[None, :])


def merge_latents(
    results: SplitResults,
    positions: torch.Tensor,
    work: WorkList,
    values: torch.Tensor,
    output: torch.Tensor,
    *,
    ahead: bool = False,
) -> None:
    """As `merge_values`, in two kernels: for many rows."""
    del ahead
    rows, heads, _ = output.shape
    rank, splits = values.shape[1], results.tops.shape[1]
    mean = output.new_empty(rows, heads, rank)
    _merge_latents[(rows, heads)](
        results.tops, results.totals, results.outs, positions, work.bounds, work.folded_rows, mean, rows, splits,
        HEADS=heads, RANK=rank, RANK_PADDED=max(16, triton.next_power_of_2(rank)),
        SPLITS_PADDED=triton.next_power_of_2(splits),
        FOLDED=work.folded, num_warps=1, **LAUNCH,
    )  # fmt: skip
    head_values(mean, values, output)


@triton.jit(do_not_specialize=["rows"])
def _merge_latents(
    tops, totals, outs, positions, bounds, folded_rows, mean, rows, splits,
    HEADS: tl.constexpr, RANK: tl.constexpr, RANK_PADDED: tl.constexpr, SPLITS_PADDED: tl.constexpr,
    FOLDED: tl.constexpr,
):  # fmt: skip
    wait_for_inputs()
    let_next_begin()
    m = tl.program_id(0) + tl.arange(0, 1)
    head = tl.program_id(1)
    folded = _folded(
        tops, totals, outs, positions, bounds, folded_rows, m, head, rows, splits, HEADS, RANK, RANK_PADDED,
        SPLITS_PADDED, FOLDED, 1, 4,
    )  # fmt: skip
    r = tl.arange(0, RANK_PADDED)
    to = mean + (m.to(tl.int64)[:, None] * HEADS + head) * RANK + r[None, :]
    tl.store(to, folded.to(mean.dtype.element_ty), mask=(r < RANK)[None, :])
