"""Tells the leases how the requests ended that wrote them: a write that nobody pays for is no promise.

A lease stays if the request was billed for all of its tokens. One whose request failed before its first token, or never
ran, or ended before so many tokens were computed, ends: the next request writes it again. Who has read it meanwhile is
billed for a read, as he was told.

This is told beside the requests, and once. Should a gateway die before it, the worker finds out
(`turnpike.processes.lease_upkeep`).
"""

from __future__ import annotations

import asyncio
from uuid import UUID

import msgspec
import structlog

from billing.holds.records import Hold
from gateway.metering.billable_usage import unpack
from prompt_cache.promise.lease_decisions import written_tokens
from prompt_cache.promise.lease_store import LeaseStore
from storage.database.batcher import BatcherClosed, MicroBatcher

log = structlog.get_logger("gateway.metering.lease_outcomes")

_MAX_BATCH = 500


class LeaseOutcomes:
    """Collects how requests ended. Nobody waits for it."""

    def __init__(self, store: LeaseStore) -> None:
        self._store = store
        self._batcher: MicroBatcher[tuple[UUID, range], None] = MicroBatcher(self._settle, _MAX_BATCH)

    def ended(self, hold: Hold, prompt_tokens: int) -> None:
        """Note that a request ended, billed for so many tokens of its prompt; 0 if nothing was."""
        if hold.allowance is not None:
            return
        try:
            terms = unpack(hold.terms)
        except msgspec.MsgspecError:
            return
        if any(part.kind == "write" for part in terms.leases):
            try:
                told = self._batcher.submit((hold.request_id, written_tokens(terms.leases, prompt_tokens)))
            except BatcherClosed:
                return
            told.add_done_callback(_log_failure)

    async def close(self) -> None:
        """Tell what is noted."""
        await self._batcher.close()

    async def _settle(self, ends: list[tuple[UUID, range]]) -> list[Exception | None]:
        await self._store.settle_writes(dict(ends))
        return [None] * len(ends)


def _log_failure(told: asyncio.Future[None]) -> None:
    if not told.cancelled() and (error := told.exception()) is not None:
        log.warning("what became of leases is left to the worker", cause=f"{type(error).__name__}: {error}")
