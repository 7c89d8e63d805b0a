"""Export jobs: one worker each, taken up again when a worker dies, kept for their time, each tenant's own."""

from __future__ import annotations

import asyncio
import hashlib
from pathlib import Path

import msgspec
import pytest
from sqlalchemy import update

from billing.exports.datasets import DisplayNames, InvalidExport
from billing.exports.files import Manifest
from billing.exports.jobs import MAX_ATTEMPTS, MAX_UNFINISHED, ExportJobs, ExportNotFound, TooManyExports
from billing.prices import PriceCatalog
from billing.tables.invoices import export_job
from storage.database.base import new_id
from storage.database.database import Database, DatabaseUnavailable, StatementTimeout
from tests.billing.money import Tenant
from tests.billing.recorded import record


async def _names() -> DisplayNames:
    return DisplayNames()


async def test_a_job_from_question_to_expiry(database: Database, tmp_path: Path) -> None:
    past = await record(database, await Tenant.rich(database, 0), count=30)
    await record(database, await Tenant.rich(database, 0, "other"), count=5, seed=2)
    jobs = ExportJobs(database, PriceCatalog(database), tmp_path / "exports")
    asked = await jobs.queue(past.tenant.id, new_id(), "usage", "2026-11", "csv")
    assert (asked.state, asked.rows, asked.manifest) == ("queued", 0, None)
    assert await jobs.run_next(_names)
    assert not await jobs.run_next(_names)
    done = await jobs.get(past.tenant.id, asked.id)
    assert (done.state, done.rows, done.attempts, done.error) == ("done", 30, 1, None)
    manifest = msgspec.json.decode(done.manifest or "", type=Manifest)
    content = await asyncio.to_thread(jobs.path(done).read_bytes)
    assert (manifest.file, manifest.tenant_id) == ("usage-2026-11.csv", past.tenant.id)
    assert manifest.sha256 == hashlib.sha256(content).hexdigest()
    for stranger in (new_id(), asked.key_id):
        with pytest.raises(ExportNotFound):
            await jobs.get(stranger, asked.id)
        assert await jobs.list(stranger) == []
    second = await jobs.queue(past.tenant.id, new_id(), "costs", "2026-11", "jsonl")
    assert [job.id for job in await jobs.list(past.tenant.id)] == [second.id, asked.id]
    assert [job.id for job in await jobs.list(past.tenant.id, after=second.id)] == [asked.id]
    assert await jobs.remove_old(3600) == 0
    await asyncio.sleep(0.01)
    assert await jobs.remove_old(0) == 1
    assert (await jobs.get(past.tenant.id, asked.id)).state == "expired"
    assert not jobs.path(done).exists()


async def test_a_queued_job_says_how_many_are_before_it_and_a_finished_one_until_when_it_is_kept(
    database: Database, tmp_path: Path
) -> None:
    past = await record(database, await Tenant.rich(database, 0), count=5)
    jobs = ExportJobs(database, PriceCatalog(database), tmp_path, keep_s=3600)
    asked = [await jobs.queue(owner, new_id(), "usage", "2026-11", "csv") for owner in (past.tenant.id, new_id())]
    asked.append(await jobs.queue(past.tenant.id, new_id(), "costs", "2026-11", "csv"))
    assert await jobs.ahead(asked) == {job.id: place for place, job in enumerate(asked)}
    assert [jobs.kept_until(job) for job in asked] == [None, None, None]
    assert await jobs.run_next(_names)
    done = await jobs.get(past.tenant.id, asked[0].id)
    assert await jobs.ahead([done, *asked[1:]]) == {asked[1].id: 0, asked[2].id: 1}
    assert done.finished_at is not None
    assert jobs.kept_until(done) == done.finished_at + 3_600_000_000
    assert ExportJobs(database, PriceCatalog(database), tmp_path).kept_until(done) is None


async def test_workers_share_the_jobs(database: Database, tmp_path: Path) -> None:
    past = await record(database, await Tenant.rich(database, 0), count=5)
    workers = [ExportJobs(database, PriceCatalog(database), tmp_path) for _ in range(3)]
    for _ in range(6):
        await workers[0].queue(past.tenant.id, new_id(), "usage", "2026-11", "csv")

    async def drain(worker: ExportJobs) -> int:
        count = 0
        while await worker.run_next(_names):
            count += 1
        return count

    assert sum(await asyncio.gather(*map(drain, workers))) == 6
    known = await workers[0].list(past.tenant.id)
    assert {(job.state, job.attempts) for job in known} == {("done", 1)}


