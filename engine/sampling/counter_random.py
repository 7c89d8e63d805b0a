"""Random numbers that are a function of (seed, position) alone: Philox 4x32-10 (Salmon et al. 2011).

So a token does not depend on what else was drawn in the batch, and a request continued elsewhere goes on as it began.
"""

from __future__ import annotations

import torch

_MASK = 0xFFFFFFFF
_MULTIPLY = (0xD2511F53, 0xCD9E8D57)
_WEYL = (0x9E3779B9, 0xBB67AE85)
_BITS = 48


def philox(seeds: torch.Tensor, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The first two 32-bit words of Philox with key `seeds` and counter (`positions`, 0): int64 [rows] each.

    32-bit unsigned arithmetic in int64: a product's low 64 bits are right although its sign is not.
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

    48 bits and a half: so the product with a sum of weights never rounds up to the sum itself.
    """
    high, low = philox(seeds, positions)
    return ((high << (_BITS - 32)) + (low >> (64 - _BITS)) + 0.5) * 2.0**-_BITS


def choice_seed(seed: int, choice: int) -> int:
    """The seed of a request's `choice`-th output: its own for the first, for others two words of Philox.

    Their counters are beyond every position, so no choice's seed is made of what another one draws.
    """
    if choice == 0:
        return seed
    high, low = philox(torch.tensor([signed(seed)]), torch.tensor([-choice]))
    return int(high) << 32 | int(low)


def signed(seed: int) -> int:
    """The seed's low 64 bits as a signed integer, as tensors hold it."""
    return ((seed + 2**63) % 2**64) - 2**63
