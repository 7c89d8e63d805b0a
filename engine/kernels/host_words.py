"""Words between the device and page-locked host memory, moved by a kernel.

Copies share a few hardware queues with those of all blocks of KV that are on their way, whatever their stream. What a
step waits for does without them.

Torch's allocator of page-locked memory knows of torch's copies, not of these kernels: memory that it gets back while
one of them is queued goes to whoever asks next. So memory of that allocator is held here until the stream has come past
the kernel, also where nobody waits for it any more: a step that was computed ahead in vain, a runner that is replaced.
"""

from __future__ import annotations

from collections import deque
from typing import Protocol

import torch
import triton
import triton.language as tl

_WORDS = 1_024
_PROGRAMS = 32
"""At most: a few multiprocessors keep the bus busy, and the others are for the steps."""


def write_to_host(there: torch.Tensor, here: torch.Tensor) -> None:
    """Write `there` to `here`, page-locked, of as many bytes; both contiguous, of a multiple of 32 bits.

    It is there when the stream has come so far. `here` must not return to torch's allocator before that (`HELD`).
    """
    _move(there, here)


def to_host(there: torch.Tensor) -> tuple[torch.Tensor, torch.cuda.Event | None]:
    """A copy on the host of 32-bit elements, which is there once the event has come."""
    if there.device.type != "cuda":
        return there.clone(), None
    here = torch.empty(there.shape, dtype=there.dtype, pin_memory=True)
    write_to_host(there, here)
    event = torch.cuda.Event()
    event.record()
    HELD.hold(here, event)
    HELD.release()
    return here, event


def read_from_host(here: torch.Tensor, there: torch.Tensor) -> None:
    """Write `here`, page-locked, to `there`, of as many bytes; both contiguous, of a multiple of 32 bits.

    `here` must stay as it is until the stream has come so far, and not return to torch's allocator before (`HELD`).
    """
    _move(here, there)


class Event(Protocol):
    """What a CUDA event says of the stream in which it was recorded."""

    def query(self) -> bool:
        """Whether the stream has come so far."""


class HeldMemory:
    """Page-locked memory that queued kernels read or write."""

    def __init__(self) -> None:
        self._held: deque[tuple[torch.Tensor, Event]] = deque()

    def hold(self, memory: torch.Tensor, event: Event) -> None:
        """Hold this memory until `release` finds that the event has come. Asks the device nothing, so that it may be
        called while a graph is captured."""
        self._held.append((memory, event))

    def release(self) -> None:
        """Give back what was held longest and needs no holding any more."""
        while self._held and self._held[0][1].query():
            self._held.popleft()


HELD = HeldMemory()
"""That of this process, as torch's allocator is."""


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
