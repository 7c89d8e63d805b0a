"""A replica whose process stands still is killed and started again; one that only starts slowly is not."""

from __future__ import annotations

import asyncio
import os
import signal
from dataclasses import dataclass
from pathlib import Path

from tests.turnpike.processes.test_children import SECONDS, assert_stops, child
from turnpike.commands.serve import kill_when_silent


@dataclass
class Link:
    up: bool = False
    silent_for: float = 1000.0


async def test_a_replica_that_was_heard_and_then_stands_still_is_started_again(tmp_path: Path) -> None:
    replica, link = child(tmp_path, "import time; time.sleep(60)"), Link()
    running = asyncio.create_task(replica.run())
    minding = asyncio.create_task(kill_when_silent(replica, link, longest_s=10.0, every_s=0.01))
    async with asyncio.timeout(SECONDS):
        while replica.pid is None:  # noqa: ASYNC110  # nothing tells of it
            await asyncio.sleep(0.01)
    first = replica.pid
    await asyncio.sleep(0.1)
    assert replica.pid == first, "it has not been heard yet: it still loads its model"
    link.up, link.silent_for = True, 0.5
    await asyncio.sleep(0.1)
    os.kill(first, signal.SIGSTOP)
    link.up, link.silent_for = False, 9.0
    await asyncio.sleep(0.1)
    assert replica.pid == first
    link.silent_for = 11.0
    async with asyncio.timeout(SECONDS):
        while replica.pid in (None, first):  # noqa: ASYNC110  # nothing tells of it
            await asyncio.sleep(0.01)
    await asyncio.sleep(0.1)
    assert replica.restarts == 1, "the new one is given its time"
    minding.cancel()
    await assert_stops(replica, running)
