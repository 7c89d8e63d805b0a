"""How many threads a step uses. A step of few rows is over before a second thread is awake, on some machines.

So there are two numbers, chosen at start by measurement (`thread_choice`). They change no bits: the self-test looks.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

import torch

FEW_ROWS = 32
"""Up to so many rows a step counts as small."""


def all_threads() -> int:
    """The largest power of two of the cores that this process may use: work is then divided evenly."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return 1 << (cores.bit_length() - 1)


@dataclass
class Threads:
    """Threads of steps with few rows, and of those with many."""

    few: int
    many: int

    def use(self, rows: int) -> None:
        """Set the calling thread up for a step of so many rows."""
        self.set(self.few if rows <= FEW_ROWS else self.many)

    def set(self, count: int) -> None:
        """Set the calling thread up for so many threads."""
        # The setting belongs to the thread that calls, so what was set last is asked of torch and not remembered.
        if torch.get_num_threads() != count:
            torch.set_num_threads(count)
