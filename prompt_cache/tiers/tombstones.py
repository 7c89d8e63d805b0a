"""Durable tombstones: what was purged stays so, even if an old copy of its record is put back.

A tombstone covers a block, a scope or everything, up to a sequence number. It is kept until every record that it could
cover has expired by its own header. They are an append-only file with a checksum for each; what cannot be read in its
middle is taken for the purge of everything before.
"""

from __future__ import annotations

import hashlib
import os
import struct
import threading
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path

from prompt_cache.kv.block_keys import KEY_BYTES
from prompt_cache.tiers.store_state import write_durably

_FILE = "tombstones"
_ENTRY = struct.Struct(f">B16s{KEY_BYTES}sQQ")
_CHECKSUM = struct.Struct(">I")
_SIZE = _ENTRY.size + _CHECKSUM.size
_BLOCK, _SCOPE, _STORE = range(3)
"""What an entry covers: a block, a scope, everything."""
_NO_KEY, _NO_SCOPE = bytes(KEY_BYTES), bytes(16)
MOST_KEYS = 20_000
"""Tombstones of blocks that a scope may have: with more, one covers the scope."""
MOST_SCOPES = 50_000
"""Scopes with tombstones: with more, one covers everything."""


class _Scope:
    """The tombstones of a scope: of all of it, and of blocks; `until` is when the last may go."""

    __slots__ = ("all", "keys", "until")

    def __init__(self) -> None:
        self.all = 0
        self.keys: dict[bytes, int] = {}
        self.until = 0


class Tombstones:
    """The tombstones in a folder. May be used from any thread; `covers` waits for nobody."""

    def __init__(self, folder: Path, now: int, sequence: int) -> None:
        """Read them, without those that ended before `now` (microseconds since the Unix epoch). What is damaged counts
        as a purge of everything before `sequence`. Raises OSError."""
        self._path = folder / _FILE
        self._lock = threading.Lock()
        self._scopes: dict[bytes, _Scope] = {}
        self._all = 0
        self.damaged = False
        try:
            raw = self._path.read_bytes()
        except FileNotFoundError:
            raw = b""
        for start in range(0, len(raw), _SIZE):
            entry = raw[start : start + _SIZE]
            if len(entry) < _SIZE:
                break  # a purge that was never answered
            if _CHECKSUM.unpack(entry[_ENTRY.size :])[0] != zlib.crc32(entry[: _ENTRY.size]):
                self.damaged = True
                self._all = max(self._all, sequence)
                continue
            fields = _ENTRY.unpack_from(entry)
            if fields[-1] > now:
                self._remember(*fields)
        self._file, self._closed = -1, False
        self._unsaved = True
        """Whether the file lacks something."""
        self._compact()

    def __len__(self) -> int:
        return sum(len(scope.keys) + bool(scope.all) for scope in self._scopes.values()) + bool(self._all)

    def covers(self, scope: str, key: bytes, sequence: int) -> bool:
        """Whether a record with this sequence number was purged."""
        if sequence <= self._all:
            return True
        known = self._scopes.get(scope_digest(scope))
        return known is not None and (sequence <= known.all or sequence <= known.keys.get(key, -1))

    def add(self, scope: str, keys: Sequence[bytes] | None, sequence: int, until: int) -> None:
        """Purge these blocks, or with None the whole scope, durably. Raises OSError: then it counts in memory, and
        `maintain` tries to write it again."""
        name = scope_digest(scope)
        kind, covered = (_SCOPE, [_NO_KEY]) if keys is None else (_BLOCK, keys)
        entries = [_entry(kind, name, key, sequence, until) for key in covered]
        with self._lock:
            for entry in entries:
                self._remember(*_ENTRY.unpack_from(entry))
            known, behind = self._scopes.get(name), self._unsaved
            self._unsaved = True
            if known is not None and len(known.keys) > MOST_KEYS:
                known.all, known.keys = max(known.all, sequence), {}
                behind = True
            if self._closed:
                return
            if known is None or behind:
                self._compact()
            else:
                self._append(b"".join(entries))

    def maintain(self, now: int) -> None:
        """Drop the tombstones of scopes all of whose records have expired by `now`, and write what could not be written
        before. Raises OSError."""
        with self._lock:
            ended = [name for name, scope in self._scopes.items() if scope.until <= now]
            for name in ended:
                del self._scopes[name]
            if not self._closed and (ended or self._unsaved):
                self._compact()

    def close(self) -> None:
        """Close the file. Purges after this count in memory only."""
        with self._lock:
            self._closed = True
            self._close()

    def _close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    # ------------------------------------------------------------ inside

    def _append(self, content: bytes) -> None:
        before = os.lseek(self._file, 0, os.SEEK_END)
        try:
            written = 0
            while written < len(content):
                written += os.write(self._file, content[written:])
            os.fsync(self._file)
        except OSError:
            os.ftruncate(self._file, before)  # a torn entry would take those after it along
            raise
        self._unsaved = False

    def _remember(self, kind: int, scope: bytes, key: bytes, sequence: int, until: int) -> None:
        if kind == _STORE:
            self._all = max(self._all, sequence)
            return
        known = self._scopes.get(scope)
        if known is None:
            if len(self._scopes) >= MOST_SCOPES:
                self._all = max(self._all, sequence)
                self._scopes.clear()
                return
            known = self._scopes[scope] = _Scope()
        known.until = max(known.until, until)
        if kind == _SCOPE:
            known.all = max(known.all, sequence)
            known.keys = {key: covered for key, covered in known.keys.items() if covered > sequence}
        else:
            known.keys[key] = max(known.keys.get(key, 0), sequence)

    def _entries(self) -> Iterator[bytes]:
        if self._all:
            yield _entry(_STORE, _NO_SCOPE, _NO_KEY, self._all, (1 << 63) - 1)
        for name, scope in self._scopes.items():
            if scope.all:
                yield _entry(_SCOPE, name, _NO_KEY, scope.all, scope.until)
            for key, sequence in scope.keys.items():
                yield _entry(_BLOCK, name, key, sequence, scope.until)

    def _compact(self) -> None:
        """Write anew what still counts."""
        write_durably(self._path, b"".join(self._entries()))
        self._close()
        self._file = os.open(self._path, os.O_WRONLY | os.O_CLOEXEC)
        self._unsaved = False


def scope_digest(scope: str) -> bytes:
    """The 16 bytes that stand for a scope."""
    return hashlib.blake2b(scope.encode(), digest_size=16, person=b"tpk-scope").digest()


def _entry(kind: int, scope: bytes, key: bytes, sequence: int, until: int) -> bytes:
    entry = _ENTRY.pack(kind, scope, key, sequence, until)
    return entry + _CHECKSUM.pack(zlib.crc32(entry))
