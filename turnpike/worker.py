"""The worker's loop: billing jobs that no request waits for. Holds whose time has passed expire, and
the months to come get their partitions."""

from __future__ import annotations

import asyncio

import structlog

from billing import months
from turnpike.office import Office

EVERY_S = 30.0

logger = structlog.get_logger(__name__)


async def work(office: Office, every_s: float = EVERY_S) -> None:
    """Sweep for ever; a failure is logged, and the next round tries again."""
    while True:
        try:
            await months.prepare(office.database)
            if expired := await office.holds.sweep():
                logger.warning("holds expired without any usage", holds=expired)
        except Exception:
            logger.exception("the sweep failed, trying again")
        await asyncio.sleep(every_s)
