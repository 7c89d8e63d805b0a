"""What lines find out of their batch: why no further one may be run, and how its key ended though it goes on."""

from __future__ import annotations

from collections.abc import Mapping

from batch_store.records import BatchProblem
from tenancy.authenticator import KeyEnd

LEAKED = BatchProblem("api_key_leaked", "The API key of this batch was revoked as leaked.")
NOT_KEPT = BatchProblem("content_not_kept", "The project keeps nothing of its content any more, so no batches.")
"""What stops a batch, whichever of its lines is the first to meet it."""
_KEY_ENDS: Mapping[KeyEnd, BatchProblem] = {
    "revoked": BatchProblem(
        "api_key_revoked",
        "The API key of this batch was revoked; the batch goes on. It is stopped if the key is revoked as leaked.",
    ),
    "expired": BatchProblem("api_key_expired", "The API key of this batch has expired; the batch goes on."),
}


class BatchNotes:
    """Those of one batch that runs."""

    def __init__(self) -> None:
        self.stop: BatchProblem | None = None
        """Why no further line may be run."""
        self._key_end: KeyEnd | None = None
        self._told: KeyEnd | None = None

    def hear(self, stop: BatchProblem | None, key_end: KeyEnd | None) -> None:
        """What a line found out."""
        self.stop, self._key_end = stop or self.stop, key_end or self._key_end

    def take(self) -> BatchProblem | None:
        """What is to be said of a batch that goes on, once; None if there is nothing."""
        if self.stop is not None or self._key_end is None or self._key_end == self._told:
            return None
        self._told = self._key_end
        return _KEY_ENDS[self._key_end]
