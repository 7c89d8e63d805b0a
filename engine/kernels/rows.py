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
_PLAIN, _RMS, _MEAN_AND_VARIANCE = range(3)
"""Kinds of norms, for `_rms_norm`."""
_LOGITS = 4_096
"""Logits of a row that one program caps."""


def rms_norm(
    x: torch.Tensor,
    weight: torch.Tensor | None,
    eps: float,
    out: torch.Tensor,
    *,
    bias: torch.Tensor | None = None,
    plus: torch.Tensor | None = None,
    behind: tuple[torch.Tensor, float] | None = None,
    factor: float = 1.0,
    scales: torch.Tensor | None = None,
    ahead: bool = False,
    plain: torch.Tensor | None = None,
) -> None:
    """x / rms(x) · weight → `out` [rows, size], which may be x. With `plus`, x + plus first replaces x (Zhang and
    Sennrich 2019). Without `weight` x alone goes to `out`.

    `bias`: the norm is that of mean and variance instead (Ba et al. 2016). `behind` (weight, eps): `plus` is normalized
    by itself before it is added. `factor`: of `plus`. Both round to the type of x, as the models do. With `scales` fp32
    [rows], `out` is e4m3 and each row is divided by its scale, which is written there; `plain`, if it is other memory
    than `out`, gets what is divided. `ahead`: the next kernel is one of `linear_hopper`, which begins before this one
    does.
    """
    rows, size = x.shape
    norm = _PLAIN if weight is None else _RMS if bias is None else _MEAN_AND_VARIANCE
    _rms_norm[(rows,)](
        x,
        x if plus is None else plus,
        x if behind is None else behind[0],
        x if weight is None else weight,
        x if bias is None else bias,
        out,
        x if scales is None else scales,
        out if plain is None else plain,
        eps,
        0.0 if behind is None else behind[1],
        factor,
        x.stride(0),
        x.stride(0) if plus is None else plus.stride(0),
        out.stride(0),
        SIZE=size,
        PADDED=triton.next_power_of_2(size),
        PLUS=plus is not None,
        BEHIND=behind is not None,
        FACTOR=factor != 1.0,
        NORM=norm,
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
    x, plus, behind, weight, bias, out, scales, plain, eps, behind_eps, factor, x_row, plus_row, out_row,
    SIZE: tl.constexpr, PADDED: tl.constexpr, PLUS: tl.constexpr, BEHIND: tl.constexpr, FACTOR: tl.constexpr,
    NORM: tl.constexpr, SCALED: tl.constexpr, PLAIN: tl.constexpr, AHEAD: tl.constexpr,
):  # fmt: skip
    wait_and_let_next_begin(AHEAD)
    row = tl.program_id(0).to(tl.int64)
    i = tl.arange(0, PADDED)
    inside = i < SIZE
    value = tl.load(x + row * x_row + i, mask=inside, other=0.0)
    if PLUS:
        part = tl.load(plus + row * plus_row + i, mask=inside, other=0.0).to(tl.float32)
        if BEHIND:
            scale = tl.rsqrt(tl.sum(part * part, 0) / SIZE + behind_eps)
            part = part * scale * tl.load(behind + i, mask=inside, other=0.0).to(tl.float32)
            part = part.to(value.dtype).to(tl.float32)
        if FACTOR:
            part = (part * factor).to(value.dtype).to(tl.float32)
        value = (value.to(tl.float32) + part).to(value.dtype)
        tl.store(x + row * x_row + i, value, mask=inside)
    normal = value.to(tl.float32)
    if NORM == 2:
        normal = tl.where(inside, normal - tl.sum(normal, 0) / SIZE, 0.0)
    if NORM:
        scale = tl.rsqrt(tl.sum(normal * normal, 0) / SIZE + eps)
        normal = normal * scale * tl.load(weight + i, mask=inside, other=0.0).to(tl.float32)
    if NORM == 2:
        normal += tl.load(bias + i, mask=inside, other=0.0).to(tl.float32)
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
    gelu: bool = False,
    plain: torch.Tensor | None = None,
) -> None:
    """silu(gate) · up of [rows, 2 · size] → [rows, size] (Shazeer 2020); `scales`, `ahead` and `plain` as of
    `rms_norm`. `clamped` (α, limit): g · sigmoid(α · g) · (up + 1), where gate and up are clamped to the limit.
    `gelu`: by the tanh approximation of GELU instead. Of [rows, size], which is a gate alone, up is 1."""
    rows, size = out.shape
    alpha, limit = clamped or (1.0, 0.0)
    kind = {"CLAMPED": clamped is not None, "GELU": gelu, "GATED": gate_up.shape[1] != size}
    if scales is not None:
        _silu_mul_scaled[(rows,)](
            gate_up, out, scales, out if plain is None else plain, gate_up.stride(0), out.stride(0), alpha, limit,
            SIZE=size, PADDED=triton.next_power_of_2(size), PLAIN=_is_apart(plain, out), AHEAD=ahead, num_warps=16,
            **kind, **LAUNCH,
        )  # fmt: skip
        return
    block = 2_048
    _silu_mul[(rows, triton.cdiv(size, block))](
        gate_up, out, gate_up.stride(0), out.stride(0), alpha, limit,
        SIZE=size, BLOCK=block, AHEAD=ahead, num_warps=8, **kind, **LAUNCH,
    )  # fmt: skip


@triton.jit
def _silu_mul(
    gate_up, out, in_row, out_row, alpha, limit,
    SIZE: tl.constexpr, BLOCK: tl.constexpr, AHEAD: tl.constexpr, CLAMPED: tl.constexpr, GELU: tl.constexpr,
    GATED: tl.constexpr,
):  # fmt: skip
    wait_and_let_next_begin(AHEAD)
    row = tl.program_id(0).to(tl.int64)
    i = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = i < SIZE
    value = _gated(gate_up + row * in_row, i, inside, alpha, limit, SIZE, CLAMPED, GELU, GATED)
    tl.store(out + row * out_row + i, value.to(out.dtype.element_ty), mask=inside)


