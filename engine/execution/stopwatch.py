"""Times work on a device: on a GPU by its own clock, so that what it was at before does not count."""

from __future__ import annotations

import time
from types import TracebackType
from typing import Self

import torch


class Stopwatch:
    """`with` it the work is done, on a GPU queued."""

    def __init__(self, device: torch.device) -> None:
        self._took_s = 0.0
        self._events: tuple[torch.cuda.Event, ...] = ()
        if device.type == "cuda":
            self._events = tuple(torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]

    def __enter__(self) -> Self:
        if self._events:
            self._events[0].record()
        self._took_s = -time.perf_counter()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._took_s += time.perf_counter()
        if self._events:
            self._events[1].record()

    def microseconds(self) -> float:
        """What it took, once it has been done: waits for that."""
        if not self._events:
            return self._took_s * 1e6
        began, ended = self._events
        ended.synchronize()
        return float(began.elapsed_time(ended)) * 1e3
