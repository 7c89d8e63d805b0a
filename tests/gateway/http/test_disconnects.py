"""Who is told that a client has disconnected."""

from __future__ import annotations

import asyncio

from gateway.http.sse import Disconnects


async def _turns() -> None:
    for _ in range(3):
        await asyncio.sleep(0)


async def test_who_asks_is_told_once_also_of_what_has_happened() -> None:
    for late in (False, True):
        disconnects = Disconnects()
        told: list[str] = []
        if late:
            disconnects.happened()
        disconnects.tell(lambda told=told: told.append("gone"))  # type: ignore[misc]  # bound now
        disconnects.happened()
        assert not told, "others have their turn first"
        await _turns()
        disconnects.happened()
        await _turns()
        assert told == ["gone"]


async def test_who_asks_no_more_is_not_told() -> None:
    disconnects = Disconnects()
    told: list[str] = []
    disconnects.tell(lambda: told.append("gone"))
    disconnects.happened()
    disconnects.tell(None)
    await _turns()
    assert not told
