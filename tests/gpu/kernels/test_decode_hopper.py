"""Decode attention on Hopper: the CUDA C++ kernel against the Triton kernel, bit by bit."""

from __future__ import annotations

import random

import pytest
import torch

from engine.kernels.attention_splits import split_bounds
from engine.kernels.decode_attention import DecodeAttention
from engine.kernels.decode_hopper import SmallItems, fits
from engine.kernels.decode_plan import DecodeBatch
from engine.kernels.paged_kv import PagedKv, Scores
from tests.gpu.kernels.interpreter import DEVICE

pytestmark = pytest.mark.gpu

LENGTHS = (1, 63, 64, 65, 128, 255, 256, 257, 300, 700, 1_100, 2_100, 40, 641, 642, 643, 644, 2_500)
LAYERS, LAYER = 2, 1
SCORES = Scores(0.1)


def ints(values: list[int] | list[list[int]]) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32, device=DEVICE)


class Pool:
    """Sequences of LENGTHS in random blocks from `first` on, some of which begin with the same ones.

    What no sequence may read is NaN.
    """

    def __init__(
        self, heads: int, kv_heads: int, in_fp8: bool, first: int = 0, dim: int = 128, scores: Scores = SCORES
    ) -> None:
        self.scores = scores
        chance = random.Random(1)
        torch.manual_seed(1)
        blocks = sum(-(-length // 64) for length in LENGTHS) + 5
        free = list(range(first, first + blocks))
        chance.shuffle(free)
        shared = [free.pop() for _ in range(10)]
        prefixes = [shared[: chance.choice([0, 4, 8, 10]) if length > 640 else 0] for length in LENGTHS]
        self.tables = [
            [*prefix, *(free.pop() for _ in range(-(-length // 64) - len(prefix)))]
            for prefix, length in zip(prefixes, LENGTHS, strict=True)
        ]
        vector = dim + 4 if in_fp8 else dim
        kind = torch.uint8 if in_fp8 else torch.bfloat16
        data = torch.empty(first + blocks, LAYERS, 2, kv_heads, 64, vector, dtype=kind, device=DEVICE)
        used = data[first:]
        if in_fp8:
            used.random_(0, 256)
            used[(used & 0x7F) == 0x7F] = 1  # NaN
            factors = torch.randint(-14, -4, (*used.shape[:4], 64), device=DEVICE).float().exp2()
            used.flatten(-2).view(torch.float32)[..., 64 * dim // 4 :] = factors
        else:
            used.normal_()
        begins = [max(0, length - scores.window) // 64 if scores.window else 0 for length in LENGTHS]
        seen = {block for table, begin in zip(self.tables, begins, strict=True) for block in table[begin:]}
        for block in {*range(first, first + blocks)} - seen:
            data[block].view(torch.uint8).fill_(0xFF)
        for table, length in zip(self.tables, LENGTHS, strict=True):
            behind = data[table[-1]].flatten(-2)
            within = (length - 1) % 64 + 1
            behind[..., within * dim : 64 * dim].view(torch.uint8).fill_(0xFF)
            if in_fp8:
                behind[..., 64 * dim + within * 4 :].fill_(0xFF)
        self.kv = PagedKv(data, LAYER)
        self.query = torch.randn(len(LENGTHS), heads, dim, dtype=torch.bfloat16, device=DEVICE) * 2
        self.bounds = ints(split_bounds(max(LENGTHS)))

    def batch(self, rows: list[int]) -> DecodeBatch:
        order = sorted(range(len(rows)), key=lambda row: self.tables[rows[row]])
        widest = max(map(len, self.tables))
        tables = [[*table, *[0] * (widest - len(table))] for table in self.tables]
        return DecodeBatch(ints([LENGTHS[row] - 1 for row in rows]), ints(rows), ints(order), ints(tables))

    def results(
        self, rows: list[int], limit: int | None, *, hopper: bool, folded: int = 0
    ) -> tuple[list[torch.Tensor], torch.Tensor]:
        """The partial results as they lie in memory that was NaN before, and the attention."""
        query = self.query[rows].contiguous()
        scores = self.scores
        attention = DecodeAttention(len(rows), query.shape[1], self.kv, self.bounds, scores=scores if hopper else None)
        assert (attention.small_items is not None) == hopper
        partial = [attention._tops, attention._totals, attention._outs]
        for result in partial:
            result.fill_(torch.nan)
        out = torch.full(query.shape, torch.nan, dtype=torch.float32, device=DEVICE)
        attention.plan(self.batch(rows), window=scores.window, limit=limit, folded=folded)
        attention(query, self.kv, self.batch(rows), scores, out)
        return [result.view(torch.int32) for result in partial], out


@pytest.mark.parametrize("in_fp8", [False, True])
@pytest.mark.parametrize(
    ("heads", "kv_heads", "dim", "window"),
    [
        *((32, 8, 128, 0), (28, 4, 128, 0), (16, 2, 128, 0), (32, 8, 128, 300)),
        *((16, 8, 256, 0), (8, 1, 256, 100), (16, 8, 256, 1_024)),
    ],
)
def test_small_items_have_the_bits_of_the_triton_kernel(
    heads: int, kv_heads: int, dim: int, window: int, in_fp8: bool
) -> None:
    """With a window, what lies before it is another's."""
    pool = Pool(heads, kv_heads, in_fp8, dim=dim, scores=Scores(0.1, window=window))
    every = list(range(len(LENGTHS)))
    for rows in (every, every[5:14]):
        for limit in (1, 2, None):
            expected, attention = pool.results(rows, limit, hopper=False)
            assert attention.isfinite().all()
            got, same = pool.results(rows, limit, hopper=True)
            assert all(torch.equal(one, other) for one, other in zip(got, expected, strict=True))
            assert torch.equal(same, attention)


@pytest.mark.parametrize("dim", [128, 256])
@pytest.mark.parametrize("in_fp8", [False, True])
def test_splits_folded_by_their_warp_are_those_that_the_merge_folds(in_fp8: bool, dim: int) -> None:
    pool = Pool(32, 8, in_fp8, dim=dim)
    rows = list(range(len(LENGTHS)))
    _, expected = pool.results(rows, None, hopper=False)
    for folded in (2, 5, 8):
        for limit in (1, None):
            _, got = pool.results(rows, limit, hopper=True, folded=folded)
            assert torch.equal(got, expected)


@pytest.mark.parametrize("in_fp8", [False, True])
def test_blocks_may_lie_further_away_than_32_bits_reach(in_fp8: bool) -> None:
    block = LAYERS * 2 * 8 * 64 * (132 if in_fp8 else 128)
    pool = Pool(32, 8, in_fp8, first=2**32 // block + 1)
    rows = list(range(len(LENGTHS)))
    assert torch.equal(pool.results(rows, None, hopper=True)[1], pool.results(rows, None, hopper=False)[1])


def test_what_is_not_finite_stays_so() -> None:
    pool = Pool(32, 8, in_fp8=True)
    scales = pool.kv.data.flatten(-2).view(torch.float32)
    scales[pool.tables[9][0], LAYER, 0, 2, 64 * 128 // 4 + 7] = torch.nan
    rows = list(range(len(LENGTHS)))
    expected = pool.results(rows, 1, hopper=False)[1].isnan()
    assert expected[9, 8:12].all()
    assert torch.equal(pool.results(rows, 1, hopper=True)[1].isnan(), expected)


def test_other_kinds_are_left_to_triton() -> None:
    kv = Pool(32, 8, in_fp8=False).kv
    assert fits(32, kv, SCORES)
    assert fits(32, kv, Scores(0.1, window=64))
    assert not fits(32, kv, Scores(0.1, soft_cap=30.0))
    assert not fits(16 * 8, kv, SCORES)
    assert not fits(32, PagedKv(kv.data.half(), LAYER), SCORES)
    assert not SmallItems.takes(1)
