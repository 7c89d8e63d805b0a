"""Checksums of blocks in host memory (C3): made when a block enters it, compared when the block comes back.

A checksum is the sum of the block's 64-bit words, each times an odd weight of its own, modulo 2⁶⁴. A changed word
always changes it; any other change does with a chance of 1 − 2⁻⁶³. It is made where the block is: on the host, or on a
GPU, where one launch adds up many blocks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch

from engine.kv_cache.memory import KvMemory

if TYPE_CHECKING:
    from engine.kernels.uploads import Uploads

_SEED = 0x7475726E
_WORD_BYTES = 8


class BlockChecksums:
    """The checksums of the blocks of one host memory. `device`: where the blocks come from and go to."""

    def __init__(self, memory: KvMemory, device: torch.device) -> None:
        blocks = memory.data.shape[0]
        words = memory.data[0].numel() * memory.data.element_size() // _WORD_BYTES if blocks else 0
        generator = torch.Generator().manual_seed(_SEED)
        weights = torch.randint(-(1 << 62), 1 << 62, (words,), generator=generator) * 2 + 1
        self._on_host = weights
        self._on_device = weights.to(device)
        self._known = torch.zeros(blocks, dtype=torch.int64, device=device)
        self._upload: Uploads | None = None

    def enter(self, pairs: Sequence[tuple[int, int]], device: KvMemory) -> None:
        """Blocks of host memory are to hold these of the device: pairs (block there, block here)."""
        there, here = self._numbers(pairs)
        self._known.index_copy_(0, here, self._sums(device, there))

    def enter_sum(self, block: int, total: int) -> None:
        """The block holds data with this checksum, made by `of_host`."""
        self._known[block] = total

    def of_host(self, data: torch.Tensor) -> int:
        """The checksum of a block that lies in host memory. Any thread may call this."""
        return _sum(data, self._on_host)

    def differing(self, pairs: Sequence[tuple[int, int]], device: KvMemory) -> torch.Tensor:
        """For each of these pairs (block here, block of the device), whether the copy on the device has another
        checksum than the block entered with: bool, on the device."""
        here, there = self._numbers(pairs)
        return self._sums(device, there) != self._known.index_select(0, here)

    def _numbers(self, pairs: Sequence[tuple[int, int]]) -> torch.Tensor:
        """The pairs' first and second blocks, int64 [2, pairs] on the device; on a GPU nobody waits for it."""
        columns = np.array(pairs, np.int32).T
        if not self._known.is_cuda:
            return torch.from_numpy(columns.astype(np.int64))
        if self._upload is None:
            from engine.kernels.uploads import Uploads  # noqa: PLC0415  # Triton, which a CPU does without

            self._upload = Uploads(self._known.device)
        return self._upload([columns])[0].long()

    def _sums(self, memory: KvMemory, blocks: torch.Tensor) -> torch.Tensor:
        if self._known.is_cuda:
            from engine.kernels.block_sums import block_sums  # noqa: PLC0415  # Triton, which a CPU does without

            return block_sums(memory.data, blocks, self._on_device)
        return torch.tensor([_sum(memory.data[block], self._on_device) for block in blocks.tolist()], dtype=torch.int64)


def _sum(data: torch.Tensor, weights: torch.Tensor) -> int:
    # NumPy multiplies and adds integers in one pass, without threads of its own; PyTorch takes twenty times as long.
    return int(np.dot(data.reshape(-1).view(torch.int64).numpy(), weights.numpy()))
