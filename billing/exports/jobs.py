"""Export jobs: requested by a tenant's administrator, run by a worker, their files kept for some days in a folder.

A worker runs one job at a time and holds it by a lease that it renews. When the lease of a dead worker runs out,
another worker takes the job. The same query makes the same file, so making one twice is harmless.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Collection, Mapping
from pathlib import Path
from typing import Any, Literal
from uuid import UUID

import msgspec
import structlog
from sqlalchemy import func, insert, or_, select, update

from audit_log.record import record_change
from audit_log.recorded_rows import digest_row
from billing.calendar import InvalidPeriod, check_period
from billing.exports.datasets import PROVIDER, DisplayNames, ExportQuery, InvalidExport
from billing.exports.files import ExportOrder, dataset_of, export, format_of, manifest_path
from billing.integrity.recorded_tables import EXPORTS
from billing.prices import PriceCatalog
from billing.tables.invoices import export_job
from storage.database.base import new_id
from storage.database.database import Database, DatabaseUnavailable, StatementTimeout

JobState = Literal["queued", "running", "done", "failed", "expired"]

LEASE_S = 60
"""How long a worker holds a job without renewing it."""
MAX_ATTEMPTS = 3
"""Runs of a job until it is failed."""
MAX_UNFINISHED = 20
"""Queued and running jobs that a tenant may have."""
_SECOND = 1_000_000
_MOST_AHEAD = 10_000
_OF = export_job.c

log = structlog.get_logger(__name__)


class TooManyExports(Exception):
    """The tenant has MAX_UNFINISHED unfinished exports."""


class ExportNotFound(LookupError):
    """The tenant has no export with this id."""


class ExportJob(msgspec.Struct, frozen=True, kw_only=True):
    """One job; instants are microseconds since the Unix epoch. `rows` grows while it runs."""

    id: UUID
    tenant_id: UUID
    key_id: UUID
    dataset: str
    period: str
    format: str
    state: JobState
    rows: int
    attempts: int
    error: str | None
    manifest: str | None
    created_at: int
    started_at: int | None
    finished_at: int | None
    leased_until: int

    @property
    def file_name(self) -> str:
        """The name under which the file is downloaded."""
        return f"{self.dataset}-{self.period}.{self.format}"


class ExportJobs:
    """The export jobs of a database, and the folder of their files, which gateways and workers share. `keep_s`: for how
    many seconds a worker keeps a file; None: until somebody removes it."""

    def __init__(self, database: Database, prices: PriceCatalog, folder: Path, keep_s: int | None = None) -> None:
        self._database = database
        self._prices = prices
        self._folder = folder
        self._keep_s = keep_s

    # ------------------------------------------------------------ for the tenant

    async def queue(self, tenant_id: UUID, key_id: UUID, dataset: str, period: str, form: str) -> ExportJob:
        """Queue an export of a tenant. Raises InvalidExport, TooManyExports, DatabaseUnavailable."""
        if dataset_of(dataset).writer is not None:
            problem = f"{dataset} is of all tenants of a seller: only `turnpike export DATASET` writes it"
            raise InvalidExport("dataset", problem)
        format_of(form)
        try:
            check_period(period)
        except InvalidPeriod as error:
            raise InvalidExport("period", str(error)) from error
        async with self._database.transaction() as session:
            await self._database.lock_rows_of(session, export_job, tenant_id)
            unfinished = _OF.state.in_(["queued", "running"])
            waiting = await session.scalar(
                select(func.count()).select_from(export_job).where(_OF.tenant_id == tenant_id, unfinished)
            )
            if (waiting or 0) >= MAX_UNFINISHED:
                raise TooManyExports(f"{waiting} exports are not finished yet")
            identity = new_id()
            now = (await session.execute(select(self._database.clock))).scalar_one()
            await session.execute(
                insert(export_job).values(
                    id=identity,
                    tenant_id=tenant_id,
                    key_id=key_id,
                    dataset=dataset,
                    period=period,
                    format=form,
                    state="queued",
                    rows=0,
                    attempts=0,
                    created_at=now,
                    leased_until=0,
                )
            )
            said = {"dataset": dataset, "period": period, "format": form}
            await record_change(session, "export.ordered", target="export", target_id=identity,
                                tenant_id=tenant_id, after=said,
                                row_sha256=await digest_row(session, EXPORTS, identity))  # fmt: skip
        return await self.get(tenant_id, identity)

    async def get(self, tenant_id: UUID, job_id: UUID) -> ExportJob:
        """One of the tenant's jobs. Raises ExportNotFound, DatabaseUnavailable."""
        async with self._database.reading() as session:
            query = select(export_job).where(_OF.tenant_id == tenant_id, _OF.id == job_id)
            row = (await session.execute(query)).one_or_none()
        if row is None:
            raise ExportNotFound(str(job_id))
        return _job(row)

    async def list(self, tenant_id: UUID, limit: int = 20, after: UUID | None = None) -> list[ExportJob]:
        """The tenant's jobs, newest first, that follow the job `after`. Raises DatabaseUnavailable."""
        query = select(export_job).where(_OF.tenant_id == tenant_id).order_by(_OF.id.desc()).limit(limit)
        async with self._database.reading() as session:
            rows = (await session.execute(query if after is None else query.where(_OF.id < after))).all()
        return [_job(row) for row in rows]

    async def ahead(self, jobs: Collection[ExportJob]) -> dict[UUID, int]:
        """How many jobs, of all tenants, are before each of these that is queued, up to _MOST_AHEAD. Raises
        DatabaseUnavailable."""
        queued = {job.id for job in jobs if job.state == "queued"}
        if not queued:
            return {}
        unfinished = select(_OF.id).where(_OF.state.in_(["queued", "running"])).order_by(_OF.id).limit(_MOST_AHEAD)
        async with self._database.reading() as session:  # all tenants: a number alone is told
            waiting = list(await session.scalars(unfinished))
        places = {identity: place for place, identity in enumerate(waiting)}
        return {identity: places.get(identity, len(waiting)) for identity in queued}

    def kept_until(self, job: ExportJob) -> int | None:
        """Until when a finished job's file is kept; None if it has no file, or none is ever removed."""
        if job.state != "done" or job.finished_at is None or self._keep_s is None:
            return None
        return job.finished_at + self._keep_s * _SECOND

    def path(self, job: ExportJob) -> Path:
        """The path of a done job's file."""
        return self._folder / f"{job.id.hex}.{job.format}"

    # ------------------------------------------------------------ for the worker

    async def run_next(
        self,
        names: Callable[[], Awaitable[DisplayNames]],
        account_codes: Mapping[str, str] | None = None,
        provider: str = PROVIDER,
    ) -> bool:
        """Run one job; False if none was waiting. A failure is stored with the job, after MAX_ATTEMPTS runs for good.

        `names` reads the names of tenants and projects. Raises DatabaseUnavailable; then the job is run again later.
        """
        job = await self._take()
        if job is None:
            return False
        renewing = asyncio.create_task(self._renew(job))
        try:
            await asyncio.to_thread(self._folder.mkdir, parents=True, exist_ok=True, mode=0o700)
            query = ExportQuery(
                period=job.period,
                tenant_id=job.tenant_id,
                names=await names(),
                account_codes=account_codes or {},
                provider=provider,
            )
            order = ExportOrder(dataset_of(job.dataset), format_of(job.format), query)
            manifest = await export(self._database, self._prices, order, self.path(job), self._progress(job))
            stated = msgspec.structs.replace(manifest, file=job.file_name)
            await self._finish(job, "done", rows=manifest.rows, manifest=msgspec.json.encode(stated).decode())
        except Exception as error:
            if isinstance(error, DatabaseUnavailable) and not isinstance(error, StatementTimeout):
                raise  # the lease runs out, and a worker tries again
            log.exception("an export failed", export=str(job.id), dataset=job.dataset, attempt=job.attempts)
            if job.attempts >= MAX_ATTEMPTS or isinstance(error, InvalidExport):
                await self._finish(job, "failed", error=f"{type(error).__name__}: {error}"[:500])
        finally:
            renewing.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await renewing
        return True

    async def remove_old(self, keep_s: int) -> int:
        """Remove the files of jobs that finished more than `keep_s` seconds ago; return how many jobs that were."""
        now = await self._database.now()
        async with self._database.reading() as session:  # all tenants: the worker cleans up for all
            old = select(export_job).where(_OF.state == "done", _OF.finished_at < now - keep_s * _SECOND).limit(1000)
            jobs = [_job(row) for row in await session.execute(old)]
        for job in jobs:
            for path in (self.path(job), manifest_path(self.path(job))):
                await asyncio.to_thread(path.unlink, missing_ok=True)
            await self._finish(job, "expired", manifest=job.manifest, rows=job.rows)
        return len(jobs)

    async def _take(self) -> ExportJob | None:
        # no entry: the order is recorded, not how its work goes on
        async with self._database.transaction() as session:  # all tenants: a worker runs every tenant's jobs
            now = (await session.execute(select(self._database.clock))).scalar_one()
            left = (_OF.state == "running") & (_OF.leased_until < now)
            # Who ran it as often as this came to no end, and nobody was left to say why: a process without memory.
            lost = {"state": "failed", "finished_at": now, "error": f"none of {MAX_ATTEMPTS} runs came to its end"}
            await session.execute(update(export_job).where(left, _OF.attempts >= MAX_ATTEMPTS).values(lost))
            first = select(export_job).where(or_(_OF.state == "queued", left)).order_by(_OF.id).limit(1)
            row = (await session.execute(self._database.locked(first, skip=True))).one_or_none()
            if row is None:
                return None
            values: dict[str, Any] = {
                "state": "running",
                "attempts": row.attempts + 1,
                "started_at": now,
                "leased_until": now + LEASE_S * _SECOND,
                "rows": 0,
            }
            await session.execute(
                update(export_job).where(_OF.tenant_id == row.tenant_id, _OF.id == row.id).values(values)
            )
        return msgspec.structs.replace(_job(row), **values)

    async def _renew(self, job: ExportJob) -> None:
        while True:
            await asyncio.sleep(LEASE_S // 3)
            with contextlib.suppress(DatabaseUnavailable):
                await self._update(job, leased_until=self._database.clock + LEASE_S * _SECOND)

    def _progress(self, job: ExportJob) -> Callable[[int], Awaitable[None]]:
        """A function that writes the number of rows, at most once a second."""
        last = time.monotonic()

        async def progress(rows: int) -> None:
            nonlocal last
            if time.monotonic() - last >= 1:
                last = time.monotonic()
                await self._update(job, rows=rows)

        return progress

    async def _finish(self, job: ExportJob, state: JobState, **values: Any) -> None:
        if state != "expired":
            values |= {"finished_at": self._database.clock}
        this_row = (_OF.tenant_id == job.tenant_id, _OF.id == job.id)
        async with self._database.transaction() as session:
            await session.execute(update(export_job).where(*this_row).values(state=state, **values))
            if state == "done":
                made = msgspec.json.decode(values["manifest"])
                await record_change(session, "export.made", target="export", target_id=job.id,
                                    tenant_id=job.tenant_id, after=made,
                                    row_sha256=await digest_row(session, EXPORTS, job.id))  # fmt: skip

    async def _update(self, job: ExportJob, **values: Any) -> None:
        # no entry: the order is recorded, not how its work goes on
        this_row = (_OF.tenant_id == job.tenant_id, _OF.id == job.id)
        async with self._database.transaction() as session:
            await session.execute(update(export_job).where(*this_row).values(**values))


def _job(row: Any) -> ExportJob:
    return ExportJob(**row._mapping)
