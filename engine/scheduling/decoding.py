"""Decoding: the requests whose prompts are computed.

Each is in the batch; or it waits for credit, or for the block that its next token needs. The latter may also keep its
row, as a block is asked for when the step begins. Only a decoding request can need another block, so that it is for
these alone that others give way.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

from engine.scheduling.decode_batch import DecodeBatch
from engine.scheduling.policy import Policy
from engine.scheduling.prefilling import Prefilling
from engine.scheduling.prefix_blocks import PrefixBlocks
from engine.scheduling.request import Request
from engine.scheduling.step_work import Step, Work
from prompt_cache.kv.block_keys import BLOCK_TOKENS
from prompt_cache.kv.grouped_pool import Block


class Decoding:
    """The decoding requests, of which `batch` has those that the next step computes."""

    def __init__(self, batch: DecodeBatch, queue: Policy, blocks: PrefixBlocks, prefilling: Prefilling) -> None:
        self.batch = batch
        self.queue = queue
        self.blocks = blocks
        self.prefilling = prefilling
        self.starved: dict[int, Request] = {}
        """arrival -> request whose next token needs a block."""
        self.paused: dict[int, Request] = {}
        """arrival -> request that is out of credit."""
        self.more_victims = False
        """Whether a request may be preempted now that might not when this was last set to False."""

    # ------------------------------------------------------------ requests in and out

    def begin(self, request: Request) -> None:
        """Let a request whose prompt is computed decode, or wait for credit or for a block."""
        if request.paused:
            self._pause(request)
        elif self._has_room(request):
            self.batch.join(request)
        else:
            self.starved[request.arrival] = request

    def credited(self, request: Request) -> None:
        """The request has credit: let it decode if it was waiting for that."""
        if self.paused.pop(request.arrival, None) is not None:
            self.begin(request)

    def leave(self, request: Request) -> None:
        """A request gives its blocks back; it may not have been decoding."""
        if request.slot >= 0:
            self.batch.leave(request)
        self.starved.pop(request.arrival, None)
        self.paused.pop(request.arrival, None)

    # ------------------------------------------------------------ a step

    def grow(self, step: Step, free_block: Callable[[Request, Step], bool]) -> None:
        """Give each starved request a block, the oldest first.

        `free_block`: preempts where none is left; False if none can be freed or that request itself was preempted.
        """
        pool = self.blocks.pool
        if min(self.prefilling.spare()) >= len(self.starved):
            starved, self.starved = self.starved.values(), {}
            self._extend(starved, pool.allocate(len(starved)), step)
            return
        for request in sorted(self.starved.values(), key=lambda request: request.arrival):
            if request.table and free_block(request, step):
                self._extend([request], pool.allocate(1), step)
                del self.starved[request.arrival]
            elif request.slot >= 0:
                self.batch.leave(request)

    def computed(
        self,
        works: Sequence[Work],
        tokens: Sequence[int | None],
        put_off: Collection[int],
        accepted: Mapping[int, Sequence[int]],
    ) -> list[Request]:
        """Append the tokens that the batch sampled. Requests that filled a block or spent their credit are dealt with.

        Returns those of `put_off` (arrivals): they sampled nothing and have left the batch, to `begin` again.
        """
        delayed: list[Request] = []
        if put_off:
            delayed = [work.request for work in works if work.request.arrival in put_off]
            sampled = [entry for entry in zip(works, tokens, strict=True) if entry[0].request.arrival not in put_off]
            works, tokens = [work for work, _ in sampled], [token for _, token in sampled]
            for request in delayed:
                self.batch.leave(request)
        self._attend(self.batch.advance(works, tokens, accepted))  # type: ignore[arg-type]  # a decode samples
        return delayed

    def _attend(self, due: Sequence[Request]) -> None:
        """Handle requests that have filled a block, spent their credit, or repaid their preemption debt."""
        for request in due:
            length = request.tokens.flush()
            self.blocks.publish(request, length - 1)
            if not request.debt_repaid and request.has_recovered:
                self.more_victims = True
            if length - request.prompt >= request.credit:
                self.batch.leave(request)
                self._pause(request)
            elif len(request.table) * BLOCK_TOKENS >= length:
                self.batch.plan(request, length)
            else:
                self.starved[request.arrival] = request

    def _extend(self, requests: Collection[Request], blocks: Sequence[Block], step: Step) -> None:
        """Append one block to each request, which then decodes."""
        step.fresh += blocks
        self.queue.grown(requests)
        for request, block in zip(requests, blocks, strict=True):
            table = request.table
            table.append(block)
            request.blocks_laid += 1
            if request.slot >= 0:
                # All its blocks are full, and one token has none.
                self.batch.plan(request, (len(table) - 1) * BLOCK_TOKENS + 1)
            else:
                self.batch.join(request)

    def _pause(self, request: Request) -> None:
        self.paused[request.arrival] = request
        self.more_victims = True

    def _has_room(self, request: Request) -> bool:
        return len(request.table) * BLOCK_TOKENS >= len(request.tokens)

    def check(self) -> list[int]:
        """Raise AssertionError unless each request is where it belongs. Returns all arrivals, once for each place."""
        for slot, work in enumerate(self.batch.decodes):
            request = work.request
            assert request.slot == slot, "a request has another slot"
            assert not request.paused, "a request decodes out of credit"
            assert self._has_room(request) or request.arrival in self.starved, "a request decodes without room"
            known = self.blocks.to_publish(request, request.kv) <= request.published <= request.kv // BLOCK_TOKENS
            assert known or request.store == "none", "a full block is hidden"
        for request in self.starved.values():
            assert len(request.tokens) == len(request.table) * BLOCK_TOKENS + 1, "it wants more than one block, or none"
        assert all(request.paused for request in self.paused.values()), "a request is paused in spite of its credit"
        without_row = [arrival for arrival, request in self.starved.items() if request.slot < 0]
        return [work.request.arrival for work in self.batch.decodes] + list(self.paused) + without_row
