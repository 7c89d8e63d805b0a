"""Attention kernels against float64, and decode, grouped decode and prefill against each other."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.kernels.attention_splits import split_bounds
from engine.kernels.decode_attention import DecodeAttention
from engine.kernels.decode_plan import DecodeBatch
from engine.kernels.paged_kv import PagedKv, Scores, reference_attention
from engine.kernels.prefill_attention import PrefillTiles, plan_prefill_tiles, prefill_attention
from tests.fast import examples
from tests.gpu.kernels.interpreter import DEVICE, INTERPRETED

STEPS = ((256, 64), (1 << 30, 128))
"""Shorter splits than the product's, so that short sequences have several of both kinds."""
LENGTHS = (1, 63, 64, 65, 129, 257, 300, 320, 450)
LAYER = 1
TOLERANCE = {torch.float32: 2e-6, torch.float16: 2e-3, torch.bfloat16: 8e-3}


@dataclass(frozen=True)
class Case:
    heads: int = 4
    kv_heads: int = 2
    dim: int = 32
    dtype: torch.dtype = torch.float32
    scores: Scores = field(default_factory=lambda: Scores(0.2))

    def __str__(self) -> str:
        return f"{self.heads}/{self.kv_heads}x{self.dim} {self.dtype} window {self.scores.window}"


def sinks(heads: int) -> torch.Tensor:
    return torch.linspace(-1, 2, heads, device=DEVICE)


PLAIN, LLAMA = Case(), Case(heads=32, kv_heads=8, dim=128, dtype=torch.bfloat16)
CASES = [  # fp32 and fp16, with and without a window, a cap and sinks, one and several heads of KV
    pytest.param(Case(heads=6, dim=16, dtype=torch.float16), marks=pytest.mark.slow),
    Case(scores=Scores(0.2, window=100, soft_cap=20.0, sinks=sinks(4))),
    pytest.param(Case(heads=5, kv_heads=1, dim=24, scores=Scores(0.2, soft_cap=5.0)), marks=pytest.mark.slow),
    pytest.param(LLAMA, marks=pytest.mark.gpu),
    pytest.param(
        Case(heads=28, kv_heads=4, dim=128, dtype=torch.bfloat16, scores=Scores(0.1, window=100)), marks=pytest.mark.gpu
    ),
    *(
        pytest.param(Case(heads=8, kv_heads=4, dim=256, dtype=torch.bfloat16, scores=scores), marks=pytest.mark.gpu)
        for scores in (Scores(1 / 16), Scores(1 / 16, window=100), Scores(1 / 15, window=70, soft_cap=50.0))
    ),
]


