"""Confirming at a request's first token what was decided of leases at its admission.

`prompt_cache.promise.lease_decider` says what stands. Until then nothing was told to the client. A decision that does
not stand is made again and frozen in the hold, as the first was: so whoever bills the request bills what is told to its
client.
"""

from __future__ import annotations

import asyncio

import structlog
from msgspec.structs import replace

from billing.holds.records import Hold
from billing.reservation.decisions import HoldEnded
from billing.reservation.hooked_holds import HookedHolds
from gateway.admission.cache_leases import LeaseRequest
from gateway.admission.prepared_request import PreparedRequest
from gateway.errors import NotCached
from gateway.metering.billable_usage import unpack
from prompt_cache.promise.lease_decisions import Confirmation, is_certain
from prompt_cache.promise.lease_store import LeaseStore
from storage.database.batcher import BatcherClosed, MicroBatcher
from storage.database.database import DatabaseUnavailable

log = structlog.get_logger("gateway.admission.lease_confirmations")

_MAX_BATCH = 256
_TIMEOUT_S = 3.0
"""How long a first token waits for a database that does not answer."""


class LeaseConfirmations:
    """Confirms decisions, all queued ones in one transaction. `timeout`: seconds, as `_TIMEOUT_S`."""

    def __init__(self, store: LeaseStore, holds: HookedHolds[LeaseRequest], timeout: float = _TIMEOUT_S) -> None:
        self._store = store
        self._holds = holds
        self._timeout = timeout
        self._batcher: MicroBatcher[Confirmation, bool] = MicroBatcher(self._store.confirm_all, _MAX_BATCH)

    @staticmethod
    def needed(prepared: PreparedRequest) -> bool:
        """Whether the decision of this request can still change."""
        return prepared.leases is not None and not is_certain(prepared.leases)

    async def refusal(self, prepared: PreparedRequest) -> NotCached | None:
        """Why a request that is to run only if it is cached must not be sent: the writer of what it reads has failed,
        or has no token yet, and nothing else that it could read is certain. Where the database does not answer, what
        was decided at admission is tried."""
        asked, decision = prepared.lease_request, prepared.leases
        if asked is None or not asked.only_if_cached or decision is None or decision.hit is None or decision.hit.firm:
            return None
        try:
            async with asyncio.timeout(self._timeout):
                return asked.refusal(await self._store.foresee(asked.wish, firm=True))
        except (TimeoutError, DatabaseUnavailable) as error:
            cause = f"{type(error).__name__}: {error}"
            log.warning("whether a prompt is cached is not known", request_id=str(prepared.request_id), cause=cause)
            return None

    async def confirm(
        self, prepared: PreparedRequest, hold: Hold, reach: int | None = None
    ) -> tuple[PreparedRequest, Hold]:
        """The request and its hold with what is promised for good. `reach`: tokens of the prompt that were computed,
        of a request that ends without output; None: all.

        Where the database does not answer, what was decided at admission is told: a request that runs ends well. Raises
        NotCached for a request that is to run only if it is cached.
        """
        assert prepared.leases is not None
        assert prepared.lease_request is not None
        try:
            async with asyncio.timeout(self._timeout):
                if await self._batcher.submit(Confirmation(prepared.leases, reach)):
                    return prepared, hold
                prepared.lease_request.reach = reach
                changed = await self._holds.decide_again(hold, prepared.lease_request)
        except (TimeoutError, DatabaseUnavailable, HoldEnded, BatcherClosed) as error:
            cause = f"{type(error).__name__}: {error}"
            log.warning("what leases promise is not confirmed", request_id=str(prepared.request_id), cause=cause)
            prepared.lease_request.told = True  # a decision that comes now must not change the hold that recovery bills
            return prepared, hold
        decision = prepared.lease_request.decision
        assert decision is not None
        shared = prepared.leases.collapsed and decision.hit is not None
        return replace(prepared, terms=unpack(changed.terms), leases=replace(decision, collapsed=shared)), changed

    async def close(self) -> None:
        """Finish what is being confirmed."""
        await self._batcher.close()
