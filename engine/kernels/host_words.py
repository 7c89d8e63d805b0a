"""Few words between the device and page-locked host memory, moved by a kernel.

A copy would wait behind every block of KV that is on its way: copies share a few hardware queues, whatever their stream
and direction.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

_WORDS = 1_024


def write_to_host(there: torch.Tensor, here: torch.Tensor) -> None:
    """Write `there`, contiguous, to `here`, page-locked and of as many elements; both of 32 bits.

    It is there when the stream has come so far.
    """
    _move(there, here)


def read_from_host(here: torch.Tensor, there: torch.Tensor) -> None:
    """Write `here`, page-locked, to `there`, contiguous and of as many elements; both of 32 bits.

    `here` must stay as it is until the stream has come so far: torch's allocator of such memory does not know of it.
    """
    _move(here, there)


def _move(source: torch.Tensor, target: torch.Tensor) -> None:
    words = source.numel()
    if words:
        _copy[(triton.cdiv(words, _WORDS),)](source.view(torch.int32), target.view(torch.int32), words, WORDS=_WORDS)


@triton.jit(do_not_specialize=["words"], do_not_specialize_on_alignment=["source", "target"])
def _copy(source, target, words, WORDS: tl.constexpr):
    at = tl.program_id(0) * WORDS + tl.arange(0, WORDS)
    tl.store(target + at, tl.load(source + at, mask=at < words), mask=at < words)
