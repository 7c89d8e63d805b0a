"""Waiting for what has no bound in time: long, since a machine may stand still meanwhile."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

LONG_S = 60.0


async def until(condition: Callable[[], object], seconds: float = LONG_S, what: str = "it did not happen") -> None:
    """Wait until the condition holds."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, what
        await asyncio.sleep(0.005)