@pytest.mark.slow
async def test_what_a_dead_worker_left_is_taken_up(database: Database, tmp_path: Path) -> None:
    past = await record(database, await Tenant.rich(database, 0), count=5)
    jobs = ExportJobs(database, PriceCatalog(database), tmp_path)
    asked = await jobs.queue(past.tenant.id, new_id(), "usage", "2026-11", "csv")
    entered = asyncio.Event()

    async def never() -> DisplayNames:
        entered.set()
        await asyncio.Event().wait()
        return DisplayNames()

    dying = asyncio.create_task(jobs.run_next(never))
    await entered.wait()
    dying.cancel()
    await asyncio.wait([dying])
    assert not await jobs.run_next(_names), "its lease still runs"
    async with database.transaction() as session:
        await session.execute(update(export_job).values(leased_until=1))
    assert await jobs.run_next(_names)
    done = await jobs.get(past.tenant.id, asked.id)
    assert (done.state, done.attempts) == ("done", 2)


@pytest.mark.slow
async def test_a_job_that_fails_says_why(database: Database, tmp_path: Path) -> None:
    tenant = new_id()
    file = tmp_path / "file"
    await asyncio.to_thread(file.touch)
    jobs = ExportJobs(database, PriceCatalog(database), file / "folder")
    asked = await jobs.queue(tenant, new_id(), "usage", "2026-11", "csv")
    for attempt in range(MAX_ATTEMPTS):
        assert await jobs.run_next(_names)
        assert (await jobs.get(tenant, asked.id)).state == ("failed" if attempt == MAX_ATTEMPTS - 1 else "running")
        async with database.transaction() as session:
            await session.execute(update(export_job).values(leased_until=1))
    failed = await jobs.get(tenant, asked.id)
    assert "NotADirectoryError" in (failed.error or "")
    assert not await jobs.run_next(_names)


async def test_a_job_that_no_worker_survives_is_not_run_for_ever(database: Database, tmp_path: Path) -> None:
    """As one that takes more memory than there is, or that runs into the bound of a statement."""
    jobs, tenant, runs = ExportJobs(database, PriceCatalog(database), tmp_path), new_id(), 0
    asked = await jobs.queue(tenant, new_id(), "usage", "2026-11", "csv")

    async def killed() -> DisplayNames:
        nonlocal runs
        runs += 1
        raise DatabaseUnavailable("as if the process had ended")

    for _ in range(MAX_ATTEMPTS):
        with pytest.raises(DatabaseUnavailable):
            await jobs.run_next(killed)
        async with database.transaction() as session:
            await session.execute(update(export_job).values(leased_until=1))
    assert not await jobs.run_next(killed)
    failed = await jobs.get(tenant, asked.id)
    assert (failed.state, failed.attempts, runs) == ("failed", MAX_ATTEMPTS, MAX_ATTEMPTS)
    assert "none of 3 runs came to its end" in (failed.error or "")


async def test_a_job_whose_statement_takes_too_long_fails_and_says_so(database: Database, tmp_path: Path) -> None:
    jobs, tenant = ExportJobs(database, PriceCatalog(database), tmp_path), new_id()
    asked = await jobs.queue(tenant, new_id(), "usage", "2026-11", "csv")

    async def slow() -> DisplayNames:
        raise StatementTimeout("a statement took longer than it may")

    for _ in range(MAX_ATTEMPTS):
        assert await jobs.run_next(slow)
        async with database.transaction() as session:
            await session.execute(update(export_job).values(leased_until=1))
    assert "StatementTimeout" in ((await jobs.get(tenant, asked.id)).error or "")


async def test_what_is_refused(database: Database, tmp_path: Path) -> None:
    jobs, tenant = ExportJobs(database, PriceCatalog(database), tmp_path), new_id()
    for wrong, question in (
        ("dataset", ("prompts", "2026-11", "csv")),
        ("period", ("usage", "2026-13", "csv")),
        ("format", ("usage", "2026-11", "doc")),
    ):
        with pytest.raises(InvalidExport) as refusal:
            await jobs.queue(tenant, new_id(), *question)
        assert refusal.value.field == wrong
    assert await jobs.list(tenant) == []
    for _ in range(MAX_UNFINISHED):
        await jobs.queue(tenant, new_id(), "usage", "2026-11", "csv")
    with pytest.raises(TooManyExports):
        await jobs.queue(tenant, new_id(), "usage", "2026-11", "csv")
    await jobs.queue(new_id(), new_id(), "usage", "2026-11", "csv")


async def test_those_queued_at_once_are_counted_one_after_the_other(database: Database, tmp_path: Path) -> None:
    jobs, tenant = ExportJobs(database, PriceCatalog(database), tmp_path), new_id()
    for _ in range(MAX_UNFINISHED - 1):
        await jobs.queue(tenant, new_id(), "usage", "2026-11", "csv")
    queueing = [jobs.queue(tenant, new_id(), "usage", "2026-11", "csv") for _ in range(8)]
    done = await asyncio.gather(*queueing, return_exceptions=True)
    assert sum(isinstance(one, TooManyExports) for one in done) == 7
    assert len(await jobs.list(tenant, limit=100)) == MAX_UNFINISHED
