"""A background thread that scans a store's folder after it was opened, and then keeps it in order."""

from __future__ import annotations

import threading

import structlog

from prompt_cache.tiers.record_store import RecordStore

logger = structlog.get_logger("prompt_cache.tiers")

_SLICE, _PAUSE_S, _EVERY_S = 500, 0.005, 1.0


class StoreKeeper:
    """Calls `scan` in slices with pauses between them, and `maintain` each second, until it is stopped."""

    def __init__(self, store: RecordStore) -> None:
        self._store = store
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="cache-keeper", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self, timeout: float = 5.0) -> None:
        """End, and wait for it so many seconds; a disk that hangs is not waited for longer."""
        self._stopped.set()
        self._thread.join(timeout)

    def _run(self) -> None:
        pause = 0.0
        while not self._stopped.wait(pause):
            try:
                scanned = self._store.scan(_SLICE)
                if scanned:
                    self._store.maintain()
                pause = _EVERY_S if scanned else _PAUSE_S
            except Exception:  # the thread has to outlive what we did not think of
                logger.exception("the cache folder's keeper failed", folder=str(self._store.folder))
                pause = _EVERY_S
