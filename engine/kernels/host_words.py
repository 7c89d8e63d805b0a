"""Words between the device and page-locked host memory, moved by a kernel.

Copies share a few hardware queues with those of all blocks of KV that are on their way, whatever their stream. What a
step waits for does without them.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

_WORDS = 1_024
_PROGRAMS = 32
"""At most: a few multiprocessors keep the bus busy, and the others are for the steps."""


def write_to_host(there: torch.Tensor, here: torch.Tensor) -> None:
    """Write `there` to `here`, page-locked, of as many bytes; both contiguous, of a multiple of 32 bits.

    It is there when the stream has come so far.
    """
    _move(there, here)


def read_from_host(here: torch.Tensor, there: torch.Tensor) -> None:
    """Write `here`, page-locked, to `there`, of as many bytes; both contiguous, of a multiple of 32 bits.

    `here` must stay as it is until the stream has come so far: torch's allocator of such memory does not know of it.
    """
    _move(here, there)


def _move(source: torch.Tensor, target: torch.Tensor) -> None:
    source, target = source.view(-1).view(torch.int32), target.view(-1).view(torch.int32)
    words = source.numel()
    if words:
        programs = min(triton.cdiv(words, _WORDS), _PROGRAMS)
        _copy[(programs,)](source, target, words, WORDS=_WORDS)


@triton.jit(do_not_specialize=["words"], do_not_specialize_on_alignment=["source", "target"])
def _copy(source, target, words, WORDS: tl.constexpr):
    for start in range(tl.program_id(0) * WORDS, words, tl.num_programs(0) * WORDS):
        at = start + tl.arange(0, WORDS)
        tl.store(target + at, tl.load(source + at, mask=at < words), mask=at < words)
