"""The disk of a world: real files in a folder in memory, of which only what was synced outlives a loss of power.

A process that is killed loses nothing that it wrote: the operating system has it. A machine that loses power loses what
was not synced: bytes that were appended come back in part, and names that were not synced come back or not. Operations
fail as they may: no room, an error of the device, a process that dies in the middle of one.
"""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from simulation.nodes import Killed, Node, present_node

_REAL: dict[str, Callable[..., Any]] = {
    name: getattr(os, name)
    for name in ("open", "close", "write", "fsync", "fdatasync", "ftruncate", "rename", "replace", "unlink")
}
"""The machine's operations, before any world took their places."""


class Disk:
    """All that lies below `root`. `full`, `broken`: names of nodes whose disk has no room, or fails to sync."""

    def __init__(self, root: Path, chance: random.Random) -> None:
        self.root = str(root)
        self.chance = chance
        self.full: set[str] = set()
        self.broken: set[str] = set()
        self.torn = 0
        """Bytes that were lost with the power."""
        self._durable: dict[int, bytes] = {}
        """inode -> its content when it was last synced"""
        self._names: dict[str, dict[str, int]] = {}
        """folder -> name -> inode, when it was last synced"""
        self._held: dict[int, int] = {}
        """inode -> a descriptor of ours: no other file gets the inode while a loss of power may bring it back"""
        self._owners: dict[int, Node | None] = {}
        """descriptor -> who opened it"""

    def install(self) -> None:
        """Take over the operations of this process."""
        for name in _REAL:
            setattr(os, name, getattr(self, name))

    # ------------------------------------------------ the operations

    def open(self, path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        """See os.open."""
        if not self._is_ours(path):
            return int(_REAL["open"](path, flags, mode, dir_fd=dir_fd))
        self._enter()
        if flags & os.O_CREAT and self._fails(self.full):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        descriptor: int = _REAL["open"](path, flags, mode, dir_fd=dir_fd)
        node = self._owners[descriptor] = present_node()
        if node is not None:
            node.on_death.append(partial(self._close_of, node, descriptor))
        inode = os.fstat(descriptor).st_ino
        if flags & os.O_CREAT and inode not in self._held:
            self._held[inode] = _REAL["open"](f"/proc/self/fd/{descriptor}", os.O_RDWR)  # no lock comes with it
            self._durable.setdefault(inode, b"")
        return descriptor

    def close(self, descriptor: int) -> None:
        """See os.close."""
        node = present_node()
        if descriptor in self._owners:
            if node is not None and not node.alive:
                raise Killed
            del self._owners[descriptor]
        _REAL["close"](descriptor)

    def write(self, descriptor: int, data: Any) -> int:
        """See os.write. May write a part; a process that dies here has written one."""
        if descriptor not in self._owners:
            return int(_REAL["write"](descriptor, data))
        data = bytes(data)
        self._enter(lambda: _REAL["write"](descriptor, data[: self.chance.randrange(len(data) + 1)]))
        if self._fails(self.full):
            part = self.chance.randrange(len(data) + 1) if self.chance.random() < 0.5 else 0
            if not part:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            data = data[:part]
        elif len(data) > 1 and self.chance.random() < 0.05:
            data = data[: self.chance.randrange(1, len(data))]
        return int(_REAL["write"](descriptor, data))

    def fsync(self, descriptor: int) -> None:
        """See os.fsync; a folder's brings its names to the disk."""
        if descriptor not in self._owners:
            _REAL["fsync"](descriptor)
            return
        self._enter()
        if self._fails(self.broken):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        path = os.readlink(f"/proc/self/fd/{descriptor}")
        if os.path.isdir(path):
            self._names[path] = _inodes(path)
        else:
            self._durable[os.fstat(descriptor).st_ino] = _content(descriptor)

    def fdatasync(self, descriptor: int) -> None:
        """See os.fdatasync: the length is data too."""
        self.fsync(descriptor)

    def ftruncate(self, descriptor: int, length: int) -> None:
        """See os.ftruncate."""
        if descriptor in self._owners:
            self._enter()
        _REAL["ftruncate"](descriptor, length)

    def rename(self, source: Any, target: Any, **folders: Any) -> None:
        """See os.rename."""
        if self._is_ours(source):
            self._enter()
        _REAL["rename"](source, target, **folders)

    def replace(self, source: Any, target: Any, **folders: Any) -> None:
        """See os.replace."""
        if self._is_ours(source):
            self._enter()
        _REAL["replace"](source, target, **folders)

    def unlink(self, path: Any, **folders: Any) -> None:
        """See os.unlink."""
        if self._is_ours(path):
            self._enter()
        _REAL["unlink"](path, **folders)

    # ------------------------------------------------ faults

    def lose_power(self, folder: Path) -> None:
        """Let the files of this folder be what the disk has of them. Nobody may have one open."""
        place = str(folder)
        if not folder.is_dir():
            return
        now, before = _inodes(place), self._names.get(place, {})
        kept = dict(before)
        for name in sorted(now.keys() | before.keys()):
            if now.get(name) != before.get(name) and self.chance.random() < 0.5:  # it came to the disk by itself
                if name in now:
                    kept[name] = now[name]
                else:
                    kept.pop(name, None)
        for name, inode in now.items():
            if kept.get(name) != inode:
                _REAL["unlink"](f"{place}/{name}")
        for name, inode in sorted(kept.items()):
            if inode in self._held:
                self._restore(f"{place}/{name}", inode)
        self._names[place] = _inodes(place)

    def _restore(self, path: str, inode: int) -> None:
        """Write a file as a new one: what was synced, and perhaps a part of what was appended after that."""
        durable, content = self._durable[inode], _content(self._held[inode])
        if content.startswith(durable) and len(content) > len(durable):
            content = content[: self.chance.randrange(len(durable), len(content) + 1)]
        elif content != durable and self.chance.random() < 0.5:
            content = durable  # what was cut off may be there again, or not
        self.torn += len(content) < len(durable)
        with suppress(FileNotFoundError):
            _REAL["unlink"](path)
        descriptor: int = _REAL["open"](path, os.O_RDWR | os.O_CREAT, 0o600)
        _REAL["write"](descriptor, content)
        found = os.fstat(descriptor).st_ino
        self._held[found], self._durable[found] = descriptor, content

    def _is_ours(self, path: Any) -> bool:
        return isinstance(path, str | os.PathLike) and os.fspath(path).startswith(self.root)

    @staticmethod
    def _fails(nodes: set[str]) -> bool:
        node = present_node()
        return node is not None and node.name in nodes

    @staticmethod
    def _enter(cut: Callable[[], object] = lambda: None) -> None:
        """Count an operation, in the middle of which the process may die: `cut` does a part of it."""
        node = present_node()
        if node is None:
            return
        if not node.alive:
            raise Killed
        node.file_operations += 1
        if node.dies_at_write is not None and node.file_operations >= node.dies_at_write:
            cut()
            node.die()
            raise Killed

    def _close_of(self, node: Node, descriptor: int) -> None:
        """Close what a dead process had open: its locks go with it."""
        if self._owners.get(descriptor) is node:
            del self._owners[descriptor]
            _REAL["close"](descriptor)


def _inodes(folder: str) -> dict[str, int]:
    return {entry.name: entry.inode() for entry in sorted(os.scandir(folder), key=lambda entry: entry.name)}


def _content(descriptor: int) -> bytes:
    return os.pread(descriptor, os.fstat(descriptor).st_size, 0)
