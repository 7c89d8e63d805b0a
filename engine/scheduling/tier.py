"""Where blocks lie beyond the device, as the scheduler sees it: an ordered list of places, host memory first.

Every place can be matched, purged and made to forget a scope. Those behind host memory are tiers: other threads move
blocks between them and host memory, one block a transfer. Another tier, as one that replicas share, is one more class
of this interface in the list.

Nothing here waits. A transfer holds its block of host memory until it has ended, whatever becomes of the request that
it was made for.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from prompt_cache.kv.grouped_pool import Block
from prompt_cache.placement.fetch_or_recompute import Place, TierRate
from prompt_cache.tiers.identity import ScopeAccess
from protocol.requests import LossCause


@dataclass(slots=True, eq=False)
class Transfer:
    """One block between a tier and host memory."""

    access: ScopeAccess
    key: bytes
    block: Block
    """The block of host memory."""
    position: int = 0
    """Tokens before the block."""
    before: tuple[str, bytes] | None = None
    """Scope and key of the block before it in its prompt, if any. Of what is saved."""
    lease_until: float = 0.0
    """When the last lease on it ends, in seconds since the Unix epoch; 0 without one. Of what is saved."""
    piece: int = 0
    """Its number where times are kept."""
    began: float = 0.0
    """When it was asked for, in seconds since the Unix epoch."""
    took_s: float = 0.0
    """Seconds from then until it had ended."""
    ok: bool = False
    """Whether it came through, verified; to be read when it has ended."""
    loss: LossCause | None = None
    """Why it did not come through although it lies in the tier, or lay there until it failed its check. Of what is
    read."""
    cancelled: bool = False
    """Its key was purged meanwhile: what comes of it must not be used, and what is not written yet must not be."""


class BlockPlace(Protocol):
    """A place beyond the device."""

    name: Place
    """The tier's name in the protocol, as requests count their reads by it."""

    def holds(self, scope: str, key: bytes) -> bool:
        """Whether the block seems to be there. Of a tier only a fetch says whether it is good."""

    def purge(self, scope: str, keys: Collection[bytes]) -> None:
        """Delete these blocks: from now on `holds` denies them, until they are saved again. Transfers of them have been
        cancelled."""

    def forget(self, scope: str) -> None:
        """Delete all blocks of a scope, in the same way."""


class Tier(BlockPlace, Protocol):
    """A place behind host memory. What has a body here is for tiers with something to do."""

    rate: TierRate
    """How quick it is believed to be before blocks were read from it."""
    wake: Callable[[], None]
    """Called in any thread when a transfer has ended; the engine's to set."""

    # ------------------------------------------------------------ what a step asks, in the engine's thread

    @property
    def fetch_room(self) -> int:
        """How many more fetches may be begun now; 0 while reads do not come back."""

    @property
    def save_room(self) -> int:
        """How many more saves may be begun now."""

    def fetch(self, transfer: Transfer) -> None:
        """Begin to read a block into host memory."""

    def save(self, transfer: Transfer) -> None:
        """Begin to write a block from host memory."""

    def fetched(self) -> Sequence[Transfer]:
        """The fetches that ended since the last call."""

    def saved(self) -> Sequence[Transfer]:
        """The saves that ended since the last call."""

    def lease(self, scope: str, key: bytes, until: float) -> None:
        """A lease on a block lasts until then at least, in seconds since the Unix epoch. Of a block that is not there
        any more nothing is kept."""

    def shorten(self, scope: str, retention: float) -> None:
        """Let what of a scope is there stay no longer than `retention` seconds from now."""

    # ------------------------------------------------------------ what the process asks, in any thread

    def look(self, blocks: Callable[[], Iterable[tuple[str, bytes]]], looked: Callable[[], None]) -> bool:
        """Look for the blocks (scope, key) of a prompt, which `holds` then knows, and call `looked`, both in another
        thread. Returns False where nothing is to be looked for: then `looked` is not called."""
        return False

    def give_back(self, size: int) -> None:
        """Others need room on the same disk: delete about so many bytes, and take no more for a while."""

    def close(self, seconds: float) -> None:
        """End the threads after what they are doing. Waits for at most this long."""

    @property
    def blocks(self) -> tuple[int, int]:
        """About how many blocks are there, and how many may be."""
        return 0, 0

    @property
    def figures(self) -> Mapping[str, float]:
        """What happened, by the part of the metric's name behind the tier's."""
        return {}


def look_in(
    tiers: Sequence[Tier], blocks: Callable[[], Iterable[tuple[str, bytes]]], looked: Callable[[], None]
) -> bool:
    """Look for blocks in each tier that has to, one after the other, then call `looked`. False where none has to."""
    if not tiers:
        return False

    def look_further() -> None:
        if not look_in(tiers[1:], blocks, looked):
            looked()

    return tiers[0].look(blocks, look_further) or look_in(tiers[1:], blocks, looked)
