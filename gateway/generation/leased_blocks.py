"""Remembers under which keys replicas have the KV of leases, so that ending a lease can take its KV away.

Replicas name blocks by another chain of keys than leases (`prompt_cache.promise.prefix_keys`), and a lease has no
tokens from which to make them later. They are made in a thread, after the request has ended, for the blocks between the
lease before and the lease's own end. Who reads a lease notes its blocks too, where nobody did under the model digest
and the scope of its replica: KV that was lost is computed there again, by another precision or after the project's data
key was destroyed. A lease that was purged while the request ran is purged then. Nobody waits for it; what a gateway
that dies did not note stays in the replicas until it is evicted.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from functools import partial
from uuid import UUID

import structlog

from gateway.admission.fair_threads import FairThreads
from gateway.admission.prepared_request import PreparedRequest
from gateway.recovery.background_tasks import BackgroundTasks
from prompt_cache.kv.block_keys import BLOCK_TOKENS, KEY_BYTES, chain, model_root
from prompt_cache.promise.cache_domains import CacheDomains
from prompt_cache.promise.lease_decisions import Lease
from prompt_cache.promise.lease_rows import LeaseBlockKeys, LeaseBlocks

log = structlog.get_logger("gateway.generation.leased_blocks")

_MOST_NOTED = 100_000


class LeasedBlocks:
    """Notes the blocks of what one gateway worker's requests write and read."""

    def __init__(
        self,
        store: LeaseBlockKeys,
        domains: CacheDomains,
        threads: FairThreads,
        purge: Callable[[str, str, tuple[bytes, ...]], None],
    ) -> None:
        self._store = store
        self._domains = domains
        self._threads = threads
        self._purge = purge
        self._tasks = BackgroundTasks()
        self._noted: OrderedDict[tuple[UUID, str, str], None] = OrderedDict()
        """Lease, scope and model digest of what was noted here, or is being noted, the latest last."""

    def note(self, prepared: PreparedRequest, model_digest: str, *, wrote: bool) -> None:
        """Note the blocks of what this request read, and `wrote`, at a replica of this digest."""
        if prepared.leases is None:
            return
        payer = prepared.payer
        scope = self._domains.project(payer.tenant_id, payer.project_id, prepared.generation.cache.partition).scope
        written = prepared.leases.written if wrote else ()
        hit = prepared.leases.hit
        if hit is not None and not self._is_new((hit.id, scope, model_digest)):
            hit = None
        for one in written:
            self._is_new((one.id, scope, model_digest))
        if hit is not None or written:
            self._tasks.start(self._note(prepared, model_digest, hit, written))

    async def stop(self) -> None:
        """Leave the rest."""
        await self._tasks.stop()

    def _is_new(self, noted: tuple[UUID, str, str]) -> bool:
        """Whether these blocks were not noted here lately; they are now."""
        if noted in self._noted:
            self._noted.move_to_end(noted)
            return False
        self._noted[noted] = None
        if len(self._noted) > _MOST_NOTED:
            self._noted.popitem(last=False)
        return True

    async def _note(
        self, prepared: PreparedRequest, model_digest: str, hit: Lease | None, written: Sequence[Lease]
    ) -> None:
        payer = prepared.payer
        segments, scopes = self._domains.prompt_segments(
            payer.tenant_id,
            payer.project_id,
            prepared.model.names,
            prepared.prompt.tokens,
            prepared.generation.cache.partition,
        )
        roots = {scope.scope: scope.root for scope in scopes}
        named = [(segment.until, roots[segment.scope]) for segment in segments]
        scope = segments[-1].scope
        shared = segments[-2].until if len(segments) > 1 else 0  # others have these blocks too
        assert prepared.leases is not None
        try:
            spans = [] if hit is None else await self._unnoted(hit, scope, model_digest)
            start = prepared.leases.read_tokens
            for one in written:
                spans.append((one.id, start, one.tokens))
                start = max(start, one.tokens)
            if not spans:
                return
            tokens = prepared.prompt.tokens[: max(end for _, _, end in spans)]
            keys = await self._threads.run(payer.tenant_id, partial(chain, model_root(model_digest), named, tokens))
            blocks = [
                LeaseBlocks(
                    id_, scope, model_digest, b"".join(keys[max(first, shared) // BLOCK_TOKENS : end // BLOCK_TOKENS])
                )
                for id_, first, end in spans
            ]
            purged = await self._store.note(blocks)
            for owned in blocks:
                if owned.lease_id in purged and owned.keys:
                    self._purge(
                        prepared.model.name,
                        owned.scope,
                        tuple(owned.keys[at : at + KEY_BYTES] for at in range(0, len(owned.keys), KEY_BYTES)),
                    )
        except Exception:
            for id_ in ([] if hit is None else [hit.id]) + [one.id for one in written]:
                self._noted.pop((id_, scope, model_digest), None)
            log.exception("the blocks of leases could not be noted", request_id=str(prepared.request_id))

    async def _unnoted(self, hit: Lease, scope: str, model_digest: str) -> list[tuple[UUID, int, int]]:
        """The lease that was read and those before it whose blocks nobody has noted, each with its tokens. One that is
        gone has those that it had: it may have been purged meanwhile."""
        spans = await self._store.spans(hit.id, scope, model_digest)
        if not spans:
            return [(hit.id, hit.tokens - hit.new_tokens, hit.tokens)]
        return [(span.lease_id, span.start, span.end) for span in spans if not span.noted]
