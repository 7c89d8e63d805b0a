"""Counter-based random numbers, a function of (seed, position) alone: Philox 4x32-10 (Salmon et al., SC '11).

So a sampled token does not depend on its batch (E1), and a request continued on another replica samples the same.
"""

from __future__ import annotations

import torch

_MASK = 0xFFFFFFFF
_MULTIPLY = (0xD2511F53, 0xCD9E8D57)
_WEYL = (0x9E3779B9, 0xBB67AE85)
_BITS = 48


def philox(seeds: torch.Tensor, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The first two 32-bit words of Philox with key `seeds` and counter (`positions`, 0): int64 [rows] each.

    32-bit unsigned arithmetic in int64: the low 64 bits of a product are right even where its sign is not.
    """
    key0, key1 = seeds & _MASK, (seeds >> 32) & _MASK
    c0, c1 = positions & _MASK, (positions >> 32) & _MASK
    c2 = c3 = torch.zeros_like(c0)
    for _ in range(10):
        product0, product1 = c0 * _MULTIPLY[0], c2 * _MULTIPLY[1]
        c0, c1, c2, c3 = (
            ((product1 >> 32) & _MASK) ^ c1 ^ key0,
            product1 & _MASK,
            ((product0 >> 32) & _MASK) ^ c3 ^ key1,
            product0 & _MASK,
        )
        key0, key1 = (key0 + _WEYL[0]) & _MASK, (key1 + _WEYL[1]) & _MASK
    return c0, c1


def uniform(seeds: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    """A float64 in (0, 1) for each row: int64 seeds and positions, [rows] each.

    It has 48 random bits and an offset of half a step, so that its product with a sum never rounds up to that sum.
    """
    high, low = philox(seeds, positions)
    # An integer tensor and a Python float would give float32, which rounds the largest of them up to 1.
    return (((high << (_BITS - 32)) + (low >> (64 - _BITS))).double() + 0.5) * 2.0**-_BITS


def choice_seed(seed: int, choice: int) -> int:
    """The seed of a request's `choice`-th output: the request's for choice 0, two words of Philox for others.

    Their counters are negative, so no choice's seed comes from the numbers that another one samples with.
    """
    if choice == 0:
        return seed
    high, low = philox(torch.tensor([signed(seed)]), torch.tensor([-choice]))
    return int(high) << 32 | int(low)


def signed(seed: int) -> int:
    """The seed's low 64 bits as a signed integer, as tensors hold it."""
    return ((seed + 2**63) % 2**64) - 2**63
