"""A role does not outlive a task that it is made of."""

from __future__ import annotations

import asyncio

import pytest

from storage.reported_error import ReportedError
from turnpike.processes.event_loop import tasks_beside

SECONDS = 60


async def fails(error: Exception) -> None:
    await asyncio.sleep(0)
    raise error


async def ends() -> None:
    await asyncio.sleep(0)


async def test_a_task_that_fails_ends_its_role_with_the_error(caplog: pytest.LogCaptureFixture) -> None:
    stop, others = asyncio.Event(), asyncio.Event()

    async def lasts() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            others.set()

    async def role() -> None:
        async with tasks_beside(ends(), lasts(), fails(ReportedError("no such account")), on_failure=stop.set):
            await stop.wait()
            assert "no such account" in caplog.text, "it is said before the role has come to its end"

    with pytest.raises(ReportedError, match="no such account"):
        await asyncio.wait_for(role(), SECONDS)
    assert others.is_set(), "nothing is left running"


async def test_a_task_that_is_done_ends_nothing() -> None:
    stop = asyncio.Event()
    async with tasks_beside(ends(), on_failure=stop.set):
        for _ in range(10):
            await asyncio.sleep(0)
        assert not stop.is_set()


async def test_a_stop_while_all_is_well_is_no_error() -> None:
    stop = asyncio.Event()
    async with tasks_beside(asyncio.sleep(3600), on_failure=stop.set):
        await asyncio.sleep(0)
    assert not stop.is_set()
