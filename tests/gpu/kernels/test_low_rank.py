"""Adapters' products against float64, and a row's bits in any company."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.kernels.low_rank import TILE_ROWS, Place, Slots, expand, plan_tiles, row_tiles, shrink
from tests.gpu.kernels.interpreter import DEVICE

SLOTS, PLANES = 3, 4
COUNTS = [[1, 0, 2], [4, 4, 4], [2, 1, 1]]
"""Planes of each slot's parts."""


def made(place: Place, dtype: torch.dtype) -> Slots:
    """Slots of random adapters, with what nobody may read set to NaN."""
    torch.manual_seed(3)
    end = place.b + place.bounds[-1] * 16
    planes = torch.full((SLOTS, PLANES, end + 16), torch.nan)
    for slot in range(SLOTS):
        for part, (start, stop) in enumerate(pairwise(place.bounds)):
            for plane in range(COUNTS[slot][part]):
                a = planes[slot, plane, place.a :][: place.parts * 16 * place.inputs].view(place.parts, -1)
                a[part] = torch.randn(16 * place.inputs) / place.inputs**0.5
                b = planes[slot, plane, place.b : place.b + place.bounds[-1] * 16].view(-1, 16)
                b[start:stop] = torch.randn(stop - start, 16)
    counts = torch.zeros(SLOTS, 7, dtype=torch.int32)
    counts[:, place.part : place.part + place.parts] = torch.tensor(COUNTS)[:, : place.parts]
    scales = torch.linspace(0.3, 2.0, SLOTS * 7).view(SLOTS, 7)
    return Slots(planes.to(DEVICE, dtype), counts.to(DEVICE), scales.to(DEVICE))


def adapt(x: torch.Tensor, y: torch.Tensor, slots: Slots, place: Place, of: list[int], *, apart: bool) -> torch.Tensor:
    """The rows of y with what the adapters in these slots add."""
    rows = np.array(of, np.int32)
    tiles = torch.from_numpy(row_tiles(rows, len(of) + 2) if apart else plan_tiles(rows)).to(DEVICE)
    sums = torch.full((len(of) * PLANES * place.sums,), torch.nan, device=DEVICE)
    y = y.clone()
    shrink(x, slots, place, tiles, sums)
    expand(y, slots, place, tiles, sums)
    return y


def expected(x: torch.Tensor, y: torch.Tensor, slots: Slots, place: Place, of: list[int]) -> torch.Tensor:
    wide = y.double()
    for row, slot in enumerate(of):
        for part, (start, stop) in enumerate(pairwise(place.bounds)):
            for plane in range(COUNTS[slot][part] if slot >= 0 else 0):
                content = slots.planes[slot, plane].double()
                a = content[place.a :][: place.parts * 16 * place.inputs].view(place.parts, 16, place.inputs)[part]
                b = content[place.b :][: place.bounds[-1] * 16].view(-1, 16)[start:stop]
                scale = slots.scales[slot, place.part + part].double()
                wide[row, start:stop] += scale * (b @ (a @ x[row].double()))
    return wide


PLACES = [Place(1_040, (0, 160, 200, 240), 2, 32, 32 + 3 * 16 * 1_040), Place(48, (0, 72), 0, 0, 768)]


@pytest.mark.parametrize("place", PLACES, ids=["three parts", "one part"])
@pytest.mark.parametrize(
    ("dtype", "near"),
    [(torch.float32, 1e-6), (torch.float16, 1e-3), pytest.param(torch.bfloat16, 4e-3, marks=pytest.mark.gpu)],
)
@pytest.mark.parametrize("apart", [True, False])
def test_what_adapters_add(place: Place, dtype: torch.dtype, near: float, apart: bool) -> None:
    slots = made(place, dtype)
    of = [0, -1, 2, 1, -1, 0, 1, *[2] * 17]
    x = torch.randn(len(of), place.inputs, device=DEVICE).to(dtype)
    y = torch.randn(len(of), place.bounds[-1], device=DEVICE).to(dtype)
    y[1] = -0.0
    got, want = adapt(x, y, slots, place, of, apart=apart), expected(x, y, slots, place, of)
    assert float((got.double() - want).norm() / want.norm()) < near
    assert torch.equal(got[[1, 4]], y[[1, 4]])
    assert got[1].signbit().all()
    if place.parts == 3:  # the part that the adapter of slot 0 leaves alone
        assert torch.equal(got[0, 160:200], y[0, 160:200])


@given(st.lists(st.integers(-1, SLOTS - 1), min_size=1, max_size=120))
@settings(max_examples=60, deadline=None)
def test_each_row_with_an_adapter_is_in_one_tile_of_its_adapter(of: list[int]) -> None:
    tiles = plan_tiles(np.array(of, np.int32))
    seen = [(int(row), int(tile[0])) for tile in tiles for row in tile[1:] if row >= 0]
    assert sorted(seen) == [(row, slot) for row, slot in enumerate(of) if slot >= 0]
    assert len(tiles) <= SLOTS + len(of) // TILE_ROWS


@pytest.mark.gpu
@pytest.mark.parametrize("inputs", [4_096, 14_336])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_row_has_the_same_bits_in_any_company(inputs: int, dtype: torch.dtype) -> None:
    place = Place(inputs, (0, 4_096, 5_120, 6_144), 0, 0, 3 * 16 * inputs)
    slots = made(place, dtype)
    chance = np.random.default_rng(0)
    of = chance.integers(-1, SLOTS, 2_048).tolist()
    x, y = torch.randn(2_048, inputs, device=DEVICE).to(dtype), torch.randn(2_048, 6_144, device=DEVICE).to(dtype)
    together = adapt(x, y, slots, place, of, apart=False)
    assert not torch.equal(together, y)
    for first, count in ((0, 1), (1, 2), (100, 16), (7, 33), (300, 700), (0, 2_047)):
        some = slice(first, first + count)
        for apart in (True, False):
            assert torch.equal(adapt(x[some], y[some], slots, place, of[some], apart=apart), together[some])
    none = [row for row, slot in enumerate(of) if slot < 0]
    assert torch.equal(together[none], y[none])
