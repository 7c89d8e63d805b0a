"""When a child is started again, and stopping one that is not there yet, or not there any more."""

from __future__ import annotations

import asyncio
import errno
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from turnpike.processes.children import EXIT_UNUSABLE, Child, ChildFailed, RestartDelays

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
    monkeypatch.setattr(RestartDelays, "after", lambda self, lived: 60.0)
    made = child(tmp_path, "raise SystemExit(1)")
    running = asyncio.create_task(made.run())
    async with asyncio.timeout(SECONDS):
        while not made.restarts:  # noqa: ASYNC110  # nothing tells of it
            await asyncio.sleep(0.01)
    await assert_stops(made, running)


def test_only_deaths_in_a_row_soon_after_the_start_are_waited_after() -> None:
    delays = RestartDelays()
    assert [delays.after(3600.0), delays.after(60.0)] == [0.0, 0.0], "one that was well is started again at once"
    assert delays.after(0.1) == 0.0, "once is no row"
    row = [delays.after(0.1) for _ in range(40)]
    assert row == sorted(row)
    assert 0 < row[0] < row[-1] <= 2.0
    assert [delays.after(60.0), delays.after(1.0)] == [0.0, 0.0], "the row is broken"


async def test_a_child_that_worked_once_is_started_again_whatever_it_says(tmp_path: Path) -> None:
    made = child(tmp_path, f"raise SystemExit({EXIT_UNUSABLE})")
    with pytest.raises(ChildFailed):
        await made.run()
    again = child(tmp_path, f"raise SystemExit({EXIT_UNUSABLE})")
    again.proven = True
    running = asyncio.create_task(again.run())
    async with asyncio.timeout(SECONDS):
        while again.restarts < 3:  # noqa: ASYNC110  # nothing tells of it
            await asyncio.sleep(0.01)
    await assert_stops(again, running)


async def test_a_child_for_which_there_is_no_file_or_process_left_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = child(tmp_path, "import time; time.sleep(60)")
    start, refused = asyncio.create_subprocess_exec, 3

    async def start_or_refuse(*arguments: Any, **options: Any) -> asyncio.subprocess.Process:
        nonlocal refused
        refused -= 1
        if refused >= 0:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return await start(*arguments, **options)

    monkeypatch.setattr(asyncio, "create_subprocess_exec", start_or_refuse)
    running = asyncio.create_task(made.run())
    async with asyncio.timeout(SECONDS):
        while made.pid is None:  # noqa: ASYNC110  # nothing tells of it
            await asyncio.sleep(0.01)
    await assert_stops(made, running)
