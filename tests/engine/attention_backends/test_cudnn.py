"""How a chunk is cut for cuDNN."""

from __future__ import annotations

import pytest
import torch

from engine.attention_backends.cudnn import SIZES, CudnnAttention, pieces
from tests.engine.attention_backends.test_flash_attention import kind


@pytest.mark.parametrize("size", [0, 1, 511, 512, 513, 8_704, 30_000, 131_072, 130_559, 1_048_576 + 77])
def test_keys_are_few_pieces_of_few_sizes(size: int) -> None:
    found = list(pieces(size))
    assert sum(found) == size
    assert found == sorted(found, reverse=True)
    assert set(found[:-1]) <= set(SIZES)
    assert len(found) <= 4 + size // SIZES[0]


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        (kind((8, 9)), "needs a GPU from Hopper on"),
        (kind(window=3), "no sliding window"),
        (kind(soft_cap=1.0), "no soft cap"),
        (kind(sinks=True), "no attention sinks"),
        (kind(head_dim=256), "no heads of 256 elements"),
        (kind(dtype=torch.float32), "not in float32"),
        (kind(), None),
    ],
)
def test_what_it_lacks_is_refused_by_name(given: object, reason: str | None) -> None:
    assert CudnnAttention().unsupported(given) == reason  # type: ignore[arg-type]
