"""Looks at a store's folder from outside, for operators: what is there, is it whole, does it open; deletes.

`Inspection` needs the folder for itself, so the replica has to be stopped; `look` only reads, and may run beside it.
"""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import msgspec

from prompt_cache.tiers.identity import ScopeAccess, StoreIdentity
from prompt_cache.tiers.record_files import RecordFiles, identities
from prompt_cache.tiers.record_format import HEADER_BYTES, BadRecord, Header, disk_bytes, unpack
from prompt_cache.tiers.record_io import LONGEST_RETENTION_S, RecordReader
from prompt_cache.tiers.sealing import Sealer
from prompt_cache.tiers.store_state import FolderLock, StoreState, StoreUnusable, has_state, state_folder
from prompt_cache.tiers.tombstones import Tombstones

_US = 1_000_000


class Held(msgspec.Struct):
    """Records of one kind: how many, their bytes on disk, and when the last of them expires (seconds)."""

    records: int = 0
    bytes: int = 0
    expires: float = 0.0

    def add(self, header: Header, length: int) -> None:
        """One more."""
        self.records += 1
        self.bytes += disk_bytes(length)
        self.expires = max(self.expires, header.expires / _US)


class IdentityContents(msgspec.Struct):
    """What lies there of one identity. `numerics` and `model_digest` as it was described, "?" if it was not."""

    identity: str
    model_digest: str
    numerics: str
    held: Held
    scopes: dict[str, Held]
    unreadable: int = 0
    unpublished: int = 0


def look(folder: Path) -> list[IdentityContents]:
    """What a store's folder holds, by identity and scope, as the headers say. Raises StoreUnusable."""
    found = []
    _check_store(folder)
    try:
        for path in identities(folder):
            files = RecordFiles(folder, path.name)
            described = _described(files)
            model, numerics = ("?", "?") if described is None else (described.model_digest, described.numerics)
            contents = IdentityContents(path.name, model, numerics, Held(), {}, unpublished=len(files.unpublished()))
            for name in files.names():
                try:
                    header, length = _header(files, name)
                except (BadRecord, OSError):
                    contents.unreadable += 1
                    continue
                contents.held.add(header, length)
                contents.scopes.setdefault(header.scope, Held()).add(header, length)
            found.append(contents)
    except OSError as error:
        raise StoreUnusable(f"the cache folder {folder} cannot be read: {error.strerror}") from error
    return found


class Finding(msgspec.Struct, frozen=True):
    """A file that is of no use, and why."""

    file: str
    cause: str
    bytes: int


