"""The worker's jobs while the database is away: said once, tried ever more seldom, and said once when it is back."""

from __future__ import annotations

import asyncio

import pytest
import structlog

from storage.database.database import DatabaseUnavailable
from turnpike.processes.worker import Job, repeat_jobs


async def test_a_database_that_is_away_is_one_line_and_its_return_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("turnpike.processes.worker._FIRST_PAUSE_S", 0.01)
    monkeypatch.setattr("turnpike.processes.worker._LONGEST_PAUSE_S", 0.1)
    away, runs = True, {"sweep": 0, "webhooks": 0, "clean": 0}

    def job(name: str) -> Job:
        async def run() -> bool:
            runs[name] += 1
            if away:
                raise DatabaseUnavailable("it does not answer")
            return False

        return Job(name, 3600.0 if name == "clean" else 0.002, run)

    with structlog.testing.capture_logs() as logs:
        working = asyncio.create_task(repeat_jobs([job(name) for name in runs]))
        await asyncio.sleep(0.6)
        tried = dict(runs)
        assert all(3 <= times < 40 for times in tried.values()), "the pauses grow"
        assert [line["log_level"] for line in logs] == ["warning"], logs
        assert "exc_info" not in logs[0]
        away = False
        async with asyncio.timeout(60):
            while len(logs) < 2:  # noqa: ASYNC110  # nothing tells of it
                await asyncio.sleep(0.01)
        await asyncio.sleep(0.1)
        assert [line["log_level"] for line in logs] == ["warning", "info"], logs
        assert all(runs[name] > tried[name] for name in runs)
        working.cancel()
        await asyncio.gather(working, return_exceptions=True)
