"""Few words from the device to page-locked host memory, written there by a kernel.

A copy would wait for the engine that copies in this direction, behind every block of KV that is on its way.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

_WORDS = 1_024


def write_to_host(there: torch.Tensor, here: torch.Tensor) -> None:
    """Write `there`, contiguous, to `here`, page-locked and of the same shape; both of 32-bit elements.

    It is there when the stream has come so far.
    """
    words = there.numel()
    if words:
        _write[(triton.cdiv(words, _WORDS),)](there.view(torch.int32), here.view(torch.int32), words, WORDS=_WORDS)


@triton.jit(do_not_specialize=["words"], do_not_specialize_on_alignment=["there", "here"])
def _write(there, here, words, WORDS: tl.constexpr):
    at = tl.program_id(0) * WORDS + tl.arange(0, WORDS)
    tl.store(here + at, tl.load(there + at, mask=at < words), mask=at < words)
