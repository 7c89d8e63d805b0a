"""The store of KV records in a folder: sealed, bounded, findable after a restart; a bad record is a miss.

A record is one block of one layer group, in one file. All methods may be called from any thread; those that touch the
disk say so, and belong in worker threads.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

from prompt_cache.kv.block_keys import BLOCK_TOKENS
from prompt_cache.tiers.eviction import EvictionPolicy
from prompt_cache.tiers.identity import ScopeAccess, StoreIdentity
from storage.reported_error import ReportedError

Bytes: TypeAlias = bytes | bytearray | memoryview


class StoreLocked(ReportedError):
    """Another process uses this folder: one folder, one replica."""


class StoreUnusable(ReportedError):
    """The folder cannot be made, read or written. The message names it."""


class RecordStore:
    """The records of one identity in `folder`.

    `state`: a folder beside it, for tombstones: what it holds must not be restored with old records; by default
    `folder` with `.state` after its name. `limit_bytes`: the most that all records hold on disk. `keep_free_share`:
    the share of the file system that stays free for others. `policy`: which records go first.
    """

    def __init__(
        self,
        folder: Path,
        identity: StoreIdentity,
        *,
        limit_bytes: int,
        keep_free_share: float = 0.1,
        policy: EvictionPolicy | None = None,
        state: Path | None = None,
    ) -> None: ...

    # ------------------------------------------------------------ life

    def open(self) -> None:
        """Make and lock the folder, and read the tombstones. Takes milliseconds, however many records there are: they
        are findable at once, by a look at the disk until `scan` is through. Raises StoreLocked, StoreUnusable."""

    def close(self) -> None:
        """Give the folder back. Calls after this find and write nothing."""

    def scan(self, most: int = 1000) -> bool:
        """Look at up to `most` more files (disk). Returns whether all were seen. For a background thread."""

    def maintain(self, now: float | None = None) -> None:
        """What has to be done now and then, about once a second (disk): delete what expired, keep the file system's
        last tenth free, delete records of other identities, oldest first. For a background thread."""

    # ------------------------------------------------------------ records

    def holds(self, scope: str, key: bytes, groups: Iterable[int]) -> bool:
        """Whether the records of this block in all these groups seem to be there. Memory only once the scan is through,
        a look at the disk for each block before that. Only `read` says whether they are good."""

    def read(
        self,
        access: ScopeAccess,
        key: bytes,
        groups: Sequence[int],
        *,
        into: Mapping[int, memoryview] | None = None,
        deadline: float | None = None,
    ) -> Mapping[int, Bytes] | None:
        """The payload of the block in each of these groups (disk); None if any is missing or fails a check.

        `into`: writable memory for each group's payload, which is then what is returned; after None its content means
        nothing. `deadline`: on the monotonic clock; what is not read by then is a miss and stays in the store. A record
        that fails a check is deleted and counted by cause. Raises nothing for what is on disk.
        """

    def write(
        self,
        access: ScopeAccess,
        key: bytes,
        payloads: Mapping[int, Bytes],
        *,
        position: int,
        tokens: int = BLOCK_TOKENS,
        lease_until: float = 0.0,
    ) -> bool:
        """Seal and publish the block's record in each of these groups (disk, with fsync); whether all are there now.

        `position`: tokens before the block. `lease_until`: seconds since the Unix epoch, 0 without a lease. False, and
        counted by cause, when there is no room or the disk refuses. Raises ValueError for a payload that is not of the
        group's `block_bytes`, and for an access without retention (C5).
        """

    def lease(self, scope: str, keys: Iterable[bytes], until: float) -> None:
        """Leases on these blocks now end at `until`, or later if they did before: told to the policy."""

    # ------------------------------------------------------------ deleting

    def purge(self, scope: str, keys: Sequence[bytes]) -> int:
        """Delete these blocks, for ever (disk): a durable tombstone for each outlives their retention, so that no old
        copy of the folder brings them back. Returns how many records were deleted."""

    def forget(self, scope: str) -> int:
        """Delete all that was written in this scope until now, as `purge` does. Returns how many records."""

    def give_back(self, size: int) -> int:
        """Delete records of about `size` bytes, and take no more than what is left for a minute (disk): somebody else
        needs room. Returns the bytes that were deleted."""

    # ------------------------------------------------------------ figures

    @property
    def used_bytes(self) -> int:
        """What the records hold on disk, as far as they were seen."""

    @property
    def usage(self) -> Mapping[str, int]:
        """Bytes on disk by scope, as far as they were seen."""

    @property
    def counters(self) -> Mapping[str, int]:
        """What happened since `open`, by name: `reads`, `read_bytes`, `writes`, `written_bytes`, `evictions`,
        `miss_CAUSE` and `refused_CAUSE`."""
