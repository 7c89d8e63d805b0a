"""What the scheduler asks of the disk tier: transfers of blocks between it and host memory, by other threads.

Nothing here waits. A transfer holds its block of host memory until it has ended, whatever becomes of the request that
it was made for.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Protocol

from prompt_cache.kv.grouped_pool import Block
from prompt_cache.tiers.identity import ScopeAccess
from protocol.requests import LossCause


@dataclass(slots=True, eq=False)
class Transfer:
    """One block between disk and host memory."""

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
    """Why it did not come through although it lies on disk, or lay there until it failed its check. Of what is read."""
    cancelled: bool = False
    """Its key was purged meanwhile: what comes of it must not be used, and what is not written yet must not be."""


class Disk(Protocol):
    """The disk tier, as the engine's thread sees it."""

    @property
    def fetch_room(self) -> int:
        """How many more fetches may be begun now; 0 while reads do not come back."""

    @property
    def save_room(self) -> int:
        """How many more saves may be begun now."""

    def holds(self, scope: str, key: bytes) -> bool:
        """Whether the block seems to be there. Only a fetch says whether it is good."""

    def fetch(self, transfer: Transfer) -> None:
        """Begin to read a block into host memory."""

    def save(self, transfer: Transfer) -> None:
        """Begin to write a block from host memory."""

    def fetched(self) -> Sequence[Transfer]:
        """The fetches that ended since the last call."""

    def saved(self) -> Sequence[Transfer]:
        """The saves that ended since the last call."""

    def lease(self, scope: str, key: bytes, until: float) -> None:
        """A lease on a block lasts until then at least, in seconds since the Unix epoch. Of a block that is not on disk
        any more nothing is kept."""

    def purge(self, scope: str, keys: Collection[bytes]) -> None:
        """Delete these blocks: from now on `holds` denies them, until they are saved again. Transfers of them have been
        cancelled."""

    def forget(self, scope: str) -> None:
        """Delete all blocks of a scope, in the same way."""
