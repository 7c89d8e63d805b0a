"""Compares a request with one that the client names, in the coarse terms of the vendors' diagnostics."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from prompt_cache.history.diagnosis import HEADS, Earlier, path_at
from prompt_cache.history.records import RequestRecord

Changed = Literal["", "model", "partition", "tools", "system", "messages"]


class Comparison(Struct, frozen=True):
    """What differs first from the named request, empty if nothing that it cached.

    `state`: `none` if no request was named, `not_found` if the project has none of that id. `missed`: tokens that would
    have been read had nothing changed. `reusable`: tokens that the two begin with. `read`: tokens that were read.
    """

    state: Literal["found", "none", "not_found", "unavailable"]
    changed: Changed = ""
    missed: int = 0
    reusable: int = 0
    read: int = 0
    path: str = ""


def compare(new: RequestRecord, earlier: RequestRecord, common: int) -> Comparison:
    """How `new` differs from a request with which it has its first `common` tokens in common."""
    cached = min(earlier.extent, new.tokens)
    if (earlier.model, earlier.text_digest) != (new.model, new.text_digest):
        return Comparison("found", "model", cached, 0, new.billed_read, "$.model")
    if earlier.partition != new.partition:
        return Comparison("found", "partition", cached, 0, new.billed_read)
    if common >= cached:
        return Comparison("found", "", 0, common, new.billed_read)
    path = path_at(new, common, Earlier(earlier, common))
    changed: Changed = next((part for field, part in HEADS.items() if path.startswith(f"$.{field}")), "messages")
    return Comparison("found", changed, cached - common, common, new.billed_read, path)
