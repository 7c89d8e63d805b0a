"""Programmatic dependent launch: a kernel is launched while the one before it still runs, and waits where it needs it.

Every kernel calls `wait_for_inputs` before it reads or writes anything that another kernel reads or writes, and then
`let_next_begin`. What it does before that (addresses, fetching weights) runs beside the end of the kernel before it.
Not the other way round: kernels that wait for several others take the multiprocessors that come free first, several
programs on one. Only a kernel in front of one that wants a multiprocessor for each program, as `linear_hopper` does,
lets it begin at once (`wait_and_let_next_begin`).
Hopper and later; elsewhere, and in the interpreter, both are nothing.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

_HOPPER = 9


def _is_supported() -> bool:
    return torch.cuda.is_available() and torch.cuda.get_device_capability()[0] >= _HOPPER


DEPENDENT: tl.constexpr = tl.constexpr(_is_supported())
LAUNCH: dict[str, Any] = {"launch_pdl": True} if DEPENDENT.value else {}
"""Arguments of every launch."""


@triton.jit
def wait_for_inputs():
    """Wait until the kernels before this one have written what they write."""
    if DEPENDENT:
        tl.extra.cuda.gdc_wait()


@triton.jit
def let_next_begin():
    """Allow the next kernel to be launched as soon as all programs of this one have begun."""
    if DEPENDENT:
        tl.extra.cuda.gdc_launch_dependents()


@triton.jit
def wait_and_let_next_begin(AT_ONCE: tl.constexpr):
    """Both; `AT_ONCE`: the next kernel may be launched although this one waits."""
    if AT_ONCE:
        let_next_begin()
    wait_for_inputs()
    if not AT_ONCE:
        let_next_begin()


@triton.jit
def prefetch(pointers):
    """Fetch the cache lines of these addresses from memory; nobody waits for them."""
    if DEPENDENT:
        tl.inline_asm_elementwise(
            "prefetch.global.L2 [$1]; mov.b32 $0, 0;", "=r,l", [pointers.to(tl.int64)], dtype=tl.int32,
            is_pure=False, pack=1,
        )  # fmt: skip
