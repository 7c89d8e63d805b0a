"""A request's tokens and the prefix index: the blocks that it may read there, and those that it publishes.

A block is published when its last token has KV, unless the request says `no-store`; what may leave the device for
farther tiers is told to them at that moment. What is retained is told of blocks that are published or found.
"""

from __future__ import annotations

from engine.scheduling.farther_tiers import FartherTiers
from engine.scheduling.request import Request
from prompt_cache.kv.block_keys import BLOCK_TOKENS
from prompt_cache.kv.grouped_pool import Block, GroupedPool


class PrefixBlocks:
    """The blocks of requests in the index of the device's `pool`, and in the `tiers` behind it.

    `prompts_only`, set before there are requests: blocks that have tokens of the output are not published, since
    decoding computes KV otherwise than a prompt's pass (fast attention).
    """

    def __init__(self, pool: GroupedPool, tiers: FartherTiers) -> None:
        self.pool = pool
        self.tiers = tiers
        self.prompts_only = False

    # ------------------------------------------------------------ read

    def wanted(self, request: Request) -> list[bytes]:
        """The keys of the blocks that it may read. The last token is never read: its logits are needed."""
        if not request.read:
            return []
        blocks = (len(request.tokens) - 1) // BLOCK_TOKENS
        return request.extend_keys(blocks)[:blocks]

    def matched(self, request: Request) -> list[Block]:
        """The cached blocks of its longest known prefix."""
        return self.pool.find(self.wanted(request))

    def matched_tokens(self, request: Request) -> int:
        """About how many of its tokens have KV on the device: for comparing those that wait.

        Sought from where it ended last, so that it takes no time that grows with the prompt. Of a prompt's blocks the
        last are evicted first, so what lies before a cached block is taken to be cached.
        """
        if not request.read:
            return 0
        if self.pool.slides:
            return len(self.matched(request)) * BLOCK_TOKENS
        blocks = (len(request.tokens) - 1) // BLOCK_TOKENS
        keys, holds = request.extend_keys(blocks), self.pool.holds
        found = min(request.matched, blocks)
        while found < blocks and holds(keys[found]):
            found += 1
        while found and not holds(keys[found - 1]):
            found -= 1
        request.matched = found
        return found * BLOCK_TOKENS

    def cached_tokens(self, request: Request) -> int:
        """How many of its tokens have KV on the device, or in farther tiers behind that."""
        keys = self.wanted(request)
        found = len(self.pool.find(keys))
        found += self.tiers.restores.blocks_beyond(request, keys, found)
        return found * BLOCK_TOKENS

    def protect(self, request: Request) -> None:
        """The request waits: the blocks that it will read are evicted after all others."""
        self.pool.expect(self.wanted(request))

    def unprotect(self, request: Request) -> None:
        """The request waits no more."""
        self.pool.dismiss(self.wanted(request))

    def take_over(self, request: Request) -> bytes | None:
        """Use blocks that others have published meanwhile instead of the request's own, from the end of its KV on.

        Returns the key of the first block that nobody has published, None if all that it may read are there.
        """
        first = request.kv // BLOCK_TOKENS
        wanted = self.wanted(request)[first:]
        found = self.pool.find(wanted)
        if found:
            self.pool.share(found)
            own = request.table[first : first + len(found)]
            request.table[first : first + len(found)] = found
            self.pool.free(own)
            for _ in found:
                request.restored(None)
            request.published += len(found)
            self.retain(request, first, first + len(found))
        return None if len(found) == len(wanted) else wanted[len(found)]

    # ------------------------------------------------------------ publish

    def to_publish(self, request: Request, kv: int) -> int:
        """How many of its first blocks may be in the index once `kv` tokens have KV."""
        return (min(kv, request.prompt) if self.prompts_only else kv) // BLOCK_TOKENS

    def publish(self, request: Request, kv: int) -> None:
        """Publish the blocks that the first `kv` tokens fill, and free those that left the sliding window."""
        full = self.to_publish(request, kv)
        if full > request.published and request.store != "none":
            dram = self.tiers.dram
            guarded = dram.index is not None
            for index in range(request.published, full):
                key, scope = request.block_key_and_scope(index)
                if guarded:
                    dram.publishing(request, key)
                self.pool.publish(request.table, index, key, scope)
            self.retain(request, request.published, full)
            request.published = full
        if self.pool.slides:
            self.pool.slide(request.table, kv)

    def retain(self, request: Request, first: int, until: int) -> None:
        """The request has found the blocks from `first` to `until` on the device, or published them: tell the tiers for
        how long they are wanted. So who reads them renews the lease."""
        if not request.retain:
            return
        for tokens, end in request.retain:
            keys = request.keys[first : min(until, tokens // BLOCK_TOKENS)]
            if keys and end > self.tiers.now:
                self.pool.retain(keys, end)
        self.tiers.retained(request, first, until)
