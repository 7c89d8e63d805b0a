"""Latent attention by our kernels: against float64, and decode, grouped decode and prefill against each other."""

from __future__ import annotations

import random
from dataclasses import dataclass

import pytest
import torch

from engine.kernels.attention_splits import split_bounds
from engine.kernels.decode_plan import DecodeBatch
from engine.kernels.latent_attention import TILE_ROWS, LatentDecode, heads_together, prefill_latents
from engine.kernels.latent_rows import absorb_and_append, merge_latents
from engine.kernels.paged_kv import LatentKv, Scores
from engine.kernels.prefill_attention import PrefillTiles, plan_prefill_tiles
from tests.gpu.kernels.interpreter import DEVICE, INTERPRETED
from tests.gpu.kernels.test_attention import STEPS, assert_same, ints

LENGTHS = (1, 65, 64, 130) if INTERPRETED else (1, 63, 64, 65, 129, 300, 320, 450)
PREFIX = 1 if INTERPRETED else 4
"""Blocks that sequences have in common."""
SCORES = Scores(0.1)
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 2e-2}


@dataclass(frozen=True)
class Case:
    heads: int
    rank: int
    rope: int
    nope: int
    value: int
    dtype: torch.dtype = torch.float32
    interleaved: bool = True


SMALL = Case(2, 48, 8, 16, 12)
CASES = [
    SMALL,
    pytest.param(Case(6, 32, 16, 32, 16, interleaved=False), marks=pytest.mark.slow),
    pytest.param(Case(16, 512, 64, 128, 128, torch.bfloat16), marks=pytest.mark.gpu),
    pytest.param(Case(128, 512, 64, 128, 128, torch.bfloat16), marks=pytest.mark.gpu),
    pytest.param(Case(20, 512, 64, 192, 256, torch.bfloat16), marks=pytest.mark.gpu),
]


