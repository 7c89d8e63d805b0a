"""Grammars' masks on the device: the reference's bits, whatever is allowed and whatever was forbidden before."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from engine.kernels.grammar_masks import apply_masks, words_of
from engine.sampling.logit_shaping import shape_logits
from engine.sampling.request_state import SamplingState
from protocol.requests import Sampling
from tests.gpu.kernels.interpreter import DEVICE


class Fixed:
    """A `Guide` with one mask, whose words may be fewer than the vocabulary needs."""

    ended, failure, cpu_s, idle = False, None, 0.0, False

    def __init__(self, words: torch.Tensor) -> None:
        self.words = words

    def fill_mask(self, row: torch.Tensor) -> None:
        row.zero_()
        row[: len(self.words)] = self.words

    def choose_token_within(self, token: int, _left: int, _has_time: object) -> int:
        return token

    choose_token = choose_token_within

    def accept_token(self, _token: int) -> None:
        raise AssertionError("a mask alone is asked for")


def masks_of(chance: np.random.Generator, rows: int, vocabulary: int) -> torch.Tensor:
    """Masks that allow much, one token in a hundred, one token, nothing but the last one, and all."""
    words = words_of(vocabulary)
    bits = chance.random((rows, words * 32)) < chance.choice([0.5, 0.01], (rows, 1))
    bits[:, vocabulary:] = True  # what is behind the vocabulary is never drawn
    bits[1::5, :vocabulary] = False
    bits[1::5, chance.integers(0, vocabulary)] = True
    bits[2::5, :vocabulary] = np.arange(vocabulary) == vocabulary - 1
    bits[3::5] = True
    return torch.from_numpy(np.packbits(bits, axis=1, bitorder="little").view(np.int32).copy())


@pytest.mark.parametrize("vocabulary", [131, 4_096, 4_130])
def test_the_reference_s_bits(vocabulary: int) -> None:
    """Rows in which all that is allowed was forbidden before; rows under the mask of others; rows without one."""
    chance = np.random.default_rng(vocabulary)
    rows = 12
    values = torch.from_numpy(chance.normal(size=(rows, vocabulary)).astype(np.float32))
    masks = masks_of(chance, rows, vocabulary)
    values[2, vocabulary - 1] = -torch.inf
    values[5] = -torch.inf
    values[7, : vocabulary - 1] = -torch.inf
    states = [SamplingState(Sampling(8), [1], guide=Fixed(mask)) for mask in masks]
    expected = shape_logits(values.clone(), states)
    order = torch.from_numpy(chance.permutation(rows)[: rows - 2].astype(np.int32))
    given = values.to(DEVICE)
    # In another order than the rows have.
    apply_masks(given, masks.to(DEVICE), order.to(DEVICE), order.to(DEVICE))
    masked = order.long()
    assert torch.equal(given.cpu()[masked].view(torch.int32), expected[masked].view(torch.int32))
    others = [row for row in range(rows) if row not in masked.tolist()]
    assert torch.equal(given.cpu()[others], values[others])


def test_what_a_short_mask_does_not_reach_is_forbidden_and_nan_stays() -> None:
    vocabulary = 100
    values = torch.ones(3, vocabulary)
    values[1] = torch.nan
    values[2, :32] = -torch.inf
    masks = torch.tensor([[-1], [0], [-1]], dtype=torch.int32)
    rows = torch.arange(3, dtype=torch.int32)
    given = values.to(DEVICE)
    apply_masks(given, masks.to(DEVICE), rows.to(DEVICE), rows.to(DEVICE))
    expected = torch.full((3, vocabulary), -torch.inf)
    expected[0, :32] = 1.0
    expected[1] = torch.nan
    expected[2, :32] = 0.0
    assert torch.equal(given.cpu().nan_to_num(nan=7.0), expected.nan_to_num(nan=7.0))
