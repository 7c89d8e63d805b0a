"""`python -m tests.prompt_cache.tiers.killed_writers FOLDER COUNT`: writers that SIGKILL ends in the middle of a write.

Each writes one block, and dies before its file is complete, before fsync, before the name is given, or after it. Then
the folder is opened anew, as by the next start. Prints what was found as JSON.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
from pathlib import Path

from prompt_cache.tiers.record_store import RecordStore
from tests.prompt_cache.tiers.stores import IDENTITY, Files, access, key, opened, payload

MINE = access("mine")
POINTS = {
    "append": "within a part",
    "sync": "before fsync",
    "publish": "before publish",
    "after": "after publish: read",
}
"""Where a writer dies."""


class Dying(Files):
    """Files whose process is killed at one point of a write."""

    point = ""

    def append(self, file: int, part: memoryview) -> None:
        """Die in the middle of a part."""
        if self.point == "append":
            super().append(file, part[: len(part) // 2])
            self._die()
        super().append(file, part)

    def sync(self, file: int) -> None:
        """Die before it."""
        if self.point == "sync":
            self._die()
        super().sync(file)

    def publish(self, new: Path, name: bytes) -> None:
        """Die before or after it."""
        if self.point == "publish":
            self._die()
        super().publish(new, name)
        if self.point == "after":
            self._die()

    @staticmethod
    def _die() -> None:
        os.kill(os.getpid(), signal.SIGKILL)


def write_and_die(store: RecordStore, files: Dying, number: int, point: str) -> None:
    """In a child: write a block until the end."""
    files.point = point
    store.write(MINE, key(number), {number % 2: payload("mine", number, number % 2)}, position=0)
    os._exit(3)  # it should not have lived so long


def main(folder: Path, count: int) -> None:
    """Kill so many writers, one after the other. Each start finds what the writer before left, and is the next one."""
    chance = random.Random("kill")
    told = dict.fromkeys((*POINTS, "unpublished", "read", "wrong"), 0)
    for number in range(count + 1):
        files = Dying(folder, IDENTITY.name)
        with opened(folder, scan=False, files=files) as store:
            if number:
                look(store, number - 1, told)
            if number == count:
                break
            point = chance.choice(list(POINTS))
            child = os.fork()
            if not child:
                write_and_die(store, files, number, point)
            _, status = os.waitpid(child, 0)
            assert os.WIFSIGNALED(status), status
            assert os.WTERMSIG(status) == signal.SIGKILL, status
            told[point] += 1
    sys.stdout.write(json.dumps(told))


def look(store: RecordStore, number: int, told: dict[str, int]) -> None:
    """Count what is there of a block whose writer was killed."""
    told["unpublished"] += store.counters.get("unpublished", 0)
    got = store.read(MINE, key(number), (number % 2,))
    told["read"] += not isinstance(got, str)
    told["wrong"] += not isinstance(got, str) and got != {number % 2: payload("mine", number, number % 2)}


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
