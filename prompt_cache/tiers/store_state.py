"""A store's memory beside its records: the secret of its file names, the order of its writes and purges; its lock.

The memory lies in a folder of its own, so that restoring old records does not restore it. Without it no record is
found, so losing it loses the records, and revives none.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import secrets
import threading
import time
from pathlib import Path

import msgspec

from prompt_cache.tiers.record_format import NAME_BYTES
from storage.reported_error import ReportedError

_FILE = "store.json"
_AHEAD_US = 3_600_000_000


class StoreUnusable(ReportedError):
    """The folder cannot be made, read or written. The message names it."""


class StoreLocked(StoreUnusable):
    """Another process uses this folder: one folder, one replica."""

    temporary = True


class FolderLock:
    """The exclusive lock of a store's folder, held by an open file: it ends with the process, however that ends."""

    def __init__(self, folder: Path) -> None:
        """Makes the folder if there is none. Raises StoreLocked, StoreUnusable."""
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._file = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        except OSError as error:
            raise StoreUnusable(f"the cache folder {folder} cannot be used: {error.strerror}") from error
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(self._file)
            if not isinstance(error, BlockingIOError):
                raise StoreUnusable(f"the cache folder {folder} cannot be locked: {error.strerror}") from error
            raise StoreLocked(f"the cache folder {folder} is in use by a replica, which has it alone") from error

    def release(self) -> None:
        """Give it back."""
        os.close(self._file)


class _State(msgspec.Struct, frozen=True):
    version: int
    names: bytes
    ceiling: int


class StoreState:
    """The name secret, and a clock that never goes back.

    `sequence` is the time in microseconds since the Unix epoch, or more: each number is greater than all before it. An
    upper bound of all numbers issued is stored. A restart continues above it, so numbers never repeat. So after a clock
    was set back, no record is taken for one from before a purge.
    """

    def __init__(self, folder: Path) -> None:
        """Read or make it. Raises OSError, ValueError if it is damaged."""
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.folder = folder
        self._lock = threading.Lock()
        try:
            state = msgspec.json.decode((folder / _FILE).read_bytes(), type=_State)
        except FileNotFoundError:
            state = _State(1, secrets.token_bytes(32), 0)
        if state.version != 1 or len(state.names) != 32:
            raise ValueError(f"{folder / _FILE} is not of this version")
        self._names = state.names
        self._last = state.ceiling
        self._ceiling = state.ceiling
        self.sequence()

    def name(self, scope: str, key: bytes, group: int) -> bytes:
        """The name of a record: a hash under the store's secret, so that a list of files tells nothing."""
        text = scope.encode()
        content = b"%d:%s:%d:%s:%d" % (len(text), text, len(key), key, group)
        return hashlib.blake2b(content, digest_size=NAME_BYTES, key=self._names, person=b"tpk-name").digest()

    def sequence(self) -> int:
        """The next number. Raises OSError when a new ceiling cannot be written: once an hour."""
        with self._lock:
            number = max(self._last + 1, time.time_ns() // 1000)
            if number >= self._ceiling:
                ceiling = number + _AHEAD_US
                write_durably(self.folder / _FILE, msgspec.json.encode(_State(1, self._names, ceiling)))
                self._ceiling = ceiling
            self._last = number
            return number


def state_folder(folder: Path) -> Path:
    """Where the state of the store in `folder` lies by default."""
    return folder.with_name(f"{folder.name}.state")


def has_state(folder: Path) -> bool:
    """Whether a store has its state in this folder."""
    return (folder / _FILE).is_file()


def write_durably(path: Path, content: bytes) -> None:
    """Replace a file so that after a crash it is the old or the new one. Raises OSError."""
    new = path.with_name(path.name + ".new")
    with contextlib.suppress(FileNotFoundError):
        new.unlink()
    with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    new.replace(path)
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
