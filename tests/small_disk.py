"""A disk of a few megabytes that a test can fill and empty while processes write to it."""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import subprocess
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path


class SmallDisk:
    """`folder` lies on it. `fill` leaves not a byte free, `empty` gives all of it back."""

    def __init__(self, folder: Path, writers: Callable[[], Iterable[int]], *, mounted: bool) -> None:
        self.folder = folder
        self.mounted = mounted
        self._writers = writers

    def fill(self) -> None:
        """From now on nothing can be written."""
        if self.mounted:
            with (self.folder / "filler").open("wb", buffering=0) as filler, contextlib.suppress(OSError):
                for size in (65536, 512, 1):
                    with contextlib.suppress(OSError):
                        while True:
                            filler.write(b"x" * size)
        else:
            self._limit_files(0)

    def empty(self) -> None:
        """From now on there is room."""
        if self.mounted:
            (self.folder / "filler").unlink()
        else:
            self._limit_files(resource.RLIM_INFINITY)

    def _limit_files(self, size: int) -> None:
        """Where nobody may mount: the same processes find that their files cannot grow (EFBIG)."""
        for process in self._writers():
            hard = resource.prlimit(process, resource.RLIMIT_FSIZE)[1]
            resource.prlimit(process, resource.RLIMIT_FSIZE, (size if size >= 0 else hard, hard))


@contextmanager
def small_disk(folder: Path, writers: Callable[[], Iterable[int]], megabytes: int = 12) -> Iterator[SmallDisk]:
    """A disk mounted at `folder`. Where mounting is not allowed, a folder in which the processes that `writers` names
    can be kept from growing files."""
    folder.mkdir(parents=True, exist_ok=True)
    options = ["-t", "tmpfs", "-o", f"size={megabytes}m", "tmpfs", str(folder)]
    mounted = subprocess.run(["mount", *options], capture_output=True, check=False).returncode == 0
    try:
        yield SmallDisk(folder, writers, mounted=mounted)
    finally:
        if mounted:
            subprocess.run(["umount", "--lazy", str(folder)], check=True)


def is_full(folder: Path) -> bool:
    """Whether a byte more is refused."""
    path = folder / "one-more"
    try:
        path.write_bytes(b"x" * 8192)
    except OSError as error:
        return error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
    return False
