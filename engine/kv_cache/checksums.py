"""Checksums of blocks in host memory (C3): made when a block enters it, compared when the block comes back.

A checksum is the sum of the block's 64-bit words, each times an odd weight of its own, modulo 2⁶⁴. A changed word
always changes it; any other change does with a chance of 1 − 2⁻⁶³. It is plain arithmetic on tensors, so it is made
where the block is: on the host, or on a GPU, beside the copy.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from engine.kv_cache.memory import KvMemory

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

    def enter(self, block: int, data: torch.Tensor) -> None:
        """The block in host memory is to hold this data of the device."""
        self._known[block] = _sum(data, self._on_device)

    def enter_sum(self, block: int, total: int) -> None:
        """The block holds data with this checksum, made by `of_host`."""
        self._known[block] = total

    def of_host(self, data: torch.Tensor) -> int:
        """The checksum of a block that lies in host memory. Any thread may call this."""
        return int(_sum(data, self._on_host).item())

    def differ(self, blocks: Sequence[int], copies: Sequence[torch.Tensor]) -> list[bool]:
        """For each of these blocks, whether its copy on the device has another checksum than it entered with."""
        found = torch.stack([_sum(copy, self._on_device) for copy in copies])
        known = self._known[torch.tensor(blocks, device=self._known.device)]
        return (found != known).tolist()


def _sum(data: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    return (data.reshape(-1).view(torch.int64) * weights).sum()
