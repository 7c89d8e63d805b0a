"""Where the KV of preempted requests is kept: a bounded second pool in host memory, beside the device's.

Copying a block out and back often costs less than computing its tokens again. Which it is follows from measured costs;
what a request forbids to leave the device, or what finds no room, is computed again.
"""

from __future__ import annotations

from engine.scheduling.request import Request
from engine.scheduling.step_costs import Rates
from engine.scheduling.step_work import Step
from prompt_cache.kv.block_pool import OutOfBlocks
from prompt_cache.kv.grouped_pool import Block, GroupedPool


class SwapSpace:
    """Blocks of `pool` lie in host memory; it has the groups of the device's pool. None: nothing is ever kept."""

    def __init__(self, pool: GroupedPool | None) -> None:
        self.pool = pool
        self.kept = 0
        """Preemptions after which the KV was kept."""
        self._read: list[Block] = []
        """Blocks that the last step copied back."""

    def settle(self) -> None:
        """The last step was done: what it copied back is free."""
        if self.pool is not None and self._read:
            self.pool.free(self._read)
            self._read = []

    def keep(self, request: Request, rates: Rates, step: Step) -> None:
        """A request is about to give its blocks up: copy its KV out if that is cheaper than computing it again."""
        tokens = request.kv
        blocks = request.table[: request.blocks_for(tokens)]
        # What may not be stored beyond the device (C5) is not kept here either.
        if self.pool is None or request.store != "all" or self.cost(blocks, rates) >= tokens * rates.uncached:
            return
        try:
            request.swapped = self.pool.mirror(blocks)
        except OutOfBlocks:
            return
        request.kept = tokens
        step.out += zip(blocks, request.swapped, strict=True)
        self.kept += 1

    def bring_back(self, request: Request, table: list[Block], found: int, step: Step) -> None:
        """Copy what was kept into the request's new blocks, but for the first `found`, which were in memory."""
        for index, kept in enumerate(request.swapped):
            if index >= found:
                step.back.append((kept, table[index]))
        self._read += request.swapped
        self._forget(request)

    def drop(self, request: Request) -> None:
        """The request ended."""
        if self.pool is not None and request.swapped:
            self.pool.free(request.swapped)
            self._forget(request)

    def cost(self, blocks: list[Block], rates: Rates) -> float:
        """µs to copy these blocks out and back."""
        return 2 * len(blocks) * rates.copied

    def check(self, waiting: list[Request]) -> None:
        """Raise AssertionError unless the pool is consistent and holds what these requests and the last step say."""
        if self.pool is not None:
            self.pool.check()
            held = [block for request in waiting for block in request.swapped] + self._read
            assert self.pool.referenced_blocks == sum(number >= 0 for block in held for number in block), "a leak"

    def _forget(self, request: Request) -> None:
        request.swapped = []
        request.kept = 0
