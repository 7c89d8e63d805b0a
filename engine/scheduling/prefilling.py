"""Prefilling: the requests whose prompts are being computed, and the chunks of them that go into a step.

- A chunk ends at a block's or the prompt's end. The policy says whose chunk goes in next.
- Single flight: prompts that go on with the same block, and come together, are computed once. The others wait until
  that block is published and take it over.
- The front of a restoring prompt goes only as far as what comes from farther tiers is worth waiting for (`restoring`).
- In layer groups with a window blocks are allocated chunk by chunk, out of those promised at admission (`block_needs`).
"""

from __future__ import annotations

from collections.abc import Collection

from engine.scheduling.block_needs import BlockNeeds
from engine.scheduling.policy import Policy
from engine.scheduling.prefix_blocks import PrefixBlocks
from engine.scheduling.request import Request
from engine.scheduling.restoring import Restorer
from engine.scheduling.step_work import Prefill, Step, Work
from prompt_cache.kv.block_keys import BLOCK_TOKENS


class Prefilling:
    """The requests that have blocks and whose prompt's last token is not computed yet, in order of placement."""

    def __init__(self, needs: BlockNeeds, queue: Policy, blocks: PrefixBlocks, restores: Restorer) -> None:
        self.pool = needs.pool
        self.needs = needs
        self.queue = queue
        self.blocks = blocks
        self.restores = restores
        self.requests: dict[int, Request] = {}
        """placement -> request"""

    def begin(self, request: Request) -> None:
        """A request was placed."""
        self.requests[request.placement] = request

    def leave(self, request: Request) -> None:
        """A request gives its blocks back; its prompt may have been computed already."""
        self.requests.pop(request.placement, None)

    # ------------------------------------------------------------ what is left for others

    def spare(self, without: Collection[Request] = ()) -> list[int]:
        """Available blocks of each layer group, but for those promised to prompts; nothing is to `without`."""
        requests = self.requests.values()
        return self.needs.spare([other for other in requests if other not in without] if without else requests)

    def tokens_before(self, request: Request) -> int:
        """Prompt tokens that are computed before those of this waiting request."""
        if not self.requests:
            return 0
        left = len(request.tokens) - self.blocks.cached_tokens(request)
        before = self.queue.prefills_before(request, left, list(self.requests.values()))
        return sum(other.to_compute for other in before)

    # ------------------------------------------------------------ a step

    def fill(self, step: Step, room: int, now: float) -> None:
        """Fill the step with prompt chunks of `room` tokens at most."""
        pending = list(self.requests.values())
        left = room
        single_tokens: list[Work] = []
        chunks: list[Work] = []
        begun: set[bytes] = set()
        while pending:
            request = self.queue.next_prefill(pending)
            if request is None:
                break
            if not self._leads(request, begun):
                pending.remove(request)
                continue
            total = len(request.tokens)
            end = min(total, request.kv + min(left, self.needs.chunk))
            if request.restore is not None:
                end = min(end, self.restores.front_limit(request, now))
                if end <= request.kv:
                    pending.remove(request)
                    continue
            if end < total:
                end -= end % BLOCK_TOKENS
            if end <= request.kv:
                break
            self._allocate_window_blocks(request, len(request.table) if end == total else request.blocks_for(end), step)
            work = Prefill(request, request.kv, end - request.kv, samples=end == total)
            (single_tokens if work.count == 1 else chunks).append(work)
            left -= work.count
            pending.remove(request)
            self.queue.prefilled(request, work.count)
        step.work = [*step.work, *single_tokens, *chunks]

    def computed(self, work: Work, token: int | None, *, again: bool) -> bool:
        """Account for a computed chunk; whether it was the prompt's last, so that the request decodes from now on.

        `token`: what it sampled. `again`: its last token is computed again, as nothing was sampled.
        """
        request = work.request
        end = work.start + work.count - again
        request.count_computed(end)
        self.blocks.publish(request, end)
        if token is None:
            return False
        request.tokens.append(token)
        if request.restore is not None:
            self.restores.drop(request)
        del self.requests[request.placement]
        return True

    def _leads(self, request: Request, begun: set[bytes]) -> bool:
        """Whether a prompt's next block is this request's to compute.

        `begun`: keys of the blocks at which other prompts go on in this step; whoever waits for one of them takes it
        over when it is published, or computes it if nobody does any more.
        """
        if request.restore is not None or request.kv % BLOCK_TOKENS or self.pool.slides or request.store == "none":
            return True
        before = request.kv
        key = self.blocks.take_over(request)
        if request.kv > before:
            self.queue.restored(request)
        if key is None:
            return True
        leads = key not in begun
        begun.add(key)
        return leads

    def _allocate_window_blocks(self, request: Request, until: int, step: Step) -> None:
        """Allocate the next chunk's blocks in layer groups with a window, out of those promised at admission."""
        if until > request.blocks_laid:
            step.fresh += self.pool.allocate_window_blocks(request.table, request.blocks_laid, until, request.kv)
            request.blocks_laid = until
