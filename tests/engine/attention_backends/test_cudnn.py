"""How a chunk is cut for cuDNN."""

from __future__ import annotations

import pytest
import torch

from engine.attention_backends.cudnn import LEAST, CudnnAttention, pieces
from tests.engine.attention_backends.test_flash_attention import kind


@pytest.mark.parametrize("size", [0, 1, 511, 512, 513, 8_704, 30_000, 131_072, 1_048_576 + 77])
def test_pieces_are_of_few_sizes_and_make_up_the_whole(size: int) -> None:
    found = list(pieces(size, 8_192))
    assert sum(found) == size
    assert found == sorted(found, reverse=True)
    assert set(found[:-1]) <= {LEAST << power for power in range(5)}
    assert not found or found[-1] < LEAST or found[-1] in {LEAST << power for power in range(5)}


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