@triton.jit
def _silu_mul_scaled(
    gate_up, out, scales, plain, in_row, out_row, alpha, limit,
    SIZE: tl.constexpr, PADDED: tl.constexpr, PLAIN: tl.constexpr, AHEAD: tl.constexpr, CLAMPED: tl.constexpr,
    GELU: tl.constexpr, GATED: tl.constexpr,
):  # fmt: skip
    wait_and_let_next_begin(AHEAD)
    row = tl.program_id(0).to(tl.int64)
    i = tl.arange(0, PADDED)
    inside = i < SIZE
    value = _gated(gate_up + row * in_row, i, inside, alpha, limit, SIZE, CLAMPED, GELU, GATED)
    if PLAIN:
        tl.store(plain + row * out_row + i, value.to(plain.dtype.element_ty), mask=inside)
    tl.store(out + row * out_row + i, _scaled(value, scales + row).to(out.dtype.element_ty), mask=inside)


@triton.jit
def _gated(
    row, i, inside, alpha, limit,
    SIZE: tl.constexpr, CLAMPED: tl.constexpr, GELU: tl.constexpr, GATED: tl.constexpr,
):  # fmt: skip
    gate = tl.load(row + i, mask=inside, other=0.0).to(tl.float32)
    if GELU:
        # ½ (1 + tanh(u)) = sigmoid(2u) with u = √(2/π) · (g + 0.044715 · g³); times log2 e.
        inner = gate * (1.0 + 0.044715 * gate * gate)
        gate = gate / (1.0 + tl.math.exp2(inner * -2.302208198144325))
    if not GATED:
        if not GELU:
            gate = gate / (1.0 + tl.math.exp2(gate * -1.4426950408889634))
        return gate
    up = tl.load(row + SIZE + i, mask=inside, other=0.0).to(tl.float32)
    if CLAMPED:
        # By comparison, which lets NaN through.
        gate = tl.where(gate > limit, limit, gate)
        up = tl.where(up > limit, limit, tl.where(up < -limit, -limit, up)) + 1.0
        return gate / (1.0 + tl.math.exp2(gate * (-1.4426950408889634 * alpha))) * up
    if GELU:
        return gate * up
    return gate / (1.0 + tl.math.exp2(gate * -1.4426950408889634)) * up


def cap_logits(logits: torch.Tensor, cap: float | None, divisor: float) -> None:
    """Divide logits [rows, size] in place, and softly cap them, if `cap` is given: cap · tanh(logit / cap)."""
    rows, size = logits.shape
    _cap_logits[(rows, triton.cdiv(size, _LOGITS))](
        logits, cap or 1.0, divisor, logits.stride(0), size, CAPPED=cap is not None, BLOCK=_LOGITS, num_warps=8,
        **LAUNCH,
    )  # fmt: skip


@triton.jit
def _cap_logits(logits, cap, divisor, row_stride, size, CAPPED: tl.constexpr, BLOCK: tl.constexpr):
    wait_and_let_next_begin(False)
    i = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    place = logits + tl.program_id(0).to(tl.int64) * row_stride + i
    value = tl.load(place, mask=i < size, other=0.0).to(tl.float32) / divisor
    if CAPPED:
        # tanh(x) = 1 − 2 / (e^2x + 1)
        value = cap * (1.0 - 2.0 / (tl.math.exp2(value / cap * 2.8853900817779268) + 1.0))
    tl.store(place, value.to(logits.dtype.element_ty), mask=i < size)


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
    interleaved: bool = False,
) -> None:
    """Turned queries → `query` [rows, heads, head dim]; turned keys, and values, → their places in the paged KV.

    `qkv` [rows, (heads + 2 KV heads) · head dim]. `cosines`, `sines` fp32 [context, turned / 2]: the first `turned`
    elements of a head are turned by halves (Su et al. 2021). `norms`: weights [head dim] of RMS norms over each query
    and each key, applied first. `interleaved`: turned pairs are neighbours, and come out as halves. Rows with position
    −1 are left alone. KV in 8 bits is rounded here.
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
        INTERLEAVED=interleaved,
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
    INTERLEAVED: tl.constexpr,
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
        # Where each element comes from, and the other one of its turned pair.
        half: tl.constexpr = TURNED // 2
        turned = d < TURNED
        own = d
        partner = tl.where(d < half, d + half, d - half)
        if INTERLEAVED:
            own = tl.where(turned, tl.where(d < half, 2 * d, 2 * (d - half) + 1), d)
            partner = tl.where(d < half, own + 1, own - 1)
        partner = tl.where(turned, partner, d)
        x = tl.load(start + own[None, :], mask=held, other=0.0).to(tl.float32)
        y = tl.load(start + partner[None, :], mask=held, other=0.0).to(tl.float32)
        is_query = (head < QUERY_HEADS)[:, None]
        is_value = (head >= QUERY_HEADS + KV_HEADS)[:, None]
        if INTERLEAVED:
            x = tl.where(is_value, tl.load(start + d[None, :], mask=held, other=0.0).to(tl.float32), x)
        if NORMS:
            scale = tl.rsqrt(tl.sum(x * x, 1) / DIM + eps)[:, None]
            inside = d < DIM
            query_weight = tl.load(query_norm + own, mask=inside, other=0.0).to(tl.float32)[None, :]
            key_weight = tl.load(key_norm + own, mask=inside, other=0.0).to(tl.float32)[None, :]
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
