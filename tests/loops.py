"""Loops that run as long as their process: an error that nobody expected must not end one."""

from __future__ import annotations

import asyncio
from typing import Any


async def looks_after_an_error(loop: Any) -> int:
    """Runs a loop, which looks and pauses (`run`, `look`, `_pause`), until its second look has ended; the first fails.
    Returns how many looks it began."""
    look, began, ended = loop.look, 0, asyncio.Event()

    async def failing_once() -> None:
        nonlocal began
        began += 1
        if began == 1:
            raise RuntimeError("unexpected")
        await look()
        ended.set()

    async def pause() -> None:
        await asyncio.Event().wait() if ended.is_set() else await asyncio.sleep(0)

    loop.look, loop._pause = failing_once, pause
    running = asyncio.create_task(loop.run())
    try:
        async with asyncio.timeout(60):
            await ended.wait()
    finally:
        running.cancel()
        await asyncio.wait([running])
    return began