class Sequences:
    """Sequences of LENGTHS in random blocks; every second one begins with the same four blocks, if it is long enough.

    What no sequence may read is NaN.
    """

    def __init__(self, case: Case, seed: int) -> None:
        chance = random.Random(seed)
        torch.manual_seed(seed)
        self.case = case
        blocks = sum(-(-length // 64) for length in LENGTHS) + 9
        free = list(range(blocks))
        chance.shuffle(free)
        prefix = [free.pop() for _ in range(4)]
        self.tables = [
            (prefix if index % 2 and length > 256 else []) + [free.pop() for _ in range(-(-length // 64))]
            for index, length in enumerate(LENGTHS)
        ]
        self.tables = [table[: -(-length // 64)] for table, length in zip(self.tables, LENGTHS, strict=True)]
        data = torch.randn(blocks, 2, 2, case.kv_heads, 64, case.dim, device=DEVICE).to(case.dtype)
        readable = {block for table in self.tables for block in table}
        data[[block for block in range(blocks) if block not in readable]] = torch.nan
        for table, length in zip(self.tables, LENGTHS, strict=True):
            if length % 64:
                data[table[-1], :, :, :, length % 64 :] = torch.nan
        self.kv = PagedKv(data, LAYER)
        self.positions = [length - 1 for length in LENGTHS]
        self.query = torch.randn(len(LENGTHS), case.heads, case.dim, device=DEVICE).to(case.dtype)
        self.bounds = split_bounds(max(LENGTHS), STEPS)

    def batch(self, rows: list[int]) -> DecodeBatch:
        """A batch whose row i is sequence rows[i]."""
        order = sorted(range(len(rows)), key=lambda row: self.tables[rows[row]])
        widest = max(map(len, self.tables))
        tables = [[*table, *[0] * (widest - len(table))] for table in self.tables]
        positions = [self.positions[row] for row in rows]
        return DecodeBatch(ints(positions), ints(rows), ints(order), ints(tables))

    def decode(self, rows: list[int], limit: int | None) -> torch.Tensor:
        attention = DecodeAttention(len(rows), self.case.heads, self.kv, ints(self.bounds))
        out = torch.full((len(rows), *self.query.shape[1:]), torch.nan, dtype=torch.float32, device=DEVICE)
        batch, scores = self.batch(rows), self.case.scores
        attention.plan(batch, window=scores.window, limit=limit)
        attention(self.query[rows].contiguous(), self.kv, batch, scores, out)
        return out

    def prefill(self, query: torch.Tensor, chunks: list[tuple[int, int, int, int]]) -> torch.Tensor:
        case = self.case
        out = torch.full(query.shape, torch.nan, dtype=torch.float32, device=DEVICE)
        tiles = plan_prefill_tiles(chunks, case.heads // case.kv_heads, self.bounds, case.scores.window)
        tiles = PrefillTiles(tiles.table.to(DEVICE), tiles.tokens)
        tables = self.batch(list(range(len(LENGTHS)))).block_tables
        prefill_attention(query, self.kv, tables, ints(self.bounds), tiles, case.scores, out)
        return out


def ints(values: list[int] | list[list[int]]) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32, device=DEVICE)


def assert_same(got: torch.Tensor, expected: torch.Tensor, dtype: torch.dtype) -> None:
    """Bit by bit on a GPU, and in the interpreter within what its products leave."""
    if INTERPRETED:
        torch.testing.assert_close(got, expected, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])
    else:
        assert torch.equal(got, expected)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_decode_and_prefill_agree_with_float64_and_with_each_other(case: Case) -> None:
    sequences = Sequences(case, seed=3)
    rows = list(range(len(LENGTHS)))
    expected = reference_attention(sequences.query, sequences.kv, sequences.tables, sequences.positions, case.scores)
    alone = sequences.decode(rows, 1)
    assert float((alone.double() - expected).norm() / expected.norm()) < TOLERANCE[case.dtype]
    assert_same(sequences.decode(rows, None), alone, case.dtype)
    assert_same(sequences.prefill(sequences.query, [(r, p, 1, r) for r, p in enumerate(sequences.positions)]), alone,
                case.dtype)  # fmt: skip
    # The last token of a chunk that begins within a block, before the window and before a split.
    count = 200
    chunk = torch.randn(count, case.heads, case.dim, device=DEVICE).to(case.dtype)
    chunk[-1] = sequences.query[-1]
    whole = sequences.prefill(chunk, [(0, LENGTHS[-1] - count, count, len(LENGTHS) - 1)])
    assert whole.isfinite().all()
    assert_same(whole[-1], alone[-1], case.dtype)


@pytest.mark.parametrize(
    "case", [pytest.param(PLAIN, marks=pytest.mark.slow), pytest.param(LLAMA, marks=pytest.mark.gpu)], ids=str
)
def test_a_row_does_not_depend_on_its_neighbours(case: Case) -> None:
    sequences = Sequences(case, seed=4)
    together = sequences.decode(list(range(len(LENGTHS))), None)
    for rows in ([8], [7, 1], [3, 8, 5]):
        assert_same(sequences.decode(rows, None), together[rows], case.dtype)


def test_padding_rows_are_zero() -> None:
    sequences = Sequences(PLAIN, seed=5)
    batch = sequences.batch([2, 5])
    batch.positions[0] = -1
    attention = DecodeAttention(2, 4, sequences.kv, ints(sequences.bounds))
    out = torch.full((2, 4, 32), torch.nan, device=DEVICE)
    attention.plan(batch)
    attention(sequences.query[[2, 5]].contiguous(), sequences.kv, batch, Scores(0.2), out)
    assert not out[0].any()
    assert_same(out[1:], sequences.decode([5], None), torch.float32)


@settings(max_examples=examples(40))
@given(st.data())
def test_the_plan_covers_each_split_of_each_row_once_and_groups_what_is_shared(data: st.DataObject) -> None:
    rows = data.draw(st.integers(1, 12))
    limit = data.draw(st.integers(1, 16))
    window = data.draw(st.sampled_from([0, 0, 70, 200]))
    folded = 0 if window else data.draw(st.sampled_from([0, 0, 2, 3, 8]))
    bounds = [0, 64, 128, 256, 384]
    # A tree: each row goes on from another one's table after some blocks.
    tables: list[list[int]] = []
    fresh = iter(range(1_000))
    for _ in range(rows):
        parent = data.draw(st.sampled_from(tables)) if tables else []
        kept = data.draw(st.integers(0, 6)) if parent else 0
        tables.append(parent[:kept] + [next(fresh) for _ in range(6 - kept)])
    positions = data.draw(st.lists(st.integers(-1, 383), min_size=rows, max_size=rows))
    order = sorted(range(rows), key=lambda row: tables[row])
    kv = PagedKv(torch.zeros(1, 1, 2, 1, 64, 16, device=DEVICE), 0)
    attention = DecodeAttention(rows, 4, kv, ints(bounds))
    batch = DecodeBatch(ints(positions), ints(list(range(rows))), ints(order), ints(tables))
    attention.plan(batch, window=window, limit=limit, folded=folded)
    counts = attention.work.counts.tolist()
    listed = [item for size in range(2) for item in attention.work.items[size, : counts[size]].tolist()]
    # Of a row that shares nothing the first splits are one item.
    in_one = {order[first] for first, _, _, further in listed if further}
    assert all(item[1:] == [1, 0, folded - 1] for item in listed if item[3])
    assert all(attention.work.folded_rows[row] for row in in_one)
    items = [
        [first, requests, split + more]
        for first, requests, split, further in listed
        for more in range(min(further, 3 - split) + 1)
        if positions[order[first]] >= bounds[split + more]
    ]
    covered = sorted((order[first + at], split) for first, requests, split in items for at in range(requests))
    needed = sorted(
        (row, split)
        for row, position in enumerate(positions)
        for split in range(4)
        if position >= bounds[split] and (not window or position - window + 1 < bounds[split + 1])
    )
    assert covered == needed
    for first, requests, split in items:
        assert 1 <= requests <= limit
        if requests > 1:
            members = [order[first + at] for at in range(requests)]
            assert len({tuple(tables[row][: bounds[split + 1] // 64]) for row in members}) == 1
            assert all(positions[row] + 1 >= bounds[split + 1] for row in members)
    if not window and limit == 16:
        for split in range(4):
            # A group is of neighbours: a row that ends before the split parts those on both sides of it.
            prefixes = [
                tuple(tables[row][: bounds[split + 1] // 64]) if positions[row] + 1 >= bounds[split + 1] else None
                for row in order
            ]
            runs = sum(one not in (None, before) for before, one in zip([None, *prefixes], prefixes, strict=False))
            partial = sum(bounds[split] <= position < bounds[split + 1] - 1 for position in positions)
            assert sum(item[2] == split for item in items) <= runs + 2 * partial


def test_splits_are_whole_blocks_and_reach_the_context() -> None:
    bounds = split_bounds(40_000)
    assert bounds[:2] == [0, 256]
    assert bounds[-1] >= 40_000 > bounds[-2]
    assert all(bound % 64 == 0 for bound in bounds)
    with pytest.raises(ValueError, match="multiple of a block"):
        split_bounds(1_000, ((1 << 30, 100),))
