"""Inputs that made the engine fail, by hash: sent again, they are refused for a while instead of failing again.

An input is known by its prefix key (`prompt_cache.kv.block_keys`): the hash of its tokens under the scopes that it was
sent in, so that one tenant's failure says nothing to another who sends the same text.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection
from pathlib import Path

import msgspec
import structlog

logger = structlog.get_logger("engine.core.quarantine")

PERIOD_S = 3600.0
"""How long an input is refused, and how long a suspicion lasts."""
_MOST = 4096


class QuarantineEntry(msgspec.Struct):
    """What is held against an input: how often it was there when the engine failed, and until when that counts."""

    failures: int
    guilty: bool
    until: float


class Quarantine:
    """Verdicts by input, kept in a file, so that a restart does not run into the same input again.

    `path` None keeps them in memory alone. `clock` gives seconds since the Unix epoch.
    """

    def __init__(
        self, path: Path | None = None, period_s: float = PERIOD_S, clock: Callable[[], float] = time.time
    ) -> None:
        self._path = path
        self._period = period_s
        self._clock = clock
        self._verdicts: dict[bytes, QuarantineEntry] = self._load()

    def __len__(self) -> int:
        """How many inputs something is held against."""
        return len(self._verdicts)

    def refused_seconds(self, key: bytes) -> float | None:
        """How many seconds this input is still refused; None when it is not."""
        verdict = self._verdicts.get(key)
        if verdict is None:
            return None
        left = verdict.until - self._clock()
        if left <= 0:
            del self._verdicts[key]
            return None
        return left if verdict.guilty else None

    def blame(self, keys: Collection[bytes]) -> None:
        """These inputs were in the work when it failed. One alone is guilty at once; in company, the second time."""
        until = self._clock() + self._period
        for key in keys:
            before = self._verdicts.pop(key, None)
            failures = 1 + (before.failures if before is not None and before.until > self._clock() else 0)
            self._verdicts[key] = QuarantineEntry(failures, len(keys) == 1 or failures > 1, until)
            if self._verdicts[key].guilty:
                logger.error("an input is quarantined", input=key.hex()[:16], failures=failures, for_s=self._period)
        for oldest in list(self._verdicts)[: max(0, len(self._verdicts) - _MOST)]:
            del self._verdicts[oldest]
        self._save()

    def _load(self) -> dict[bytes, QuarantineEntry]:
        if self._path is None or not self._path.exists():
            return {}
        try:
            kept = msgspec.msgpack.decode(self._path.read_bytes(), type=dict[bytes, QuarantineEntry])
        except (OSError, msgspec.DecodeError) as error:
            logger.warning("the quarantine cannot be read and starts empty", path=str(self._path), problem=str(error))
            return {}
        return {key: verdict for key, verdict in kept.items() if verdict.until > self._clock()}

    def _save(self) -> None:
        """A failure to write is logged: the verdicts hold while the process lives."""
        if self._path is None:
            return
        beside = self._path.with_suffix(".new")
        try:
            with beside.open("wb") as file:
                file.write(msgspec.msgpack.encode(self._verdicts))
                file.flush()
                os.fsync(file.fileno())
            beside.replace(self._path)
        except OSError as error:
            logger.warning("the quarantine cannot be written", path=str(self._path), problem=str(error))
