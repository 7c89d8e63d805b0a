"""Small integers to the device: many arrays in one copy that nobody waits for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

Ints: TypeAlias = NDArray[np.int32]
_ALIGNED = 4
"""Arrays begin at multiples of so many elements: kernels are compiled for aligned pointers."""


def upload(arrays: Sequence[Ints], device: torch.device) -> list[torch.Tensor]:
    """The int32 arrays on the device, in their shapes."""
    starts, end = [], 0
    for array in arrays:
        starts.append(end)
        end += array.size + -array.size % _ALIGNED
    # Pinned memory is torch's to recycle: not before the copy was made.
    whole = torch.empty(end, dtype=torch.int32, pin_memory=device.type == "cuda")
    flat = whole.numpy()
    for start, array in zip(starts, arrays, strict=True):
        flat[start : start + array.size] = array.reshape(-1)
    there = whole.to(device, non_blocking=True)
    return [there[start : start + array.size].view(array.shape) for start, array in zip(starts, arrays, strict=True)]
