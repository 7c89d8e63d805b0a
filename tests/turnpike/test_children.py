"""Stopping a child that is not there yet, or not there any more."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

import pytest

from turnpike.children import Child

SECONDS = 30.0


def child(folder: Path, script: str) -> Child:
    """A child whose command is a script instead of one of ours."""
    path = folder / "script.py"
    path.write_text(script)
    made = Child("script", [], os.environ)
    made._command = [sys.executable, str(path)]
    return made


async def assert_stops(made: Child, running: asyncio.Task[None]) -> None:
    async with asyncio.timeout(SECONDS):
        await made.stop(SECONDS)
        await running
    assert made.pid is None


@pytest.mark.parametrize("turns", range(0, 12, 2))
async def test_a_child_that_is_stopped_while_it_starts(tmp_path: Path, turns: int) -> None:
    made = child(tmp_path, "import time; time.sleep(60)")
    running = asyncio.create_task(made.run())
    for _ in range(turns):
        await asyncio.sleep(0)
    await assert_stops(made, running)


async def test_a_child_that_is_stopped_while_it_waits_to_be_restarted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("turnpike.children._BACKOFF_FIRST", 60.0)
    made = child(tmp_path, "raise SystemExit(1)")
    running = asyncio.create_task(made.run())
    async with asyncio.timeout(SECONDS):
        while not made.restarts:  # noqa: ASYNC110  # nothing tells of it
            await asyncio.sleep(0.01)
    await assert_stops(made, running)
