"""How many KV blocks of each layer group a request needs, so that an admitted prompt can always be computed to its end.

In a group without a window a request gets all its blocks at admission. In a group with a sliding window it allocates
them chunk by chunk and frees those that left the window, so it never holds more than the *span* of a window and a
chunk. That span is promised to each request whose prompt is being computed; promised blocks are given to nobody else.
The invariant, for each group with a window, holds at admission and whenever a decoding request grows:

    Σ spans of prefilling requests + distinct blocks of all other requests ≤ blocks of the group
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeAlias

from engine.scheduling.request import Request
from prompt_cache.kv.block_keys import BLOCK_TOKENS
from prompt_cache.kv.grouped_pool import ABSENT, Block, GroupedPool, first_visible_block

References: TypeAlias = Sequence[Mapping[int, int]]
"""How often each block of each group is referenced."""


class BlockNeeds:
    """Answers whether requests fit into the pool.

    `chunk`: how many tokens of one prompt may be computed at a time: `budget`, or what groups with windows can hold.
    `longest`: how many blocks a sequence may have; None where memory sets no bound.
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
        """Available blocks of each group, without those promised to the prefilling requests."""
        left = [pool.available for pool in self.pool.pools]
        prefills = list(prefills)
        if prefills:
            for group, span in enumerate(self._spans):
                if span:
                    left[group] -= self._promised(group, prefills)
        return left

    def fit(
        self, request: Request, spare: Sequence[int], matched: Sequence[Block] = (), given_up: References = ()
    ) -> bool:
        """Whether `spare` blocks of each group are enough to admit the request.

        `matched`: its cached blocks; those that are referenced by others cost nothing. `given_up`: references that do
        not count, by group.
        """
        for group, (need, left) in enumerate(zip(self._of(request), spare, strict=True)):
            if need > left:
                # A window moves on from the shared blocks and then needs blocks of its own.
                if self._spans[group]:
                    return False
                pool, fewer = self.pool.pools[group], given_up[group] if given_up else {}
                if need - sum(pool.references(block[group]) > fewer.get(block[group], 0) for block in matched) > left:
                    return False
        return True

    def references_of(self, requests: Iterable[Request]) -> References:
        """How often these requests reference each block of each group."""
        tables = [request.table for request in requests]
        return [
            Counter(block[group] for table in tables for block in table if block[group] != ABSENT)
            for group in range(len(self._spans))
        ]

    def freed(self, given_up: References) -> list[int]:
        """The blocks of each group that nobody references without these references."""
        return [
            sum(pool.references(block) == times for block, times in counts.items())
            for pool, counts in zip(self.pool.pools, given_up, strict=True)
        ]

    def freed_at_most(self, requests: Iterable[Request]) -> list[int]:
        """An upper bound of the blocks of each group that these requests would free: it looks at no block."""
        held = [0] * len(self._spans)
        for request in requests:
            for group, span in enumerate(self._spans):
                held[group] += sum(block[group] != ABSENT for block in request.table) if span else len(request.table)
        return held

    def _of(self, request: Request) -> list[int]:
        """For each group, the most blocks that the request holds until its prompt is computed."""
        blocks = request.blocks_for(len(request.tokens) + 1)
        return [min(blocks, span) if span else blocks for span in self._spans]

    def _promised(self, group: int, prefills: Sequence[Request]) -> int:
        needed = sum(self._of(request)[group] for request in prefills)
        window = self.pool.windows[group]
        held = Counter(
            block[group]
            for request in prefills
            for block in request.table[first_visible_block(request.kv, window) : request.blocks_laid]
        )
        # A block that another request references too is not freed when it leaves the window.
        references = self.pool.pools[group].references
        return needed - sum(references(number) == times for number, times in held.items())
