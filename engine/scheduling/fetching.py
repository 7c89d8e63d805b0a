"""Fetching: blocks in the tiers are read into host memory by other threads, for who restores them or will.

A block that was verified is published there. Of one that does not come it is told why, also to who asks for it later
if it was damaged and nobody waited for it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from engine.scheduling.dram_tier import DramTier
from engine.scheduling.tier import Tier, Transfer
from prompt_cache.kv.grouped_pool import Block
from prompt_cache.placement.fetch_or_recompute import FetchOrRecompute, Place
from protocol.requests import LossCause

MOST_DAMAGED = 1024
"""Damaged blocks that are remembered until somebody asks for them."""


class Fetches:
    """What is being read from the `tiers`. `block_bytes`: of a block in all layer groups."""

    def __init__(self, dram: DramTier, tiers: Sequence[Tier], block_bytes: int) -> None:
        self.dram = dram
        self.tiers = tiers
        self.block_bytes = block_bytes
        self.failed = Counter[Place]()
        """How many blocks of each tier could not be read, or not be verified."""
        self._transfers: dict[bytes, Transfer] = {}
        self._read: dict[Place, set[bytes]] = {tier.name: set() for tier in tiers}
        """Keys of blocks that came, for whoever keeps account of what is in a tier."""
        self._damaged: dict[bytes, str] = {}
        """Key -> scope of blocks that were damaged when nobody restored them yet: whoever asks next is told."""

    def __len__(self) -> int:
        return len(self._transfers)

    def __contains__(self, key: bytes) -> bool:
        return key in self._transfers

    def begin(self, tier: Tier, scope: str, key: bytes, now: float, chooser: FetchOrRecompute) -> bool:
        """Begin to read a block; whether there was room in host memory, and its scope is known. `chooser` is told."""
        access = self.dram.scopes.get(scope)
        block = None if access is None else self.dram.allocate(scope)
        if access is None or block is None:
            return False
        piece = chooser.begin(tier.name, self.block_bytes, now)
        transfer = self._transfers[key] = Transfer(access, key, block, piece=piece, began=now)
        tier.fetch(transfer)
        return True

    def end(self, chooser: FetchOrRecompute) -> Mapping[bytes, LossCause | None]:
        """Publish what came. Returns the keys of what did not, and why: None if it is not there any more."""
        losses: dict[bytes, LossCause | None] = {}
        ended = [(tier, transfer) for tier in self.tiers for transfer in tier.fetched()]
        for tier, transfer in ended:
            key, scope = transfer.key, transfer.access.scope
            del self._transfers[key]
            chooser.end(tier.name, transfer.piece, transfer.began + transfer.took_s, failed=not transfer.ok)
            if transfer.ok and not transfer.cancelled:
                self.dram.publish(transfer.block, key, scope)
                self._read[tier.name].add(key)
                continue
            self.dram.free(transfer.block)
            if transfer.cancelled:
                continue  # nobody waits for it: who asks for this key now means another block
            self.failed[tier.name] += 1
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

    def take_read(self, tier: Tier) -> set[bytes]:
        """Keys of the blocks that came from a tier since the last call."""
        taken, self._read[tier.name] = self._read[tier.name], set()
        return taken

    def blocks(self) -> list[Block]:
        """Blocks of host memory that are being filled."""
        return [transfer.block for transfer in self._transfers.values()]
