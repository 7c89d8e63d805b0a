"""The sampler: distribution by chi-square with a negative control, nucleus, independence of the batch."""

from __future__ import annotations

import math

import pytest
import torch

from engine.protocol import Sampling
from engine.sampling.counter_random import philox, uniform
from engine.sampling.sampler import Draw, sample

VOCABULARY = 64
DRAWS = 4000
LOGITS = torch.linspace(-2, 2, VOCABULARY).roll(17)


def draws(temperature: float, top_p: float = 1.0, count: int = DRAWS, seed: int = 3) -> list[int]:
    rows = LOGITS.repeat(count, 1)
    return sample(rows, [Draw(Sampling(1, temperature, top_p, seed), position) for position in range(count)])


def expected(temperature: float, top_p: float = 1.0) -> torch.Tensor:
    """float64, by the definition."""
    weights = torch.softmax(LOGITS.double() / temperature, 0)
    order = weights.argsort(descending=True)
    kept, total = [], 0.0
    for token in order.tolist():
        kept.append(token)
        total += weights[token].item()
        if total >= top_p:
            break
    result = torch.zeros_like(weights)
    result[kept] = weights[kept]
    return result / result.sum()


def chi_square(tokens: list[int], probabilities: torch.Tensor) -> float:
    """The statistic's distance from its mean in standard deviations, by the normal approximation."""
    seen = torch.bincount(torch.tensor(tokens), minlength=VOCABULARY).double()
    possible = probabilities > 0
    assert seen[~possible].sum() == 0
    mean = probabilities[possible] * len(tokens)
    freedom = int(possible.sum()) - 1
    statistic = ((seen[possible] - mean) ** 2 / mean).sum().item()
    return (statistic - freedom) / math.sqrt(2 * freedom)


@pytest.mark.parametrize(("temperature", "top_p"), [(1.0, 1.0), (0.6, 1.0), (1.7, 0.9), (1.0, 0.5), (0.8, 0.99)])
def test_the_distribution_is_right(temperature: float, top_p: float):
    assert abs(chi_square(draws(temperature, top_p), expected(temperature, top_p))) < 5


def test_a_wrong_distribution_would_be_seen():
    assert abs(chi_square(draws(1.0, count=20000), expected(1.0))) < 5
    assert chi_square(draws(1.0, count=20000), expected(1.15)) > 5


def test_a_tiny_nucleus_and_a_tiny_temperature_are_greedy():
    best = int(LOGITS.argmax())
    assert set(draws(1.0, 1e-9, 50)) == {best}
    assert set(draws(1e-6, 1.0, 50)) == {best}
    assert sample(LOGITS[None], [Draw(Sampling(1, 0.0), 0)]) == [best]


def test_a_nucleus_wider_than_the_first_try():
    flat = torch.zeros(1, 1024)
    seen = {sample(flat, [Draw(Sampling(1, 1.0, 0.9, 1), position)])[0] for position in range(300)}
    assert max(seen) > 900  # equal tokens all belong to the nucleus
    slope = torch.linspace(0, 1, 1024)[None]
    tokens = [sample(slope, [Draw(Sampling(1, 1.0, 0.5, 1), position)])[0] for position in range(300)]
    weights = torch.softmax(slope[0].double(), 0).flip(0)
    kept = int((weights.cumsum(0) < 0.5).sum()) + 1
    assert min(tokens) >= 1024 - kept


def test_padding_is_never_drawn():
    logits = torch.full((8, 128), 0.0)
    logits[:, 70:] = -torch.inf
    for position in range(100):
        row = [Draw(Sampling(1, 5.0, 1.0, seed), position) for seed in range(8)]
        assert max(sample(logits, row)) < 70


def test_rows_do_not_depend_on_the_batch():
    chance = torch.Generator().manual_seed(1)
    logits = torch.randn(24, 192, generator=chance) * 3
    how = [Draw(Sampling(1, [0.0, 0.7, 1.3][row % 3], [1.0, 0.8][row % 2], row * 7919), row * 3) for row in range(24)]
    together = sample(logits, how)
    for row in range(24):
        assert sample(logits[row : row + 1], how[row : row + 1]) == together[row : row + 1]
    reverse = sample(logits.flip(0), how[::-1])
    assert reverse[::-1] == together


def test_philox_known_answers():
    """Philox 4x32-10 by a plain implementation in Python's integers."""

    def plain(seed: int, position: int) -> tuple[int, int]:
        mask = 0xFFFFFFFF
        counter = [position & mask, position >> 32 & mask, 0, 0]
        key = [seed & mask, seed >> 32 & mask]
        for _ in range(10):
            a, b = counter[0] * 0xD2511F53, counter[2] * 0xCD9E8D57
            counter = [(b >> 32) ^ counter[1] ^ key[0], b & mask, (a >> 32) ^ counter[3] ^ key[1], a & mask]
            key = [(key[0] + 0x9E3779B9) & mask, (key[1] + 0xBB67AE85) & mask]
        return counter[0], counter[1]

    seeds = [0, 1, 0xFFFFFFFF, 2**63 - 1, 123456789012345]
    for seed in seeds:
        for position in (0, 1, 77, 2**31, 2**40):
            high, low = philox(torch.tensor([seed]), torch.tensor([position]))
            assert (int(high), int(low)) == plain(seed, position)
    # The reference's own vector for key 0, counter 0.
    assert plain(0, 0)[0] == 0x6627E8D5


def test_uniform_is_inside_and_even():
    numbers = uniform(torch.full((20000,), 9), torch.arange(20000))
    assert float(numbers.min()) > 0
    assert float(numbers.max()) < 1
    assert abs(float(numbers.mean()) - 0.5) < 0.01
    counts = torch.histc(numbers, 20, 0, 1)
    assert float(((counts - 1000) ** 2 / 1000).sum()) < 60
