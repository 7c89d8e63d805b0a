"""What a layer does to each row by itself, fused: norms, rotary positions with the KV append, gated activations.

One program computes one row, or one row of some heads, so a row's bits do not depend on the others. All sums are fp32.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from engine.kernels.dependent_launch import LAUNCH, let_next_begin, wait_and_let_next_begin, wait_for_inputs
from engine.kernels.paged_kv import PagedKv
from engine.kernels.stored_in_fp8 import narrow

_HEADS = 8
"""Heads of a row that one program turns."""


def rms_norm(
    x: torch.Tensor,
    weight: torch.Tensor,
    eps: float,
    out: torch.Tensor,
    *,
    plus: torch.Tensor | None = None,
    scales: torch.Tensor | None = None,
    ahead: bool = False,
    plain: torch.Tensor | None = None,
) -> None:
    """x / rms(x) · weight → `out` [rows, size]. With `plus`, x + plus first replaces x (Zhang and Sennrich 2019).

    With `scales` fp32 [rows], `out` is e4m3 and each row is divided by its scale, which is written there; `plain`, if
    it is other memory than `out`, gets what is divided. `ahead`: the next kernel is one of `linear_hopper`, which
    begins before this one does.
    """
    rows, size = x.shape
    _rms_norm[(rows,)](
        x,
        x if plus is None else plus,
        weight,
        out,
        x if scales is None else scales,
        out if plain is None else plain,
        eps,
        x.stride(0),
        x.stride(0) if plus is None else plus.stride(0),
        out.stride(0),
        SIZE=size,
        PADDED=triton.next_power_of_2(size),
        PLUS=plus is not None,
        SCALED=scales is not None,
        PLAIN=_is_apart(plain, out),
        AHEAD=ahead,
        num_warps=8 if size > 2_048 else 4,
        **LAUNCH,
    )


def _is_apart(plain: torch.Tensor | None, out: torch.Tensor) -> bool:
    """Whether what is divided by its scale is wanted as well."""
    return plain is not None and plain is not out


@triton.jit
def _rms_norm(
    x, plus, weight, out, scales, plain, eps, x_row, plus_row, out_row,
    SIZE: tl.constexpr, PADDED: tl.constexpr, PLUS: tl.constexpr, SCALED: tl.constexpr, PLAIN: tl.constexpr,
    AHEAD: tl.constexpr,
):  # fmt: skip
    wait_and_let_next_begin(AHEAD)
    row = tl.program_id(0).to(tl.int64)
    i = tl.arange(0, PADDED)
    inside = i < SIZE
    value = tl.load(x + row * x_row + i, mask=inside, other=0.0)
    if PLUS:
        value = (value.to(tl.float32) + tl.load(plus + row * plus_row + i, mask=inside, other=0.0).to(tl.float32)).to(
            value.dtype
        )
        tl.store(x + row * x_row + i, value, mask=inside)
    wide = value.to(tl.float32)
    scale = tl.rsqrt(tl.sum(wide * wide, 0) / SIZE + eps)
    normal = wide * scale * tl.load(weight + i, mask=inside, other=0.0).to(tl.float32)
    if PLAIN:
        tl.store(plain + row * out_row + i, normal.to(plain.dtype.element_ty), mask=inside)
    if SCALED:
        normal = _scaled(normal, scales + row)
    tl.store(out + row * out_row + i, normal.to(out.dtype.element_ty), mask=inside)


@triton.jit
def _scaled(x, scale):
    """x / s, where the largest of |x| / s is the largest e4m3 value; s is written to `scale`."""
    largest = tl.maximum(tl.max(tl.abs(x), 0), 1e-30)
    tl.store(scale, largest / 448.0)
    return x / (largest / 448.0)


def quantize_rows(x: torch.Tensor, out: torch.Tensor, scales: torch.Tensor, *, ahead: bool = False) -> None:
    """x [rows, size] → e4m3 `out`, each row divided by its scale, which is written to `scales` fp32 [rows]."""
    rows, size = x.shape
    _quantize_rows[(rows,)](
        x, out, scales, x.stride(0), out.stride(0),
        SIZE=size, PADDED=triton.next_power_of_2(size), AHEAD=ahead, num_warps=8 if size > 2_048 else 4, **LAUNCH,
    )  # fmt: skip


@triton.jit
def _quantize_rows(x, out, scales, x_row, out_row, SIZE: tl.constexpr, PADDED: tl.constexpr, AHEAD: tl.constexpr):
    wait_and_let_next_begin(AHEAD)
    row = tl.program_id(0).to(tl.int64)
    i = tl.arange(0, PADDED)
    inside = i < SIZE
    value = tl.load(x + row * x_row + i, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + row * out_row + i, _scaled(value, scales + row).to(out.dtype.element_ty), mask=inside)


def silu_mul(
    gate_up: torch.Tensor,
    out: torch.Tensor,
    *,
    scales: torch.Tensor | None = None,
    ahead: bool = False,
    clamped: tuple[float, float] | None = None,
    plain: torch.Tensor | None = None,
) -> None:
    """silu(gate) · up of [rows, 2 · size] → [rows, size] (Shazeer 2020); `scales`, `ahead` and `plain` as of
    `rms_norm`. `clamped` (α, limit): g · sigmoid(α · g) · (up + 1), where gate and up are clamped to the limit."""
    rows, size = out.shape
    alpha, limit = clamped or (1.0, 0.0)
    if scales is not None:
        _silu_mul_scaled[(rows,)](
            gate_up, out, scales, out if plain is None else plain, gate_up.stride(0), out.stride(0), alpha, limit,
            SIZE=size, PADDED=triton.next_power_of_2(size), PLAIN=_is_apart(plain, out), AHEAD=ahead,
            CLAMPED=clamped is not None, num_warps=16, **LAUNCH,
        )  # fmt: skip
        return
    block = 2_048
    _silu_mul[(rows, triton.cdiv(size, block))](
        gate_up, out, gate_up.stride(0), out.stride(0), alpha, limit,
        SIZE=size, BLOCK=block, AHEAD=ahead, CLAMPED=clamped is not None, num_warps=8, **LAUNCH,
    )  # fmt: skip


@triton.jit
def _silu_mul(
    gate_up, out, in_row, out_row, alpha, limit,
    SIZE: tl.constexpr, BLOCK: tl.constexpr, AHEAD: tl.constexpr, CLAMPED: tl.constexpr,
):  # fmt: skip
    wait_and_let_next_begin(AHEAD)
    row = tl.program_id(0).to(tl.int64)
    i = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = i < SIZE
    value = _gated(gate_up + row * in_row, i, inside, alpha, limit, SIZE, CLAMPED)
    tl.store(out + row * out_row + i, value.to(out.dtype.element_ty), mask=inside)


@triton.jit
def _silu_mul_scaled(
    gate_up, out, scales, plain, in_row, out_row, alpha, limit,
    SIZE: tl.constexpr, PADDED: tl.constexpr, PLAIN: tl.constexpr, AHEAD: tl.constexpr, CLAMPED: tl.constexpr,
):  # fmt: skip
    wait_and_let_next_begin(AHEAD)
    row = tl.program_id(0).to(tl.int64)
    i = tl.arange(0, PADDED)
    inside = i < SIZE
    value = _gated(gate_up + row * in_row, i, inside, alpha, limit, SIZE, CLAMPED)
    if PLAIN:
        tl.store(plain + row * out_row + i, value.to(plain.dtype.element_ty), mask=inside)
    tl.store(out + row * out_row + i, _scaled(value, scales + row).to(out.dtype.element_ty), mask=inside)


@triton.jit
def _gated(row, i, inside, alpha, limit, SIZE: tl.constexpr, CLAMPED: tl.constexpr):
    gate = tl.load(row + i, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(row + SIZE + i, mask=inside, other=0.0).to(tl.float32)
    if CLAMPED:
        # By comparison, which lets NaN through.
        gate = tl.where(gate > limit, limit, gate)
        up = tl.where(up > limit, limit, tl.where(up < -limit, -limit, up)) + 1.0
        return gate / (1.0 + tl.math.exp2(gate * (-1.4426950408889634 * alpha))) * up
    return gate / (1.0 + tl.math.exp2(gate * -1.4426950408889634)) * up


def rotate_and_append(
    qkv: torch.Tensor,
    query: torch.Tensor,
    kv: PagedKv,
    cosines: torch.Tensor,
    sines: torch.Tensor,
    positions: torch.Tensor,
    table_rows: torch.Tensor,
    block_tables: torch.Tensor,
    *,
    norms: tuple[torch.Tensor, torch.Tensor] | None = None,
    eps: float = 0.0,
) -> None:
    """Turned queries → `query` [rows, heads, head dim]; turned keys, and values, → their places in the paged KV.

    `qkv` [rows, (heads + 2 KV heads) · head dim]. `cosines`, `sines` fp32 [context, turned / 2]: the first `turned`
    elements of a head are turned by halves (Su et al. 2021). `norms`: weights [head dim] of RMS norms over each query
    and each key, applied first. Rows with position −1 are left alone. KV in 8 bits is rounded here.
    """
    rows, heads = query.shape[:2]
    total = heads + 2 * kv.kv_heads
    dim = kv.head_dim
    _rotate_and_append[(rows, triton.cdiv(total, _HEADS))](
        qkv,
        query,
        kv.data,
        cosines,
        sines,
        positions,
        table_rows,
        block_tables,
        qkv if norms is None else norms[0],
        qkv if norms is None else norms[1],
        eps,
        kv.layer_offset,
        qkv.stride(0),
        query.stride(0),
        block_tables.stride(0),
        QUERY_HEADS=heads,
        KV_HEADS=kv.kv_heads,
        BLOCK_STRIDE=kv.block_stride,
        PART_STRIDE=kv.part_stride,
        HEAD_STRIDE=kv.head_stride,
        DIM=dim,
        DIM_PADDED=triton.next_power_of_2(dim),
        TURNED=2 * cosines.shape[1],
        HEADS=_HEADS,
        NORMS=norms is not None,
        num_warps=4,
        **LAUNCH,
    )


@triton.jit
def _rotate_and_append(
    qkv, query, kv, cosines, sines, positions, table_rows, block_tables, query_norm, key_norm, eps, layer_offset,
    qkv_row, query_row, table_row,
    QUERY_HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    BLOCK_STRIDE: tl.constexpr,
    PART_STRIDE: tl.constexpr,
    HEAD_STRIDE: tl.constexpr,
    DIM: tl.constexpr,
    DIM_PADDED: tl.constexpr,
    TURNED: tl.constexpr,
    HEADS: tl.constexpr,
    NORMS: tl.constexpr,
):  # fmt: skip
    wait_for_inputs()
    let_next_begin()
    row = tl.program_id(0).to(tl.int64)
    position = tl.load(positions + row)
    if position >= 0:
        head = tl.program_id(1) * HEADS + tl.arange(0, HEADS)
        d = tl.arange(0, DIM_PADDED)
        held = (head < QUERY_HEADS + 2 * KV_HEADS)[:, None] & (d < DIM)[None, :]
        start = qkv + row * qkv_row + head[:, None] * DIM
        x = tl.load(start + d[None, :], mask=held, other=0.0).to(tl.float32)
        # The other half of each turned pair, and the sign with which it comes.
        half: tl.constexpr = TURNED // 2
        turned = d < TURNED
        partner = tl.where(d < half, d + half, d - half)
        partner = tl.where(turned, partner, d)
        y = tl.load(start + partner[None, :], mask=held, other=0.0).to(tl.float32)
        is_query = (head < QUERY_HEADS)[:, None]
        is_value = (head >= QUERY_HEADS + KV_HEADS)[:, None]
        if NORMS:
            scale = tl.rsqrt(tl.sum(x * x, 1) / DIM + eps)[:, None]
            inside = d < DIM
            query_weight = tl.load(query_norm + d, mask=inside, other=0.0).to(tl.float32)[None, :]
            key_weight = tl.load(key_norm + d, mask=inside, other=0.0).to(tl.float32)[None, :]
            query_other = tl.load(query_norm + partner, mask=inside, other=0.0).to(tl.float32)[None, :]
            key_other = tl.load(key_norm + partner, mask=inside, other=0.0).to(tl.float32)[None, :]
            x = tl.where(is_value, x, x * scale * tl.where(is_query, query_weight, key_weight))
            y = tl.where(is_value, y, y * scale * tl.where(is_query, query_other, key_other))
        angle = tl.where(d < half, d, d - half)
        at = position.to(tl.int64) * half + angle
        cosine = tl.load(cosines + at, mask=turned, other=1.0)[None, :]
        sine = tl.load(sines + at, mask=turned, other=0.0)[None, :]
        sine = tl.where((d < half)[None, :], -sine, sine)
        z = tl.where(is_value, x, x * cosine + y * sine).to(qkv.dtype.element_ty)
        tl.store(query + row * query_row + head[:, None] * DIM + d[None, :], z, mask=held & is_query)
        table = block_tables + tl.load(table_rows + row).to(tl.int64) * table_row
        block = tl.load(table + position // 64).to(tl.int64)
        other = tl.maximum(head - QUERY_HEADS, 0)
        place = block * BLOCK_STRIDE + layer_offset + (other // KV_HEADS) * PART_STRIDE
        place += (other % KV_HEADS) * HEAD_STRIDE + (position % 64) * DIM
        if kv.dtype.element_ty == tl.uint8:
            values, scales = narrow(z.to(tl.float32), held & ~is_query)
            pair = d % (DIM // 2) * 2 + d // (DIM // 2)
            tl.store(kv + place[:, None] + pair[None, :], values, mask=held & ~is_query)
            # From this vector to its scale.
            place += 64 * DIM - position % 64 * (DIM - 4)
            stored = (head >= QUERY_HEADS) & (head < QUERY_HEADS + 2 * KV_HEADS)
            tl.store((kv + place).to(tl.pointer_type(tl.float32), bitcast=True), scales, mask=stored)
        else:
            tl.store(kv + place[:, None] + d[None, :], z.to(kv.dtype.element_ty), mask=held & ~is_query)
