"""Fetching: blocks on disk are read into host memory by other threads, for who restores them or will.

A block that was verified is published there. Of one that does not come it is told why, also to who asks for it later
if it was damaged and nobody waited for it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from engine.scheduling.disk import Disk, Transfer
from engine.scheduling.dram_tier import DramTier
from prompt_cache.kv.grouped_pool import Block
from prompt_cache.placement.fetch_or_recompute import FetchOrRecompute
from protocol.requests import LossCause

MOST_DAMAGED = 1024
"""Damaged blocks that are remembered until somebody asks for them."""


class Fetches:
    """What is being read from `disk`, None for no such tier. `block_bytes`: of a block in all layer groups."""

    def __init__(self, dram: DramTier, disk: Disk | None, block_bytes: int) -> None:
        self.dram = dram
        self.disk = disk
        self.block_bytes = block_bytes
        self.failed = 0
        """How many blocks could not be read, or not be verified."""
        self._transfers: dict[bytes, Transfer] = {}
        self._read: set[bytes] = set()
        """Keys of blocks that came, for whoever keeps account of what is on disk."""
        self._damaged: dict[bytes, str] = {}
        """Key -> scope of blocks that were damaged when nobody restored them yet: whoever asks next is told."""

    def __len__(self) -> int:
        return len(self._transfers)

    def __contains__(self, key: bytes) -> bool:
        return key in self._transfers

    def begin(self, scope: str, key: bytes, now: float, chooser: FetchOrRecompute) -> bool:
        """Begin to read a block; whether there was room in host memory, and its scope is known. `chooser` is told."""
        access = self.dram.scopes.get(scope)
        block = None if access is None else self.dram.allocate(scope)
        if self.disk is None or access is None or block is None:
            return False
        piece = chooser.begin("nvme", self.block_bytes, now)
        transfer = self._transfers[key] = Transfer(access, key, block, piece=piece, began=now)
        self.disk.fetch(transfer)
        return True

    def end(self, chooser: FetchOrRecompute) -> Mapping[bytes, LossCause | None]:
        """Publish what came. Returns the keys of what did not, and why: None if it is not on disk any more."""
        losses: dict[bytes, LossCause | None] = {}
        for transfer in () if self.disk is None else self.disk.fetched():
            key, scope = transfer.key, transfer.access.scope
            del self._transfers[key]
            chooser.end("nvme", transfer.piece, transfer.began + transfer.took_s, failed=not transfer.ok)
            if transfer.ok and not transfer.cancelled:
                self.dram.publish(transfer.block, key, scope)
                self._read.add(key)
                continue
            self.dram.free(transfer.block)
            if transfer.cancelled:
                continue  # nobody waits for it: who asks for this key now means another block
            self.failed += 1
            losses[key] = transfer.loss
            if transfer.loss == "corrupted":
                self._damaged[key] = scope
        for key in [*self._damaged][:-MOST_DAMAGED] if losses else ():
            del self._damaged[key]
        return losses

    def tell(self, key: bytes) -> bool:
        """Somebody is told of this block: whether it was damaged, which nobody was told before."""
        return self._damaged.pop(key, None) is not None

    def cancel(self, purged: Callable[[bytes, str], bool]) -> None:
        """Nobody is to find the blocks of these keys and scopes, nor to hear of them."""
        for transfer in self._transfers.values():
            transfer.cancelled |= purged(transfer.key, transfer.access.scope)
        self._damaged = {key: scope for key, scope in self._damaged.items() if not purged(key, scope)}

    def take_read(self) -> set[bytes]:
        """Keys of the blocks that came since the last call."""
        taken, self._read = self._read, set()
        return taken

    def blocks(self) -> list[Block]:
        """Blocks of host memory that are being filled."""
        return [transfer.block for transfer in self._transfers.values()]
