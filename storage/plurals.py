"""A count with its noun, as people write it."""

from __future__ import annotations


def counted(count: int, noun: str) -> str:
    """The noun in the singular for one thing and with an s for any other number: "1 line", "2 lines"."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
