"""Record stores for tests: small blocks, a clock that can be set, files that can be damaged."""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from prompt_cache.tiers.identity import ScopeAccess, StoreIdentity
from prompt_cache.tiers.record_files import RecordFiles
from prompt_cache.tiers.record_format import disk_bytes, record_bytes
from prompt_cache.tiers.record_store import RecordStore
from prompt_cache.tiers.store_state import state_folder
from protocol.replicas import LayerGroup

SMALL, LARGE = 700, 300_000
"""A block of one chunk, and one of two."""
GROUPS = (
    LayerGroup("window", (0,), 1, 4, 128, "float32", SMALL),
    LayerGroup("full", (1, 2), 2, 16, 0, "float32", LARGE),
)
IDENTITY = StoreIdentity("model", "cpu/1", GROUPS)
RETENTION_S = 3600.0


class Clock:
    """A clock that goes only when a test says so."""

    def __init__(self) -> None:
        self.now = time.time()

    def __call__(self) -> float:
        return self.now


class Files(RecordFiles):
    """Files of a disk with faults: reads that end early, that fail or take long, writes that find no room."""

    def __init__(self, folder: Path, identity: str = IDENTITY.name) -> None:
        super().__init__(folder, identity)
        self.short_after: int | None = None
        """The place in a file from which on nothing is read."""
        self.broken = False
        self.slow_s = 0.0
        self.room: int | None = None
        """How many bytes may still be written."""

    def read(self, file: int, into: memoryview, offset: int) -> int:
        """As the disk is."""
        if self.broken:
            raise OSError(errno.EIO, "Input/output error")
        time.sleep(self.slow_s)
        if self.short_after is not None:
            into = into[: max(0, self.short_after - offset)]
        return super().read(file, into, offset)

    def append(self, file: int, part: memoryview) -> None:
        """As much as there is room."""
        if self.room is not None:
            fits = min(self.room, len(part))
            super().append(file, part[:fits])
            self.room -= fits
            if fits < len(part):
                raise OSError(errno.ENOSPC, "No space left on device")
        else:
            super().append(file, part)


def access(scope: str = "project", retention: float = RETENTION_S, **limits: int) -> ScopeAccess:
    """The access to a scope; scopes of different names have different keys."""
    return ScopeAccess(scope, scope.encode().ljust(32, b"k"), retention, **limits)


def key(number: int) -> bytes:
    """A block key."""
    return number.to_bytes(32, "big")


def payload(scope: str, number: int, group: int) -> bytes:
    """What a test writes for a block: different for each, and made again from its name."""
    return (f"{scope}/{number}/{group}/".encode() * LARGE)[: GROUPS[group].block_bytes]


def payloads(scope: str, number: int) -> Mapping[int, bytes]:
    """What a test writes for a block in all groups."""
    return {group: payload(scope, number, group) for group in range(len(GROUPS))}


@contextmanager
def opened(
    folder: Path, *, identity: StoreIdentity = IDENTITY, scan: bool = True, **how: object
) -> Iterator[RecordStore]:
    """An open store, whose folder was looked through."""
    settings: dict[str, object] = {"limit_bytes": 1 << 30, "keep_free_share": 0.0, "write_share": 1.0}
    store = RecordStore(folder, identity, **(settings | how))  # type: ignore[arg-type]
    store.open()
    try:
        while scan and not store.scan():
            pass
        yield store
    finally:
        store.close()


def record_paths(folder: Path, identity: StoreIdentity = IDENTITY) -> list[Path]:
    """The files of all records."""
    return [path for path in (folder / identity.name).glob("??/*") if path.is_file()]


@contextmanager
def memory_folder() -> Iterator[Path]:
    """A folder for a store where fsync costs little."""
    shared = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=shared if os.access(shared, os.W_OK) else None) as folder:
        yield Path(folder) / "cache"


def copy_store(folder: Path, to: Path, *, state: bool) -> None:
    """Copy the records, and with `state` what the store remembers beside them."""
    shutil.copytree(folder, to, dirs_exist_ok=True)
    if state:
        shutil.copytree(state_folder(folder), state_folder(to), dirs_exist_ok=True)


MINE, OTHER = access("mine"), access("other")
SIZE = disk_bytes(record_bytes(SMALL))
"""What a record of the small group takes of the disk."""


def put(store: RecordStore, number: int, scope: ScopeAccess = MINE, *, position: int = 0) -> bool:
    """Write the small group's record of a block."""
    return store.write(scope, key(number), {0: payload(scope.scope, number, 0)}, position=position)


def get(store: RecordStore, number: int, scope: ScopeAccess = MINE) -> bool:
    """Whether the small group's record of a block is read; it is right then."""
    got = store.read(scope, key(number), (0,))
    if isinstance(got, str):
        return False
    assert got == {0: payload(scope.scope, number, 0)}
    return True
