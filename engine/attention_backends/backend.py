"""What computes attention in the place of our kernels: the interface of libraries, and what they are asked for.

None of them promises that a row has the same bits in another chunk or batch. So a replica that uses one has a numerics
id of its own, shares the blocks of prompts alone, and verifies no drafts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

import torch

from engine.kernels.paged_kv import PagedKv, Scores


@dataclass(frozen=True)
class AttentionKind:
    """The attention of a layer group's layers: what a backend must compute, and on which device.

    `window` in tokens, 0 for none. `dtype`: of queries, and of keys and values once they are gathered.
    """

    dtype: torch.dtype
    heads: int
    kv_heads: int
    head_dim: int
    device: torch.device
    window: int = 0
    soft_cap: float | None = None
    sinks: bool = False

    @property
    def capability(self) -> tuple[int, int]:
        """The GPU's compute capability; (0, 0) on other devices."""
        return torch.cuda.get_device_capability(self.device) if self.device.type == "cuda" else (0, 0)


@dataclass(frozen=True)
class DecodeKv:
    """The keys and values of rows that decode, each with those of its own sequence up to itself.

    `tables` int32 [rows, blocks] are the blocks of `pages`; `lengths` int32 [rows] how many keys each row sees (with a
    window: how many of those in its table there are). `gather` gives keys and values, [rows, tokens, KV heads, head
    dim] each, in the type of computation. What lies behind a row's length is finite, and its own.
    """

    pages: PagedKv
    tables: torch.Tensor
    lengths: torch.Tensor
    gather: Callable[[], tuple[torch.Tensor, torch.Tensor]]


class AttentionBackend(Protocol):
    """A library. `name` as it is told to operators; `version` decides bits, and is part of the numerics id."""

    @property
    def name(self) -> str:
        """Its name."""

    @property
    def version(self) -> str:
        """The version that is installed."""

    @property
    def row_multiple(self) -> int:
        """It computes multiples of so many rows best."""

    def unsupported(self, kind: AttentionKind) -> str | None:
        """Why it cannot compute attention of this kind here; None if it can. An option that it would pass over is a
        reason."""

    def prefill(
        self,
        query: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        scores: Scores,
        output: torch.Tensor,
    ) -> None:
        """Write the attention of queries [rows, heads, head dim] to `output`, of the same shape.

        `keys`, `values` [tokens, KV heads, head dim], of any strides but the last. The last query stands at the last
        key, and each sees the keys up to its own.
        """

    def warm_up(self, kind: AttentionKind, context: int) -> Iterator[None]:
        """Make what takes a moment and is made once, a piece at a time, in the thread that computes requests.

        `context`: the longest sequence.
        """

    def decode(self, query: torch.Tensor, kv: DecodeKv, scores: Scores) -> torch.Tensor:
        """The attention of queries [rows, heads, head dim], one of each sequence; the same shape."""


def identity(backend: AttentionBackend) -> str:
    """The backend in the numerics id."""
    return f"{backend.name}-{backend.version}"


def unsupported_option(kind: AttentionKind, *, window: bool, soft_cap: bool, sinks: bool) -> str | None:
    """The first option of this kind that a backend with these abilities has not; None if there is none."""
    if kind.window and not window:
        return "no sliding window"
    if kind.soft_cap is not None and not soft_cap:
        return "no soft cap"
    return "no attention sinks" if kind.sinks and not sinks else None


HALVES = (torch.bfloat16, torch.float16)


def unsupported_shape(kind: AttentionKind, most_dim: int, multiple: int = 8) -> str | None:
    """Why a kernel in 16 bits for heads of up to `most_dim` elements does not compute this kind; None if it does."""
    if kind.dtype not in HALVES:
        return f"not in {str(kind.dtype).removeprefix('torch.')}"
    if kind.head_dim > most_dim or kind.head_dim % multiple:
        return f"no heads of {kind.head_dim} elements"
    return None
