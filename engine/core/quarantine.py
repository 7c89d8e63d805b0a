"""The inputs on which the engine failed, by hash: sent again, they are refused for a while instead of failing again.

An input is known by its prefix key (`prompt_cache.kv.block_keys`): the hash of its tokens under their scopes. So one
tenant's failure says nothing to another tenant who sends the same text.
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
_MAX_ENTRIES = 4096


class QuarantineEntry(msgspec.Struct):
    """What is known of an input: how often it was in work that failed, whether it is refused, and until when this
    counts (seconds since the Unix epoch). The file holds these field names."""

    failures: int
    guilty: bool
    until: float


class Quarantine:
    """Inputs that are refused or suspected, kept in a file, so that a restarted replica does not fail on them again.

    `path` None keeps them in memory alone. `clock` gives seconds since the Unix epoch.
    """

    def __init__(
        self, path: Path | None = None, period_s: float = PERIOD_S, clock: Callable[[], float] = time.time
    ) -> None:
        self._path = path
        self._period = period_s
        self._clock = clock
        self._entries: dict[bytes, QuarantineEntry] = self._load()

    def __len__(self) -> int:
        """The number of inputs that are refused or suspected."""
        return len(self._entries)

    def refused_seconds(self, key: bytes) -> float | None:
        """For how many more seconds this input is refused; None if it is not."""
        entry = self._entries.get(key)
        if entry is None:
            return None
        left = entry.until - self._clock()
        if left <= 0:
            del self._entries[key]
            return None
        return left if entry.guilty else None

    def record_failure(self, keys: Collection[bytes]) -> None:
        """Note that these inputs were in work that failed. One that was alone is refused from now on; among others,
        from its second failure."""
        self._record(keys, alone=len(keys) == 1)

    def record_device_failure(self, keys: Collection[bytes]) -> None:
        """Note that the device failed in a step with these inputs. The device may be the cause: even one that was alone
        is refused from its second failure only."""
        self._record(keys, alone=False)

    def _record(self, keys: Collection[bytes], *, alone: bool) -> None:
        until = self._clock() + self._period
        for key in keys:
            entry = self._entries.pop(key, None)
            failures = 1 + (entry.failures if entry is not None and entry.until > self._clock() else 0)
            self._entries[key] = QuarantineEntry(failures, alone or failures > 1, until)
            if self._entries[key].guilty:
                logger.error("an input is quarantined", input=key.hex()[:16], failures=failures, for_s=self._period)
        for oldest in list(self._entries)[: max(0, len(self._entries) - _MAX_ENTRIES)]:
            del self._entries[oldest]
        self._save()

    def _load(self) -> dict[bytes, QuarantineEntry]:
        if self._path is None or not self._path.exists():
            return {}
        try:
            stored = msgspec.msgpack.decode(self._path.read_bytes(), type=dict[bytes, QuarantineEntry])
        except (OSError, msgspec.DecodeError) as error:
            logger.warning("the quarantine cannot be read and starts empty", path=str(self._path), problem=str(error))
            return {}
        return {key: entry for key, entry in stored.items() if entry.until > self._clock()}

    def _save(self) -> None:
        """Write the file. A failure is logged: the entries hold while the process lives."""
        if self._path is None:
            return
        new = self._path.with_suffix(".new")
        try:
            with new.open("wb") as file:
                file.write(msgspec.msgpack.encode(self._entries))
                file.flush()
                os.fsync(file.fileno())
            new.replace(self._path)
        except OSError as error:
            logger.warning("the quarantine cannot be written", path=str(self._path), problem=str(error))
