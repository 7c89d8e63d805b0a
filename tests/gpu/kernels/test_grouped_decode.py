"""The kernel for items of many requests on Hopper against the plain one, bit by bit."""

from __future__ import annotations

import random

import pytest
import torch

from engine.kernels.attention_splits import split_bounds_on
from engine.kernels.decode_attention import DecodeAttention
from engine.kernels.paged_kv import PagedKv, Scores
from tests.gpu.kernels.interpreter import INTERPRETED

pytestmark = pytest.mark.gpu


def blocks_of_nan(count: int, kv_heads: int, dim: int, dtype: torch.dtype, used: list[int]) -> torch.Tensor:
    """Random blocks where they are `used`; what else there is is not a number. uint8: KV in 8 bits."""
    if dtype != torch.uint8:
        data = torch.full((count, 2, 2, kv_heads, 64, dim), torch.nan, dtype=dtype, device="cuda")
        data[used] = torch.randn(len(used), *data.shape[1:], dtype=dtype, device="cuda")
        return data
    data = torch.full((count, 2, 2, kv_heads, 64 * (dim + 4)), 0xFF, dtype=torch.uint8, device="cuda")
    values = torch.randn(len(used), 2, 2, kv_heads, 64 * dim, device="cuda").to(torch.float8_e4m3fn)
    scales = torch.exp2(torch.randint(-6, 3, (len(used), 2, 2, kv_heads, 64), device="cuda").float())
    data[used] = torch.cat([values.view(torch.uint8), scales.view(torch.uint8)], -1)
    return data.view(count, 2, 2, kv_heads, 64, dim + 4)


@pytest.mark.parametrize(
    ("heads", "kv_heads", "dim", "stored"),
    [
        (32, 8, 128, torch.bfloat16),
        (32, 8, 128, torch.uint8),
        (8, 8, 64, torch.float16),
        (28, 4, 128, torch.uint8),
        (64, 8, 64, torch.uint8),
        (16, 2, 128, torch.bfloat16),
    ],
)
@pytest.mark.parametrize("seed", [1, 2])
def test_it_has_the_bits_of_the_plain_kernel(
    heads: int, kv_heads: int, dim: int, stored: torch.dtype, seed: int
) -> None:
    if INTERPRETED or torch.cuda.get_device_capability()[0] != 9:
        pytest.skip("no Hopper")
    from benchmarks.gpu.kernels import decode_batch, random_tables

    random.seed(seed)
    torch.manual_seed(seed)
    dtype = torch.bfloat16 if stored == torch.uint8 else stored
    # 60 requests, most of which share one of three prefixes of 36 blocks.
    shared = [(random.randrange(3), 0 if random.random() < 0.2 else 36) for _ in range(60)]
    lengths = [random.choice([1, 64, 65, 257, 2_049, random.randint(1, 4_000)]) for _ in shared]
    lengths = [max(length, 64 * count + 1) for length, (_, count) in zip(lengths, shared, strict=True)]
    count = sum(-(-length // 64) for length in lengths) + 64
    tables = random_tables(lengths, shared, count)
    kv = PagedKv(blocks_of_nan(count, kv_heads, dim, stored, sorted({b for table in tables for b in table})), 1)
    query = torch.randn(len(lengths), heads, dim, dtype=dtype, device="cuda")
    batch = decode_batch([length - 1 for length in lengths], tables)
    attention = DecodeAttention(len(lengths), heads, kv, split_bounds_on(query.device, max(lengths)))
    found = []
    for on_hopper in (False, True, True):
        attention.on_hopper = on_hopper
        out = torch.full(query.shape, torch.nan, dtype=torch.float32, device="cuda")
        for partial in (attention._tops, attention._totals, attention._outs):
            partial.fill_(torch.nan)
        attention.plan(batch)
        assert attention.work.counts[1] > 0
        attention(query, kv, batch, Scores(dim**-0.5), out)
        found.append(out)
    assert found[0].isfinite().all()
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[1], found[2])
