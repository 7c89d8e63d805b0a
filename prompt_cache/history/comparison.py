"""Compares a request with one that the client names, in the coarse terms of the vendors' diagnostics."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from prompt_cache.history.diagnosis import HEADS, Earlier, path_at, text_around
from prompt_cache.history.records import RequestRecord

Changed = Literal["", "model", "partition", "tools", "system", "messages"]


class Comparison(Struct, frozen=True):
    """What differs first from the named request, empty if nothing that it cached.

    `state`: `none` if no request was named, `not_found` if the project has none of that id. `cached`: tokens that would
    have been read had nothing changed. `reusable`: tokens that the two begin with. `read`: tokens that were read.
    """

    state: Literal["found", "none", "not_found", "unavailable"]
    changed: Changed = ""
    cached: int = 0
    reusable: int = 0
    read: int = 0

    @property
    def diverged(self) -> int:
        """Cached tokens that stand behind the first difference."""
        return max(0, self.cached - self.reusable)

    @property
    def missed(self) -> int:
        """Cached tokens that were not read."""
        return max(0, self.cached - self.read)


def compare(new: RequestRecord, earlier: RequestRecord, common: int) -> Comparison:
    """How `new` differs from a request with which it has its first `common` tokens in common."""
    cached = min(earlier.extent, new.tokens)
    if (earlier.model, earlier.text_digest) != (new.model, new.text_digest):
        return Comparison("found", "model", cached, 0, new.billed_read)
    if earlier.partition != new.partition:
        return Comparison("found", "partition", cached, 0, new.billed_read)
    if common < cached:
        path = path_at(new, common, Earlier(earlier, common))
    elif new.automatic or new.billed_read >= cached or not (path := text_around(new, cached)):
        return Comparison("found", "", cached, common, new.billed_read)
    # Else an entry is not found, since the text that it ended with goes on here.
    changed: Changed = next((part for field, part in HEADS.items() if path.startswith(f"$.{field}")), "messages")
    return Comparison("found", changed, cached, common, new.billed_read)
