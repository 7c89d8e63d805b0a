"""What a check finds: a line that says how a part is, and what to do."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

Level = Literal["ok", "warning", "wrong"]


class Finding(Struct, frozen=True):
    """`part`: what was looked at. `advice`: what to do; empty where nothing is to be done. `wrong`: it does not work,
    or money, data or secrets are at risk; `warning`: it works, and may not for long."""

    level: Level
    part: str
    state: str
    advice: str = ""


def ok(part: str, state: str) -> Finding:
    """All is well with it."""
    return Finding("ok", part, state)


def warning(part: str, state: str, advice: str) -> Finding:
    """It works, and may not for long."""
    return Finding("warning", part, state, advice)


def wrong(part: str, state: str, advice: str) -> Finding:
    """It does not work, or something is at risk."""
    return Finding("wrong", part, state, advice)
