"""The files in which several workers keep their figures, with room of their own on the disk.

prometheus_client makes them with holes and maps them into memory: on a full disk the kernel then kills (SIGBUS) whoever
counts something for the first time. Here the room is taken when the file is made or grows.
"""

from __future__ import annotations

import os
from pathlib import Path

from prometheus_client import values
from prometheus_client.mmap_dict import MmapedDict

KINDS = ("counter", "histogram", "gauge_sum", "gauge_max", "gauge_min")
"""The kinds of figures that we have, by the beginning of their files' names."""
_FIRST_BYTES = 128 * 1024
_LARGEST_VALUE = 8 * 1024
"""More than one figure takes, with its name and labels."""


class AllocatedDict(MmapedDict):
    """A file of figures without holes. Raises OSError when there is no room for more figures."""

    def _init_value(self, key: str) -> None:
        if self._used + _LARGEST_VALUE > self._capacity:
            os.posix_fallocate(self._f.fileno(), 0, 2 * self._capacity)
        super()._init_value(key)  # type: ignore[no-untyped-call]


def take_room(folder: Path, worker: str) -> None:
    """Let this worker keep its figures in such files, which are made now. Raises OSError when there is no room."""
    values.MmapedDict = AllocatedDict  # type: ignore[attr-defined]
    for kind in KINDS:
        with folder.joinpath(f"{kind}_{worker}.db").open("ab") as file:
            os.posix_fallocate(file.fileno(), 0, _FIRST_BYTES)
