"""Remembers under which keys replicas have the KV of leases, so that ending a lease can take its KV away.

Replicas name blocks by another chain of keys than leases (`prompt_cache.promise.prefix_keys`), and a lease has no
tokens from which to make them later. They are made in a thread, after the request has ended, for the blocks between the
lease before and the lease's own end. A lease that was purged while its
writer ran is purged then. Nobody waits for it; what a gateway that dies did not note stays in the replicas
until it is evicted.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import structlog

from gateway.admission.admission import PreparedRequest
from gateway.admission.fair_threads import FairThreads
from gateway.recovery.background_tasks import BackgroundTasks
from prompt_cache.kv.block_keys import BLOCK_TOKENS, KEY_BYTES, chain, model_root
from prompt_cache.promise.cache_domains import CacheDomains
from prompt_cache.promise.lease_store import LeaseBlocks, LeaseStore

log = structlog.get_logger("gateway.generation.leased_blocks")


class LeasedBlocks:
    """Notes the blocks of one gateway worker's writes."""

    def __init__(
        self,
        store: LeaseStore,
        domains: CacheDomains,
        threads: FairThreads,
        purge: Callable[[str, str, tuple[bytes, ...]], None],
    ) -> None:
        self._store = store
        self._domains = domains
        self._threads = threads
        self._purge = purge
        self._tasks = BackgroundTasks()

    def note(self, prepared: PreparedRequest, model_digest: str) -> None:
        """Note the blocks of what this request wrote at a replica of this digest."""
        if prepared.leases is not None and prepared.leases.written:
            self._tasks.start(self._note(prepared, model_digest))

    async def stop(self) -> None:
        """Leave the rest."""
        await self._tasks.stop()

    async def _note(self, prepared: PreparedRequest, model_digest: str) -> None:
        payer = prepared.payer
        segments, scopes = self._domains.prompt_segments(
            payer.tenant_id,
            payer.project_id,
            prepared.model.names,
            prepared.prompt.tokens,
            prepared.generation.cache.partition,
        )
        roots = {scope.scope: scope.root for scope in scopes}
        assert prepared.leases is not None
        written = prepared.leases.written
        tokens = prepared.prompt.tokens[: written[-1].tokens]
        named = [(segment.until, roots[segment.scope]) for segment in segments]
        try:
            keys = await self._threads.run(payer.tenant_id, partial(chain, model_root(model_digest), named, tokens))
            blocks: list[LeaseBlocks] = []
            shared = segments[-2].until if len(segments) > 1 else 0  # others have these blocks too
            start = max(prepared.leases.read_tokens, shared) // BLOCK_TOKENS
            for one in written:
                end = one.tokens // BLOCK_TOKENS
                blocks.append(LeaseBlocks(one.id, segments[-1].scope, b"".join(keys[start:end])))
                start = max(start, end)
            purged = await self._store.name_blocks(blocks)
            for owned in blocks:
                if owned.lease_id in purged and owned.keys:
                    self._purge(
                        prepared.model.name,
                        owned.scope,
                        tuple(owned.keys[at : at + KEY_BYTES] for at in range(0, len(owned.keys), KEY_BYTES)),
                    )
        except Exception:
            log.exception("the blocks of leases could not be noted", request_id=str(prepared.request_id))
