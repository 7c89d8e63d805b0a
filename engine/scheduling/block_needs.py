"""How many blocks requests need of each layer group, so that whoever is admitted can compute its prompt to the end.

In groups without a window a request has its blocks from the beginning. In groups with one it takes them chunk by chunk,
and gives back what fell out of the window; so however long its prompt is, it never has more than what a window and a
chunk span. So much is *promised* to every request whose prompt is being computed, and what is promised and not yet
taken is given to nobody else. No prompt can then be stuck half way, whatever is shared:

    Σ spans of those that prefill + distinct blocks of all others ≤ the group's blocks

holds at admission and when a decoding request grows, and nothing else can break it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from engine.scheduling.request import Request
from prompt_cache.kv.block_keys import BLOCK_TOKENS
from prompt_cache.kv.grouped_pool import ABSENT, Block, GroupedPool, first_visible_block


class BlockNeeds:
    """`chunk`: how many tokens of one prompt may be computed at a time, `budget` or what the windows' groups can hold.

    `longest`: how many blocks a sequence may have in all; None where memory sets no bound.
    """

    def __init__(self, pool: GroupedPool, budget: int) -> None:
        self.pool = pool
        self.chunk = budget
        bounds = []
        for group, window, least in zip(pool.pools, pool.windows, pool.span(BLOCK_TOKENS), strict=True):
            if window and group.total >= least:
                self.chunk = min(self.chunk, (group.total - least + 1) * BLOCK_TOKENS)
            else:
                bounds.append(group.total)
        self.longest = min(bounds, default=None)
        self._spans = pool.span(self.chunk)

    def spare(self, prefills: Iterable[Request]) -> list[int]:
        """For each group, how many blocks there are that were not promised to these, whose prompts are computed."""
        left = [pool.available for pool in self.pool.pools]
        prefills = list(prefills)
        if prefills:
            for group, span in enumerate(self._spans):
                if span:
                    left[group] -= self._promised(group, prefills)
        return left

    def fit(self, request: Request, spare: Sequence[int], matched: Sequence[Block] = ()) -> bool:
        """Whether so many blocks are enough to admit the request; of `matched`, what others hold costs nothing."""
        for group, (need, left) in enumerate(zip(self._of(request), spare, strict=True)):
            if need > left:
                # A window moves on from what is shared, and needs blocks of its own then.
                if self._spans[group]:
                    return False
                pool = self.pool.pools[group]
                if need - sum(pool.references(block[group]) > 0 for block in matched) > left:
                    return False
        return True

    def freed(self, requests: Iterable[Request]) -> list[int]:
        """How many blocks of each group these would give back at most."""
        held = [0] * len(self._spans)
        for request in requests:
            for group, span in enumerate(self._spans):
                held[group] += sum(block[group] != ABSENT for block in request.table) if span else len(request.table)
        return held

    def _of(self, request: Request) -> list[int]:
        """For each group, how many blocks the request has at most until its prompt is computed."""
        blocks = request.blocks_for(len(request.tokens) + 1)
        return [min(blocks, span) if span else blocks for span in self._spans]

    def _promised(self, group: int, prefills: Sequence[Request]) -> int:
        needed = sum(self._of(request)[group] for request in prefills)
        window = self.pool.windows[group]
        held = Counter(
            block[group]
            for request in prefills
            for block in request.table[first_visible_block(request.kv, window) : request.laid]
        )
        # What a request beside these holds as well is not given back when the window has passed it.
        references = self.pool.pools[group].references
        return needed - sum(references(number) == times for number, times in held.items())