class Inspection:
    """A store's folder, held alone. Use as a context. Raises StoreLocked, StoreUnusable."""

    def __init__(self, folder: Path, state: Path | None = None) -> None:
        _check_store(folder)
        state = state or state_folder(folder)
        if not has_state(state):  # a new one would name records otherwise: all would seem to be misplaced
            raise StoreUnusable(f"the cache folder {folder} cannot be checked without its state, {state}")
        self.folder = folder
        self._lock = FolderLock(folder)
        try:
            self._state = StoreState(state)
            now = int(time.time() * _US)
            self._tombstones = Tombstones(self._state.folder, now, self._state.sequence())
        except (OSError, ValueError, msgspec.MsgspecError) as error:
            self._lock.release()
            raise StoreUnusable(f"the state beside {folder} cannot be read: {error}") from error
        self.checked = 0
        """Records that were looked at."""

    def __enter__(self) -> Inspection:
        return self

    def __exit__(self, *_: object) -> None:
        self._tombstones.close()
        self._lock.release()

    @property
    def tombstones(self) -> int:
        """How many purges are remembered."""
        return len(self._tombstones)

    def check(self, access_of: Callable[[str], ScopeAccess | None] | None = None) -> Iterator[Finding]:
        """The files that are of no use. With `access_of` each record is opened too: it gives the access to a scope,
        None where the key was destroyed (cause `no_key`)."""
        for path in self._identities():
            files = RecordFiles(self.folder, path.name)
            identity = _described(files)
            yield from (_finding(unpublished, "unpublished") for unpublished in files.unpublished())
            for name in files.names():
                self.checked += 1
                place = name if isinstance(name, Path) else files.path(name)
                cause: str | None = "foreign"
                if isinstance(name, bytes):
                    cause = "other_identity" if identity is None else self._cause(files, identity, name, access_of)
                if cause is not None:
                    yield _finding(place, cause)

    def purge(self, scopes: Sequence[str] | None, *, expired_only: bool = False, dry_run: bool = False) -> Counter[str]:
        """Delete the records of these scopes, None for all; with tombstones, so that an old copy of the folder does not
        bring them back. `expired_only`: those whose time is over. Returns how many `records` and `bytes`."""
        told: Counter[str] = Counter()
        now, seen = time.time() * _US, set(scopes or ())
        for path in self._identities():
            files = RecordFiles(self.folder, path.name)
            for name in files.names():
                with contextlib.suppress(BadRecord, OSError):
                    header, length = _header(files, name)
                    wanted = scopes is None or header.scope in scopes
                    if not wanted or (expired_only and header.expires > now) or isinstance(name, Path):
                        continue
                    seen.add(header.scope)
                    told["records"] += 1
                    told["bytes"] += disk_bytes(length)
                    if not dry_run:
                        files.delete(name)
        if not dry_run and not expired_only:
            until = int(now + LONGEST_RETENTION_S * _US)
            for scope in seen:
                self._tombstones.add(scope, None, self._state.sequence(), until)
        return told

    def _identities(self) -> list[Path]:
        try:
            return identities(self.folder)
        except OSError as error:
            raise StoreUnusable(f"the cache folder {self.folder} cannot be read: {error.strerror}") from error

    def _cause(
        self,
        files: RecordFiles,
        identity: StoreIdentity,
        name: bytes,
        access_of: Callable[[str], ScopeAccess | None] | None,
    ) -> str | None:
        """Why this record is of no use; None if it may be."""
        reader = RecordReader(files, identity, Sealer(), self._tombstones, time.time)
        try:
            header = reader.look(name, lambda header: self._state.name(header.scope, header.key, header.group))
            if access_of is not None:
                access = access_of(header.scope)
                if access is None:
                    return "no_key"
                into = memoryview(bytearray(identity.groups[header.group].block_bytes))
                reader.read(access, header.key, header.group, name, into, deadline=None)
        except BadRecord as bad:
            return bad.cause
        return None


def _check_store(folder: Path) -> None:
    """Raises StoreUnusable unless a replica made this folder: whoever inspects must not make a store of another."""
    try:
        found = bool(identities(folder))
    except (FileNotFoundError, NotADirectoryError):
        raise StoreUnusable(f"there is no cache folder {folder}") from None
    except OSError as error:
        raise StoreUnusable(f"the cache folder {folder} cannot be read: {error.strerror}") from error
    if not found:
        raise StoreUnusable(f"{folder} is no cache folder: no replica has kept records in it")


def _header(files: RecordFiles, name: bytes | Path) -> tuple[Header, int]:
    """A record's header and its file's length. Raises BadRecord, OSError."""
    if isinstance(name, Path):
        raise BadRecord("misplaced")
    with files.opened(name) as (file, length):
        raw = bytearray(HEADER_BYTES)
        return unpack(bytes(raw[: files.read(file, memoryview(raw), 0)])), length


def _described(files: RecordFiles) -> StoreIdentity | None:
    """The identity of a folder, as it says; None if that is not its name."""
    try:
        identity = StoreIdentity.described(files.description())
    except (OSError, ValueError, msgspec.MsgspecError):
        return None
    return identity if identity.name == files.records.name else None


def _finding(path: Path, cause: str) -> Finding:
    try:
        size = path.lstat().st_size
    except OSError:
        size = 0
    return Finding(str(path), cause, size)
