"""The worker's jobs, which no request waits for: each for ever, at its own pace, whatever becomes of the others."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import msgspec
import structlog

from billing import months
from billing.exports.jobs import ExportJobs
from billing.exports.journal import parse_account_codes
from billing.periods import Periods
from billing.retention import BATCH, forget_charges, forget_holds, forget_windows
from billing.webhooks.dispatch import FORGOTTEN
from turnpike import exporting, webhooks
from turnpike.data_folder import read_secrets
from turnpike.office import Office
from turnpike.settings import Settings

_DAY_S = 86_400

logger = structlog.get_logger(__name__)


class Job(msgspec.Struct, frozen=True):
    """Done again after `every_s` seconds; at once while it answers that there is more to do."""

    name: str
    every_s: float
    run: Callable[[], Awaitable[bool]]


async def work(office: Office, settings: Settings) -> None:
    """Do all jobs for ever."""
    async with asyncio.TaskGroup() as group:
        for job in jobs(office, settings):
            group.create_task(_for_ever(job))


async def _for_ever(job: Job) -> None:
    while True:
        more = False
        try:
            more = await job.run()
        except Exception:
            logger.exception("a job of the worker failed, trying again", job=job.name)
        if not more:
            await asyncio.sleep(job.every_s)


def jobs(office: Office, settings: Settings) -> list[Job]:
    """Holds and grants expire, months to come get partitions, periods close, exports are made, webhooks are sent, and
    what nobody needs any more is forgotten."""
    periods = Periods(office.database)
    exports = ExportJobs(office.database, office.prices, settings.exports)
    dispatcher = webhooks.dispatcher(settings, office.tenancy, office.database, read_secrets(settings))
    codes = parse_account_codes(settings.account_codes)

    async def sweep() -> bool:
        await months.prepare(office.database)
        if expired := await office.holds.sweep():
            logger.warning("holds expired without any usage", holds=expired)
        if expired := await office.balances.expire():
            logger.info("money expired unused", tenants=expired)
        for closed in await periods.close_due(settings.period_grace):
            logger.info("a billing period is closed", period=closed.period)
        return False

    async def export() -> bool:
        return await exports.run_next(lambda: exporting.names(office.tenancy), codes, settings.provider_name)

    async def clean() -> bool:
        if removed := await exports.remove_old(settings.export_keep_days * _DAY_S):
            logger.info("old exports are removed", exports=removed)
        removed = await dispatcher.remove_old(settings.webhook_keep_days * _DAY_S)
        holds = await forget_holds(office.database, settings.hold_keep_days * _DAY_S)
        charges = await forget_charges(office.database, settings.budget_keep_days * _DAY_S)
        windows = await forget_windows(office.database, settings.budget_keep_days * _DAY_S)
        if removed or holds or charges or windows:
            logger.info("old rows are forgotten", webhooks=removed, holds=holds, charges=charges, windows=windows)
        return removed >= FORGOTTEN or max(holds, charges, windows) >= BATCH

    return [
        Job("sweep", 30.0, sweep),
        Job("export", 2.0, export),
        Job("webhooks", 1.0, dispatcher.run),
        Job("clean", 3600.0, clean),
    ]
