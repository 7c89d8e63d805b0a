"""The worker's jobs while the database is away: said once, tried ever more seldom, and said once when it is back; and
how long their statements may take."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec
import pytest
import structlog
from sqlalchemy import text

from billing.periods.sandbox_clock import begin_clock
from storage.database.database import JOB_STATEMENT_S, STATEMENT_S, DatabaseUnavailable, StatementTimeout
from turnpike.admin_services import open_admin_services
from turnpike.processes.worker import Job, Outage, dunning_jobs, job_database, repeat_jobs
from turnpike.settings import secrets
from turnpike.settings.settings import SettingError, Settings


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


async def test_a_statement_that_takes_too_long_is_no_outage(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("turnpike.processes.worker._FIRST_PAUSE_S", 0.01)
    outage, twice, runs = Outage(), asyncio.Event(), 0

    async def run() -> bool:
        nonlocal runs
        runs += 1
        if runs == 2:
            twice.set()
        raise StatementTimeout("a statement took longer than it may")

    with structlog.testing.capture_logs() as logs:
        working = asyncio.create_task(repeat_jobs([Job("clean", 0.002, run)], outage))
        async with asyncio.timeout(60):
            await twice.wait()
        working.cancel()
        await asyncio.gather(working, return_exceptions=True)
    assert not outage.problem
    assert {(line["log_level"], line["job"]) for line in logs} == {("error", "clean")}


async def test_long_jobs_have_a_bound_of_their_own_and_requests_keep_the_short_one(
    fresh_postgres_url: str, tmp_path: Path
) -> None:
    settings = Settings(data_dir=str(tmp_path), database_url=fresh_postgres_url)
    secrets.load_or_make(settings.secrets)
    bound = text("SELECT extract(epoch FROM current_setting('statement_timeout')::interval)")
    bounds = []
    async with open_admin_services(settings, "embedded") as admin, job_database(admin) as database:
        for used in (admin.database, database):
            async with used.reading() as session:
                bounds.append(await session.scalar(bound))
    assert bounds == [STATEMENT_S, JOB_STATEMENT_S] == [60, 3600]


def _stripe_file(folder: Path, key: str) -> str:
    path = folder / "stripe.json"
    credentials = {"account": "acct_1", "key": key, "webhook_secrets": ["whsec_12345678"]}
    path.write_bytes(msgspec.json.encode(credentials | {"return_url": "https://console.example/"}))
    path.chmod(0o600)
    return str(path)


@pytest.mark.parametrize(
    ("key", "clock", "address", "problem"),
    [
        ("rk_test_12345678", False, "", "stripe_file is one of test mode"),
        ("", True, "", "its time is moved by hand"),
        ("", True, "nobody", "sandbox_mail: nobody is no address"),
        ("rk_test_12345678", False, "us@seller.example", ""),
        ("", True, "us@seller.example", ""),
        ("rk_live_12345678", False, "", ""),
        ("", False, "", ""),
    ],
)
async def test_a_sandbox_sends_no_reminder_but_to_one_address(
    tmp_path: Path, key: str, clock: bool, address: str, problem: str
) -> None:
    mail = {"smtp_host": "mail.seller.example", "mail_from": "billing@seller.example", "sandbox_mail": address}
    settings = Settings(data_dir=str(tmp_path), stripe_file=_stripe_file(tmp_path, key) if key else "", **mail)
    if clock:
        async with open_admin_services(settings, "always") as admin:
            await begin_clock(admin.database)
    async with open_admin_services(settings, "always") as admin:
        if problem:
            with pytest.raises(SettingError, match=problem):
                dunning_jobs(admin)
        else:
            assert [job.name for job in dunning_jobs(admin)] == ["reminders"]
