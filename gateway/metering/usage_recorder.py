"""From a finished request to its durable record: usage, event, spool. Nothing here talks to a client."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from uuid import UUID

import msgspec
import structlog
from msgspec import Struct

from billing.holds.records import Hold
from billing.prices import PriceMissing, PriceVersion, UnknownPriceVersion
from billing.reservation.allowances import Allowances
from billing.spool.spool import Spool, SpoolUnavailable
from billing.usage import DeliveryCertainty, RecordedBy, Release, Settlement, Status, UsageEvent
from gateway.metering.billable_usage import EngineCounts, Fault, MeteringTerms, to_billing_counts, usage_of

log = structlog.get_logger("gateway.metering.usage_recorder")

_PAUSE_FIRST, _PAUSE_MOST = 0.1, 5.0
_FAILING_S = 10.0


NONSENSE = (ValueError, msgspec.MsgspecError, PriceMissing, UnknownPriceVersion)
"""What is raised where no event can be made of what a journal says: counts that cannot be true, terms that cannot be
read, a price that there never was."""


class FinishedRequest(Struct, frozen=True, kw_only=True):
    """What is known about a finished request beyond its hold, terms and price."""

    status: Status
    reason: str
    fault: Fault
    delivered: int
    delivery: DeliveryCertainty
    source: RecordedBy
    replica: str
    model_digest: str
    sequence: int
    attempt: int


def event_of(
    hold: Hold, terms: MeteringTerms, price: PriceVersion, counts: EngineCounts, record: FinishedRequest
) -> UsageEvent:
    """The usage event of a request. Raises InvalidUsage if its identities do not hold."""
    usage = usage_of(counts, terms, record.delivered, record.fault)
    return UsageEvent(
        id=hold.request_id,
        tenant_id=hold.tenant_id,
        project_id=hold.project_id,
        key_id=hold.key_id,
        model=hold.model,
        model_digest=record.model_digest,
        lane=hold.lane,
        price_version=hold.price_version,
        admitted_at=hold.admitted_at,
        finished_at=max(hold.admitted_at, time.time_ns() // 1000),
        period=hold.period,
        status=record.status,
        reason=record.reason,
        delivery=record.delivery,
        source=record.source,
        replica=record.replica,
        sequence=record.sequence,
        attempt=record.attempt,
        counts=to_billing_counts(counts),
        usage=usage,
        cost_pico=price.cost(usage, hold.lane),
        context_from=price.context_from(usage.prompt, hold.lane),
        hold_batch=hold.batch,
        allowance=hold.allowance,
    )


class UsageRecorder:
    """Appends to the spool, and goes on trying while that fails; what requests held is free for others after that."""

    def __init__(self, spool: Spool, allowances: Allowances) -> None:
        self._spool = spool
        self._allowances = allowances
        self._failed_at: float | None = None

    @property
    def failing(self) -> bool:
        """Whether usage could not be recorded within the last seconds, and not since: then nothing new may run."""
        return self._failed_at is not None and time.monotonic() - self._failed_at < _FAILING_S

    async def once(self, record: Settlement) -> bool:
        """Try once; False if the record is not durable."""
        try:
            await self._spool.append(record)
        except SpoolUnavailable as error:
            if self._failed_at is None:
                log.error("usage cannot be recorded; new requests are refused", cause=str(error))
            self._failed_at = time.monotonic()
            return False
        if self._failed_at is not None:
            log.info("usage can be recorded again")
        self._failed_at = None
        return True

    async def until_durable(self, record: Settlement) -> None:
        """Try for ever."""
        pause = _PAUSE_FIRST
        while not await self.once(record):
            await asyncio.sleep(pause)
            pause = min(2 * pause, _PAUSE_MOST)

    async def use(self, hold: Hold, event: UsageEvent, *, failing: Callable[[], None]) -> None:
        """Record the usage of a request that held this; `failing` is called if that does not succeed at once."""
        if not await self.once(event):
            failing()
            await self.until_durable(event)
        self._allowances.ended(hold, event.cost_pico)

    async def once_release(self, request_id: UUID, reason: str) -> None:
        """Release what may not even exist, and expires if it does: tried once."""
        await self.once(Release(request_id, reason))

    async def release(self, hold: Hold, reason: str) -> None:
        """Record that nothing was done: the hold is to be given back."""
        if hold.allowance is None:
            await self.release_open(hold.request_id, reason, hold.batch)
        self._allowances.ended(hold)

    async def release_open(self, request_id: UUID, reason: str, hold_batch: UUID | None) -> None:
        """Record that a hold of the database's is to be given back."""
        await self.until_durable(Release(request_id, reason, hold_batch))
