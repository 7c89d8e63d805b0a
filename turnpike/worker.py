"""The worker's loop: billing jobs that no request waits for. Holds whose time has passed expire, the months to come get
their partitions, and billing periods close."""

from __future__ import annotations

import asyncio

import structlog

from billing import months
from billing.periods import Periods
from turnpike.office import Office

EVERY_S = 30.0

logger = structlog.get_logger(__name__)


async def work(office: Office, period_grace_s: int, every_s: float = EVERY_S) -> None:
    """Sweep for ever; a failure is logged, and the next round tries again."""
    periods = Periods(office.database)
    while True:
        try:
            await months.prepare(office.database)
            if expired := await office.holds.sweep():
                logger.warning("holds expired without any usage", holds=expired)
            for closed in await periods.close_due(period_grace_s):
                logger.info("a billing period is closed", period=closed.period)
        except Exception:
            logger.exception("the sweep failed, trying again")
        await asyncio.sleep(every_s)
