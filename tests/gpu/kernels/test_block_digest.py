"""The digest of blocks against numpy's, and that it sees each kind of fault."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from engine.kernels.block_digest import block_digests
from tests.gpu.kernels.interpreter import DEVICE

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("ignore:overflow encountered:RuntimeWarning")]


def mixed(x: np.ndarray, first: int, second: int) -> np.ndarray:
    x = (x ^ (x >> 16)) * np.uint32(first)
    x = (x ^ (x >> 13)) * np.uint32(second)
    return x ^ (x >> 16)


def expected(block: torch.Tensor) -> list[int]:
    words = block.cpu().view(-1).view(torch.int32).numpy().view(np.uint32)
    placed = words + np.arange(len(words), dtype=np.uint32) * np.uint32(0x9E3779B1)
    first = mixed(placed, 0x85EBCA6B, 0xC2B2AE35).sum(dtype=np.uint32)
    second = mixed(placed ^ np.uint32(0x5BD1E995), 0x7FEB352D, 0x846CA68B).sum(dtype=np.uint32)
    return [int(np.int32(first.view(np.int32))), int(np.int32(second.view(np.int32)))]


def test_digests_are_those_of_numpy_and_see_faults() -> None:
    torch.manual_seed(0)
    data = torch.randint(-(2**31), 2**31, (6, 3, 41_000), device=DEVICE, dtype=torch.int64).to(torch.int32)
    order = torch.tensor([4, 0, 4], dtype=torch.int32, device=DEVICE)
    sound = block_digests(data, order)
    assert sound.tolist() == [expected(data[4]), expected(data[0]), expected(data[4])]
    assert torch.equal(block_digests(data, order), sound)
    flipped, swapped, zeroed = data.clone(), data.clone(), data.clone()
    flipped[4, 2, 40_999] ^= 1 << 17
    swapped[4, 0, [5, 6]] = swapped[4, 0, [6, 5]]
    zeroed[4, 1, :64] = 0
    for faulty in (flipped, swapped, zeroed):
        found = block_digests(faulty, order)
        assert (found[0] != sound[0]).all()
        assert torch.equal(found[1], sound[1])
