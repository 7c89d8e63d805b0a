"""The swap space: a bounded pool of blocks in host memory for the KV of preempted requests.

KV is swapped if measured costs say that copying it out and back is cheaper than recomputing it, the request allows its
KV to leave the device, and there is room. Otherwise it is recomputed.
"""

from __future__ import annotations

from engine.scheduling.request import Request
from engine.scheduling.step_costs import Rates
from engine.scheduling.step_work import Step
from prompt_cache.kv.block_pool import OutOfBlocks
from prompt_cache.kv.grouped_pool import Block, GroupedPool


class SwapSpace:
    """Swaps into `pool`, whose blocks lie in host memory, in the device pool's layer groups. None: no swapping."""

    def __init__(self, pool: GroupedPool | None) -> None:
        self.pool = pool
        self.kept = 0
        """How many preemptions kept the KV."""
        self._read: list[Block] = []
        """Blocks of the swap space that the last step copies back."""

    def release_copied(self) -> None:
        """The last step is done: free the blocks that it copied back."""
        if self.pool is not None and self._read:
            self.pool.free(self._read)
            self._read = []

    def keep(self, request: Request, rates: Rates, step: Step) -> None:
        """Copy the KV of a request that is about to be preempted out, if that is cheaper than recomputing it."""
        tokens = request.kv
        blocks = request.table[: request.blocks_for(tokens)]
        # KV that may not be stored beyond the device (C5) is not kept here either.
        if self.pool is None or request.store != "all" or self.cost(blocks, rates) >= tokens * rates.uncached:
            return
        try:
            request.swapped = self.pool.mirror(blocks)
        except OutOfBlocks:
            return
        request.swapped_tokens = tokens
        step.out += zip(blocks, request.swapped, strict=True)
        self.kept += 1

    def bring_back(self, request: Request, table: list[Block], found: int, step: Step) -> None:
        """Copy the swapped blocks into the request's new table, but for the first `found`, which were cached."""
        for index, swapped in enumerate(request.swapped):
            if index >= found:
                step.back.append((swapped, table[index]))
        self._read += request.swapped
        self._forget(request)

    def drop(self, request: Request) -> None:
        """Free the swapped blocks of a request that has ended."""
        if self.pool is not None and request.swapped:
            self.pool.free(request.swapped)
            self._forget(request)

    def cost(self, blocks: list[Block], rates: Rates) -> float:
        """µs to copy these blocks out and back."""
        return 2 * len(blocks) * rates.copied

    def check(self, waiting: list[Request]) -> None:
        """Raise AssertionError unless the pool holds exactly the swapped blocks of `waiting` and of the last step."""
        if self.pool is not None:
            self.pool.check()
            held = [block for request in waiting for block in request.swapped] + self._read
            assert self.pool.referenced_blocks == sum(number >= 0 for block in held for number in block), "a leak"

    def _forget(self, request: Request) -> None:
        request.swapped = []
        request.swapped_tokens = 0
