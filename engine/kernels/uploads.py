"""Small integers to the device: many arrays at once, and nobody waits for them."""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from engine.kernels.host_words import HELD, read_from_host

Ints: TypeAlias = NDArray[np.int32]
Sent: TypeAlias = dict[int, deque[tuple[torch.Tensor, torch.cuda.Event]]]
"""Buffers by their size, the longest sent first, and what comes when they have been read."""
_ALIGNED = 4
"""Arrays begin at multiples of so many elements: kernels are compiled for aligned pointers."""
_SMALLEST = 1_024
"""Elements of a buffer, at least."""


class Uploads:
    """Uploads to one device, each in the order of the stream that is current.

    It is read by a kernel from page-locked memory of ours, which is used again once the kernel is done.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._sent: Sent = {}
        weakref.finalize(self, _hold, self._sent).atexit = False

    def __call__(self, arrays: Sequence[Ints]) -> list[torch.Tensor]:
        """The int32 arrays on the device, in their shapes."""
        starts, end = [], 0
        for array in arrays:
            starts.append(end)
            end += array.size + -array.size % _ALIGNED
        there = torch.empty(end, dtype=torch.int32, device=self.device)
        with self.filling(there) as flat:
            for start, array in zip(starts, arrays, strict=True):
                flat[start : start + array.size] = array.reshape(-1)
        return [
            there[start : start + array.size].view(array.shape) for start, array in zip(starts, arrays, strict=True)
        ]

    @contextmanager
    def filling(self, there: torch.Tensor) -> Iterator[Ints]:
        """Give an array of the shape of `there`, contiguous int32, to be filled, and write it to `there` at the end."""
        if self.device.type != "cuda":
            yield there.numpy()
            return
        buffer, read = self._buffer(there.numel())
        here = buffer[: there.numel()].view(there.shape)
        yield here.numpy()
        read_from_host(here, there)
        read.record()
        self._sent[len(buffer)].append((buffer, read))

    def _buffer(self, elements: int) -> tuple[torch.Tensor, torch.cuda.Event]:
        size = max(_SMALLEST, 1 << (elements - 1).bit_length()) if elements else _SMALLEST
        sent = self._sent.setdefault(size, deque())
        if sent and sent[0][1].query():
            return sent.popleft()
        event = torch.cuda.Event()
        return torch.empty(size, dtype=torch.int32, pin_memory=True), event


def _hold(sent: Sent) -> None:
    """The uploads are given up, maybe before their buffers have been read, and while a graph is captured."""
    for buffers in sent.values():
        for buffer, read in buffers:
            HELD.hold(buffer, read)
