"""Tokens drawn on the device: the reference's, whatever limits a row has, alone and in company."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch

from engine.kernels.likeliest import NOT_FINITE, Likeliest
from engine.kernels.sampler import DeviceSampler, DrawnRows, parameters_of
from engine.sampling.request_state import SamplingState
from engine.sampling.sampler import sample
from protocol.requests import Sampling
from tests.gpu.kernels.interpreter import DEVICE, INTERPRETED

# Padding is minus infinity to the kernel that looks for the likeliest token.
pytestmark = pytest.mark.filterwarnings("ignore:.*encountered in:RuntimeWarning")

VOCABULARY = 5_000


def drawn(logits: torch.Tensor, samplings: list[Sampling], positions: list[int]) -> tuple[list[int], list[int]]:
    """The tokens, and what is the latest token of each slot; row r has slot rows − 1 − r."""
    rows = len(samplings)
    at = torch.tensor(positions, dtype=torch.int32, device=DEVICE)
    slots = torch.arange(rows - 1, -1, -1, dtype=torch.int32, device=DEVICE)
    tokens, latest = torch.full_like(at, -7), torch.full_like(at, -7)
    Likeliest(rows, VOCABULARY, DEVICE)(logits, at, slots, tokens, latest)
    given = np.stack([parameters_of(sampling) for sampling in samplings])
    numbers = torch.arange(rows, dtype=torch.int32, device=DEVICE)
    drawn = DrawnRows(given, numbers, torch.from_numpy(given).to(DEVICE))
    DeviceSampler(rows, VOCABULARY, DEVICE)(logits, drawn, at, slots, tokens, latest)
    return tokens.tolist(), latest.tolist()


def expected(logits: torch.Tensor, samplings: list[Sampling], positions: list[int]) -> list[int]:
    """`positions`: of the tokens before those that are drawn."""
    states = [SamplingState(sampling, range(at + 1)) for sampling, at in zip(samplings, positions, strict=True)]
    return sample(logits[:, :VOCABULARY].float(), states)


def some_sampling(chance: random.Random) -> Sampling:
    return Sampling(
        8,
        temperature=chance.choice([0.0, 0.01, 0.5, 0.8, 1.0, 1.0, 1.7]),
        top_p=chance.choice([1.0, 1.0, 0.95, 0.9, 0.5, 0.1, 1e-9, 0.999999]),
        top_k=chance.choice([0, 0, 0, 1, 2, 40, 999, 10**6]),
        min_p=chance.choice([0.0, 0.0, 0.05, 0.5, 1.0]),
        seed=chance.randrange(-(2**63), 2**63),
    )


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("scale", [0.1, 3.0])
def test_the_reference_s_tokens(dtype: torch.dtype, scale: float) -> None:
    if INTERPRETED and dtype is torch.bfloat16:
        pytest.skip("the interpreter's casts of bf16 are wrong")
    torch.manual_seed(3)
    chance = random.Random(5)
    rows = 12 if INTERPRETED else 400
    logits = (scale * torch.randn(rows, VOCABULARY + 64, device=DEVICE)).to(dtype)
    logits[:, VOCABULARY:] = 99.0  # padding, never drawn
    samplings = [some_sampling(chance) for _ in range(rows)]
    positions = [chance.randrange(70_000) for _ in range(rows)]
    found, latest = drawn(logits, samplings, positions)
    assert found == expected(logits, samplings, positions)
    assert latest == found[::-1]
    # Alone, and at another place.
    for row in chance.sample(range(rows), 3):
        assert drawn(logits[row : row + 1], [samplings[row]], [positions[row]])[0] == [found[row]]


@pytest.mark.parametrize("limit", [{"top_p": 0.5}, {"top_k": 3}, {"top_k": 3, "top_p": 0.7}, {"min_p": 0.9}])
def test_equal_logits_at_a_threshold_are_all_kept(limit: dict[str, float]) -> None:
    logits = torch.full((6, VOCABULARY), -3.0, device=DEVICE)
    logits[:, ::50] = 2.0
    logits[3:, 7] = 2.5
    logits[5] = 0.0
    logits[5, ::2] = -0.0
    samplings = [Sampling(1, seed=seed, **limit) for seed in range(6)]  # type: ignore[arg-type]
    positions = list(range(6))
    assert drawn(logits, samplings, positions)[0] == expected(logits, samplings, positions)


def test_rows_that_are_not_drawn() -> None:
    logits = torch.randn(4, VOCABULARY, device=DEVICE)
    logits[1, 5] = torch.nan
    samplings = [Sampling(1, temperature=0.0), Sampling(1, seed=1), Sampling(1, seed=2), Sampling(1, seed=3)]
    tokens, latest = drawn(logits, samplings, [4, 5, -1, 6])
    assert tokens[0] == int(logits[0].argmax())
    assert tokens[1] == NOT_FINITE
    # The padding row's slot has what it had.
    assert latest == [tokens[3], -7, 0, tokens[0]]
