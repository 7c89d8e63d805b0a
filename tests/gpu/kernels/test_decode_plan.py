"""The work list of decode attention: every request and split is in one item, whatever the list's limits."""

from __future__ import annotations

import pytest
import torch

from engine.kernels.decode_plan import DecodeBatch, WorkList
from tests.gpu.kernels.interpreter import DEVICE


def ints(values: list[int] | list[list[int]]) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32, device=DEVICE)


def items(sharing: list[int], cut: int) -> tuple[list[int], list[int]]:
    """How many requests the small and the large items of the first split have; runs of `sharing` requests share it."""
    tables = [[run, 100 + 10 * run + row] for run, count in enumerate(sharing) for row in range(count)]
    rows = range(len(tables))
    batch = DecodeBatch(ints([127] * len(tables)), ints(list(rows)), ints(list(rows)), ints(tables))
    work = WorkList(len(tables), ints([0, 64, 128]))
    work.make(batch, limit=16, small=2, window=0, folded=0, cut=cut)
    found = []
    seen = set()
    for index, count in enumerate(work.counts.tolist()):
        kept = work.items[index, :count].tolist()
        for place, requests, split, _ in kept:
            assert len({tables[row][split] for row in range(place, place + requests)}) == 1, "they share the split"
            seen |= {(row, split) for row in range(place, place + requests)}
        found.append(sorted(requests for _, requests, split, _ in kept if split == 0))
    assert seen == {(row, split) for row in rows for split in range(2)}
    assert sum(map(sum, found)) == len(tables), "each once"
    return found[0], found[1]


@pytest.mark.parametrize(
    ("sharing", "small", "large"),
    [
        ([1, 2, 3, 4, 5], [1, 1, 2, 2, 2, 2], [5]),
        ([16, 3], [1, 2], [16]),
        ([19], [1, 2], [16]),
        ([21], [], [5, 16]),
    ],
)
def test_few_requests_that_could_be_one_item_are_several_small_ones(
    sharing: list[int], small: list[int], large: list[int]
) -> None:
    assert items(sharing, 4) == (small, large)


def test_without_that_a_run_is_one_item_up_to_the_limit() -> None:
    assert items([1, 2, 3, 4, 5, 19], 0) == ([1, 2], [3, 3, 4, 5, 16])
