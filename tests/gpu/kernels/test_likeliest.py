"""The likeliest token: the first of equal ones, none where a row is not finite."""

from __future__ import annotations

import pytest
import torch

from engine.kernels.likeliest import NOT_FINITE, Likeliest
from tests.gpu.kernels.interpreter import DEVICE

VOCABULARY = 5_000


@pytest.mark.filterwarnings("ignore:invalid value encountered in:RuntimeWarning")
def test_likeliest() -> None:
    torch.manual_seed(0)
    logits = torch.randn(6, VOCABULARY + 64, device=DEVICE).half()
    logits[:, VOCABULARY:] = 99.0  # padding, never drawn
    logits[1, [4_097, 30, 4_999]] = 20.0
    logits[2, 4_500] = torch.nan
    logits[3, 7] = torch.inf
    logits[4, 4_999] = 30.0

    def ints(*values: int) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.int32, device=DEVICE)

    tokens, latest = ints(*[-7] * 6), ints(*[-7] * 8)
    Likeliest(6, VOCABULARY, DEVICE)(logits, ints(0, 5, 6, 7, 8, -1), ints(7, 5, 0, 1, 2, 3), tokens, latest)
    expected = logits[:, :VOCABULARY].float().argmax(-1).tolist()
    expected[1], expected[2], expected[3], expected[4] = 30, NOT_FINITE, NOT_FINITE, 4_999
    assert tokens.tolist() == expected
    # By slot, and nothing of the padding row.
    assert latest.tolist() == [0, 0, 4_999, -7, -7, 30, -7, expected[0]]
