"""KV in 8 bits: what is stored, what is read of it, and attention to it by each kernel."""

from __future__ import annotations

import pytest
import torch

from engine.kernels.attention_splits import split_bounds
from engine.kernels.decode_attention import DecodeAttention
from engine.kernels.decode_plan import DecodeBatch
from engine.kernels.paged_kv import PagedKv, Scores
from engine.kernels.prefill_attention import PrefillTiles, plan_prefill_tiles, prefill_attention
from engine.kernels.rows import rotate_and_append
from engine.kernels.stored_in_fp8 import widen_blocks
from tests.gpu.kernels.interpreter import DEVICE

pytestmark = pytest.mark.gpu  # the interpreter's casts to FP8 are wrong

BLOCKS, HEADS, KV_HEADS, DIM = 9, 8, 2, 128
BF16 = torch.bfloat16


def ints(values: list[int] | list[list[int]]) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32, device=DEVICE)


def memory() -> PagedKv:
    """Blocks of which every byte is a NaN."""
    data = torch.full((BLOCKS, 2, 2, KV_HEADS, 64, DIM + 4), 0xFF, dtype=torch.uint8, device=DEVICE)
    return PagedKv(data, 1)


def stored(kv: PagedKv) -> tuple[torch.Tensor, torch.Tensor]:
    """A layer's values [blocks, parts, KV heads, 64, head dim] and scales [blocks, parts, KV heads, 64]."""
    flat = kv.data[:, kv.layer].flatten(-2)
    pairs = flat[..., : 64 * DIM].unflatten(-1, (64, DIM // 2, 2)).transpose(-1, -2)
    values = pairs.reshape(*pairs.shape[:-2], DIM).view(torch.float8_e4m3fn)
    return values, flat[..., 64 * DIM :].contiguous().view(torch.float32)


def append(kv: PagedKv, keys: torch.Tensor, values: torch.Tensor, table: list[int]) -> None:
    """Keys and values [tokens, KV heads, head dim] of a sequence, which are not turned: all angles are 0."""
    rows = len(keys)
    qkv = torch.cat([torch.zeros(rows, HEADS, DIM, device=DEVICE, dtype=BF16), keys, values], 1).view(rows, -1)
    query = torch.empty(rows, HEADS, DIM, device=DEVICE, dtype=BF16)
    angles = torch.zeros(rows, DIM // 2, device=DEVICE)
    positions = torch.arange(rows, dtype=torch.int32, device=DEVICE)
    rotate_and_append(qkv, query, kv, angles.cos(), angles.sin(), positions, torch.zeros_like(positions), ints([table]))


def test_vectors_are_rounded_once_and_read_as_they_are_stored() -> None:
    torch.manual_seed(0)
    table = [3, 0, 7]
    size = torch.logspace(-9, 4, 150, device=DEVICE)[:, None, None]
    vectors = (torch.randn(2, 150, KV_HEADS, DIM, device=DEVICE) * size).to(BF16)
    vectors[0, 5] = 0.0
    kv = memory()
    append(kv, vectors[0], vectors[1], table)
    values, scales = stored(kv)
    wide = torch.empty(len(table), 1, 2, KV_HEADS, 64, DIM, dtype=BF16, device=DEVICE)
    widen_blocks(kv, ints(table), wide)
    for part in range(2):
        for token in (0, 1, 5, 63, 64, 127, 128, 149):
            block, within = table[token // 64], token % 64
            value, scale = values[block, part, :, within].double(), scales[block, part, :, within].double()
            assert (scale.frexp().mantissa == 0.5).all()
            exact = value * scale[:, None]
            assert torch.equal(wide[token // 64, 0, part, :, within].double(), exact)
            want = vectors[part, token].double()
            largest = want.abs().amax(-1, keepdim=True)
            # Half a step of three bits of mantissa; below the smallest normal value, of its step.
            assert ((exact - want).abs() <= torch.maximum(want.abs() / 16, largest * 2.0**-16)).all()
    # Nothing else was written.
    assert wide[2, 0, :, :, 150 - 128 :].isnan().all()


def test_every_value_is_widened_exactly() -> None:
    kv = memory()
    every = torch.arange(256, device=DEVICE, dtype=torch.uint8).view(torch.float8_e4m3fn)
    flat = kv.data[2, 1, 0, 0].view(-1)
    # The first four vectors' first halves: each second byte.
    flat[: 4 * DIM : 2] = every.view(torch.uint8)
    flat[64 * DIM :].view(torch.float32).copy_(torch.full((64,), 2.0**-6, device=DEVICE))
    wide = torch.empty(1, 1, 2, KV_HEADS, 64, DIM, dtype=BF16, device=DEVICE)
    widen_blocks(kv, ints([2]), wide)
    finite = every.float().isfinite()
    got = wide[0, 0, 0, 0, :4, : DIM // 2].reshape(-1)
    assert torch.equal(got.float()[finite], (every.float() * 2.0**-6)[finite])


def test_what_is_not_finite_stays_so() -> None:
    vectors = torch.ones(2, 3, KV_HEADS, DIM, device=DEVICE, dtype=BF16)
    vectors[0, 1, 0, 7] = torch.nan
    vectors[1, 2, 1, 9] = torch.inf
    kv = memory()
    append(kv, vectors[0], vectors[1], [4])
    wide = torch.empty(1, 1, 2, KV_HEADS, 64, DIM, dtype=BF16, device=DEVICE)
    widen_blocks(kv, ints([4]), wide)
    broken = wide[0, 0, :, :, :3].isnan().all(-1)
    assert broken.nonzero().tolist() == [[0, 0, 1], [1, 1, 2]]


def test_attention_is_that_to_the_widened_keys() -> None:
    """Bit by bit: decode, grouped decode and prefill of 8 bits, and all of them of the same numbers in bf16."""
    torch.manual_seed(1)
    length, table = 330, [5, 1, 8, 0, 2, 6]
    kv = memory()
    vectors = torch.randn(2, length, KV_HEADS, DIM, device=DEVICE, dtype=BF16)
    append(kv, vectors[0], vectors[1], table)
    wide = torch.full((BLOCKS, 1, 2, KV_HEADS, 64, DIM), torch.nan, dtype=BF16, device=DEVICE)
    widen_blocks(kv, ints(list(range(BLOCKS))), wide)
    bounds = split_bounds(length, ((128, 64), (1 << 30, 128)))
    query = torch.randn(6, HEADS, DIM, device=DEVICE, dtype=BF16)
    positions = [length - 1, 100, length - 1, 63, 64, 200]
    rows = list(range(6))
    batch = DecodeBatch(ints(positions), ints([0] * 6), ints(rows), ints([table]))
    outputs = []
    for held in (kv, PagedKv(wide, 0)):
        for limit in (1, 16):
            out = torch.full(query.shape, torch.nan, device=DEVICE)
            attention = DecodeAttention(6, HEADS, held, ints(bounds))
            attention.plan(batch, limit=limit)
            attention(query, held, batch, Scores(0.1), out)
            outputs.append(out)
        tiles = plan_prefill_tiles([(row, position, 1, 0) for row, position in enumerate(positions)], 4, bounds)
        out = torch.full(query.shape, torch.nan, device=DEVICE)
        tiles = PrefillTiles(tiles.table.to(DEVICE), tiles.tokens)
        prefill_attention(query, held, ints([table]), ints(bounds), tiles, Scores(0.1), out)
        outputs.append(out)
    assert outputs[0].isfinite().all()
    for out in outputs[1:]:
        assert torch.equal(out, outputs[0])
