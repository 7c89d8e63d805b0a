"""What was promised for a prompt at admission, by which its tokens are billed whatever the tiers hold (C6).

The decision is made once, in the transaction that takes the request's hold, and frozen there.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from msgspec import Struct


class LeasePart(Struct, frozen=True, array_like=True):
    """The prompt's tokens up to `until`, from where the part before it ends, are a read or a write of a lease class."""

    until: int
    kind: Literal["read", "write"]
    lease: str


def split_prompt(parts: Sequence[LeasePart], tokens: int) -> tuple[dict[str, int], dict[str, int], int]:
    """How the first `tokens` tokens of a prompt are billed: tokens read by class, tokens written by class, and how many
    tokens the parts cover together."""
    read: dict[str, int] = {}
    write: dict[str, int] = {}
    start = 0
    for part in parts:
        end = min(part.until, tokens)
        if end > start:
            meters = read if part.kind == "read" else write
            meters[part.lease] = meters.get(part.lease, 0) + end - start
            start = end
    return read, write, start