class Sequences:
    """Sequences of LENGTHS in random blocks; every second long one begins with the same blocks.

    `query` and `entry` are what the first product makes of their tokens. What no sequence may read is NaN.
    """

    def __init__(self, case: Case) -> None:
        chance = torch.Generator().manual_seed(case.heads)
        blocks = sum(-(-length // 64) for length in LENGTHS)
        free = list(range(blocks))
        random.Random(1).shuffle(free)
        prefix = [free.pop() for _ in range(PREFIX)]
        self.case = case
        self.tables = []
        self.query: list[torch.Tensor] = []
        self.entry: list[torch.Tensor] = []
        for index, length in enumerate(LENGTHS):
            shared = prefix if index % 2 and length > 64 * PREFIX else []
            own = -(-length // 64) - len(shared)
            self.tables.append(shared + [free.pop() for _ in range(own)])
            self.query.append(self._random(chance, length, case.heads * (case.nope + case.rope)))
            self.entry.append(self._random(chance, length, case.rank + case.rope))
            if shared:
                first = next(at for at, table in enumerate(self.tables) if table[:PREFIX] == prefix)
                self.entry[index][: 64 * PREFIX] = self.entry[first][: 64 * PREFIX]
        self.absorb = self._random(chance, case.heads, case.nope, case.rank)
        self.norm = self._random(chance, case.rank)
        angles = torch.rand(max(LENGTHS), case.rope // 2, generator=chance) * 6
        self.tables_of_turns = angles.cos().to(DEVICE), angles.sin().to(DEVICE)
        data = torch.full((blocks, 2, 1, 1, 64, case.rank + case.rope), torch.nan, dtype=case.dtype, device=DEVICE)
        self.kv = LatentKv(data, 1, self._random(chance, case.heads, case.rank, case.value) * case.rank**-0.5)
        self.bounds = split_bounds(max(LENGTHS), STEPS)
        widest = max(map(len, self.tables))
        self.block_tables = ints([[*table, *[0] * (widest - len(table))] for table in self.tables])
        self.absorbed = [self.absorb_rows(index, 0, length) for index, length in enumerate(LENGTHS)]

    def _random(self, chance: torch.Generator, *shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=chance).to(DEVICE, self.case.dtype)

    def absorb_rows(self, index: int, first: int, end: int) -> torch.Tensor:
        """The queries of some of a sequence's tokens, whose entries are appended."""
        case = self.case
        out = torch.full((end - first, case.heads, case.rank + case.rope), torch.nan, dtype=case.dtype, device=DEVICE)
        owner = ints([index % len(LENGTHS)] * (end - first))
        absorb_and_append(
            self.query[index][first:end], self.entry[index][first:end], self.absorb, out, self.kv, self.norm, 1e-6,
            *self.tables_of_turns, ints(list(range(first, end))), owner, self.block_tables,
            interleaved=case.interleaved,
        )  # fmt: skip
        return out

    def turned(self, x: torch.Tensor) -> torch.Tensor:
        """The vectors [tokens, …, rope], turned, in float64."""
        cosines, sines = (
            table[: len(x)].double().view(len(x), *[1] * (x.dim() - 2), -1) for table in self.tables_of_turns
        )
        first, second = (x[..., ::2], x[..., 1::2]) if self.case.interleaved else x.chunk(2, -1)
        return torch.cat([first * cosines - second * sines, second * cosines + first * sines], -1)

    def expected(self, index: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """The queries, entries and values of a sequence in float64, values by what the kernels made of the others."""
        case, length = self.case, LENGTHS[index]
        query = self.query[index].double().view(length, case.heads, -1)
        absorbed = torch.einsum("mhk,hkr->mhr", query[..., : case.nope], self.absorb.double())
        queries = torch.cat([absorbed, self.turned(query[..., case.nope :])], -1)
        entry = self.entry[index].double()
        latent = entry[:, : case.rank]
        latent = latent * (latent.pow(2).mean(-1, keepdim=True) + 1e-6).rsqrt() * self.norm.double()
        entries = torch.cat([latent, self.turned(entry[:, case.rank :])], -1)
        kept = self.kept(index).double()
        score = torch.einsum("mhd,kd->mhk", self.absorbed[index].double(), kept) * SCORES.scale
        later = torch.ones(length, length, dtype=torch.bool, device=DEVICE).triu(1)
        weights = score.masked_fill(later[:, None], -torch.inf).softmax(-1)
        mean = torch.einsum("mhk,kr->mhr", weights, kept[:, : case.rank])
        return queries, entries, torch.einsum("mhr,hrv->mhv", mean, self.kv.values.double())

    def kept(self, index: int) -> torch.Tensor:
        return torch.cat([self.kv.data[block, 1, 0, 0] for block in self.tables[index]])[: LENGTHS[index]]

    def decode(
        self,
        rows: list[int],
        limit: int | None = None,
        *,
        apart: bool = False,
        folded: int | None = None,
        tiles: bool = False,
    ) -> torch.Tensor:
        """The values of these sequences' last tokens. `apart`: splits are merged and multiplied apart. `tiles`: all
        items are computed by the kernel that has those of several requests."""
        case = self.case
        order = sorted(range(len(rows)), key=lambda row: self.tables[rows[row]])
        positions = ints([LENGTHS[row] - 1 for row in rows])
        batch = DecodeBatch(positions, ints(rows), ints(order), self.block_tables)
        attention = LatentDecode(len(rows), case.heads, self.kv, ints(self.bounds))
        if tiles:
            attention.one_request = None
        attention.plan(batch, limit=limit, folded=folded)
        query = torch.stack([self.absorbed[row][-1] for row in rows])
        out = torch.full((len(rows), case.heads, case.value), torch.nan, dtype=case.dtype, device=DEVICE)
        attention(query, self.kv, batch, SCORES, out)
        if apart:
            out.fill_(torch.nan)
            merge_latents(attention.results, positions, attention.work, self.kv.values, out)
        return out

    def prefill(self, index: int, first: int, *, on_hopper: bool = True) -> torch.Tensor:
        """The values of a sequence's tokens from `first` on, as one chunk."""
        case, length = self.case, LENGTHS[index]
        tiles = plan_prefill_tiles(
            [(0, first, length - first, index)], heads_together(case.heads), self.bounds, tile_rows=TILE_ROWS
        )  # fmt: skip
        out = torch.full((length - first, case.heads, case.value), torch.nan, dtype=case.dtype, device=DEVICE)
        there = PrefillTiles(tiles.table.to(DEVICE), tiles.tokens)
        query = self.absorbed[index][first:].contiguous()
        prefill_latents(query, self.kv, self.block_tables, ints(self.bounds), there, SCORES, out, on_hopper=on_hopper)
        return out


def assert_near(got: torch.Tensor, expected: torch.Tensor, dtype: torch.dtype) -> None:
    assert float((got.double() - expected).norm() / expected.norm()) < TOLERANCE[dtype]


@pytest.mark.parametrize("case", CASES)
def test_rows_are_those_of_float64_in_any_company(case: Case) -> None:
    sequences, every = Sequences(case), list(range(len(LENGTHS)))
    together = sequences.decode(every)
    for index, length in enumerate(LENGTHS):
        if INTERPRETED and index not in (0, len(LENGTHS) - 1):
            continue
        queries, entries, values = sequences.expected(index)
        assert_near(sequences.absorbed[index], queries, case.dtype)
        assert_near(sequences.kept(index), entries, case.dtype)
        whole = sequences.prefill(index, 0)
        assert_near(whole, values, case.dtype)
        assert_same(together[index], whole[-1], case.dtype)
        assert_same(sequences.prefill(index, length // 2, on_hopper=False), whole[length // 2 :], case.dtype)
    for limit in (1,) if INTERPRETED else (1, 2):
        assert_same(sequences.decode(every, limit), together, case.dtype)
    assert_same(sequences.decode(every, apart=True, folded=4), together, case.dtype)
    assert_same(sequences.decode([3, 2])[0], together[3], case.dtype)
    # Many rows are multiplied by other tiles, and one alone.
    last = LENGTHS[-1]
    for first, end in ((0, 1), (17, 40), (last - 1, last)):
        assert_same(sequences.absorb_rows(-1, first, end), sequences.absorbed[-1][first:end], case.dtype)


@pytest.mark.gpu
def test_many_rows_have_the_bits_of_one() -> None:
    """Every kind of tile, and both ways to merge."""
    sequences = Sequences(Case(16, 512, 64, 128, 128, torch.bfloat16))
    alone = sequences.decode([7])[0]
    assert torch.equal(sequences.decode([7], tiles=True)[0], alone)
    for count in (2, 15, 16, 17, 33, 64, 65, 200, 512):
        assert torch.equal(sequences.decode([7] * count), alone.expand(count, -1, -1)), count
    every = list(range(len(LENGTHS)))
    together = sequences.decode(every, tiles=True)
    for folded in (0, 2, 8):
        for apart in (False, True):
            assert torch.equal(sequences.decode(every, folded=folded, apart=apart), together), folded
