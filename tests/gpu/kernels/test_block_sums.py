"""The sums of blocks against numpy's, and that they see each kind of fault."""

from __future__ import annotations

import pytest
import torch

from engine.kernels.block_sums import block_sums
from tests.gpu.kernels.interpreter import DEVICE

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("ignore:overflow encountered:RuntimeWarning")]

WORDS = 20_500


def test_sums_are_those_of_numpy_and_see_faults() -> None:
    torch.manual_seed(0)
    data = torch.randint(-(2**62), 2**62, (6, 2, WORDS // 2), device=DEVICE)
    weights = torch.randint(-(2**62), 2**62, (WORDS,), device=DEVICE) * 2 + 1
    order = torch.tensor([4, 0, 4], device=DEVICE)

    def expected(block: torch.Tensor) -> int:
        return int((block.cpu().view(-1).numpy() * weights.cpu().numpy()).sum())

    sound = block_sums(data, order, weights)
    assert sound.tolist() == [expected(data[4]), expected(data[0]), expected(data[4])]
    flipped, swapped, zeroed = data.clone(), data.clone(), data.clone()
    flipped[4, 1, -1] ^= 1 << 17
    swapped[4, 0, [5, 6]] = swapped[4, 0, [6, 5]]
    zeroed[4, 1, :64] = 0
    for faulty in (flipped, swapped, zeroed):
        found = block_sums(faulty, order, weights)
        assert found[0] != sound[0]
        assert found[1] == sound[1]
        assert found[2] == found[0]
