"""The block pools of all layer groups of a model as one: a block is a tuple of its numbers in the groups' pools.

Layers with full attention need every block of a sequence, layers with a sliding window only those in the window. So a
group's part of a block may be `ABSENT`: not computed yet (`allocate_window_blocks`), freed when it left the window
(`slide`), or not needed of a cached prefix (`find`). All groups use the same keys, each in a pool of its own, for which
C1 and C4 hold.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TypeAlias

from prompt_cache.kv.block_keys import BLOCK_TOKENS
from prompt_cache.kv.block_pool import BlockPool, OutOfBlocks
from prompt_cache.placement.hit_density import HitDensity

ABSENT = -1
MOST_SHARES = 10_000
"""How many scopes may have a reserve or a limit; beyond, those set first lose theirs."""
Block: TypeAlias = tuple[int, ...]
"""The block's number in each group's pool, or ABSENT."""


class GroupedPool:
    """A pool for each group.

    `groups`: (number of blocks, window in tokens or 0) of each. `on_free`: called with (group, block) when a block
    becomes free, so that its memory can be overwritten; `on_take`: with (group, blocks) before free blocks are used
    again. `block_bytes`: of a block in each group, for shares.
    `attention_tokens`: how deep in a prompt a token costs twice the first one's computation, None for the same cost
    everywhere. Raises ValueError without groups.
    """

    def __init__(
        self,
        groups: Sequence[tuple[int, int]],
        on_free: Callable[[int, int], None] | None = None,
        *,
        on_take: Callable[[int, Sequence[int]], None] | None = None,
        block_bytes: Sequence[int] = (),
        attention_tokens: float | None = None,
    ) -> None:
        if not groups:
            raise ValueError("a model without layer groups")
        self.pools = tuple(
            BlockPool(
                total,
                None if on_free is None else partial(on_free, group),
                HitDensity(total, BLOCK_TOKENS, attention_tokens),
                on_take=None if on_take is None else partial(on_take, group),
            )
            for group, (total, _) in enumerate(groups)
        )
        self.windows = tuple(window for _, window in groups)
        self._block_bytes = tuple(block_bytes)
        self._shares: dict[str, tuple[int, int]] = {}
        """scope -> (reserve, limit) in bytes, those set last at the end"""
        self._slides = [(group, window) for group, window in enumerate(self.windows) if window]
        self.slides = bool(self._slides)
        """Whether any group has a window."""
        self._single = len(self.pools) == 1 and not self.slides

    def watch_evictions(self, on_evict: Callable[[int, int, bytes, str], None]) -> None:
        """Call `on_evict` with (group, block, key, scope) before a published block loses its key to another use."""
        for group, pool in enumerate(self.pools):
            pool.on_evict = partial(on_evict, group)

    # ------------------------------------------------------------ counts

    @property
    def available(self) -> int:
        """How many blocks `allocate` can return."""
        return min([pool.available for pool in self.pools])

    def span(self, tokens: int) -> list[int]:
        """For each group, the most blocks that a sequence holds while up to `tokens` tokens are computed at a time.

        0 for a group without a window, which has no bound. Includes the block of the token that is sampled next.
        """
        return [(tokens + window - 1) // BLOCK_TOKENS + 2 if window else 0 for window in self.windows]

    @property
    def free_blocks(self) -> int:
        """Blocks whose content is meaningless, of all groups together."""
        return sum(pool.free_blocks for pool in self.pools)

    @property
    def cached_blocks(self) -> int:
        """Blocks in no table that can be found under their key, of all groups together."""
        return sum(pool.cached_blocks for pool in self.pools)

    @property
    def referenced_blocks(self) -> int:
        """Blocks in at least one table, of all groups together."""
        return sum(pool.referenced_blocks for pool in self.pools)

    @property
    def evictions(self) -> int:
        """Blocks that lost their key for another use, of all groups together."""
        return sum(pool.evictions for pool in self.pools)

    # ------------------------------------------------------------ blocks in and out

    def allocate(self, count: int) -> list[Block]:
        """Take `count` blocks in every group. Raises OutOfBlocks without taking any."""
        for pool in self.pools:
            if count > pool.available:
                raise OutOfBlocks(f"{count} blocks requested, {self.available} available")
        return list(zip(*[pool.allocate(count) for pool in self.pools], strict=True))

    def begin(self, count: int) -> list[Block]:
        """Take `count` blocks in the groups without a window; the parts of other groups are ABSENT at first.

        Raises OutOfBlocks without taking any.
        """
        whole = [pool for pool, window in zip(self.pools, self.windows, strict=True) if not window]
        if any(count > pool.available for pool in whole):
            raise OutOfBlocks(f"{count} blocks requested, {min(pool.available for pool in whole)} available")
        columns = [
            [ABSENT] * count if window else pool.allocate(count)
            for pool, window in zip(self.pools, self.windows, strict=True)
        ]
        return list(zip(*columns, strict=True))

    def allocate_window_blocks(self, table: list[Block], first: int, until: int, position: int) -> list[Block]:
        """Allocate the table's blocks `first`..`until` in the groups with windows, as far as tokens from `position` on
        see them. Returns what was allocated, as blocks whose other parts are ABSENT. Raises OutOfBlocks.
        """
        allocated: list[Block] = []
        for group, window in self._slides:
            start = max(first, first_visible_block(position, window))
            numbers = self.pools[group].allocate(max(0, until - start))
            for index, number in enumerate(numbers, start):
                table[index] = (*table[index][:group], number, *table[index][group + 1 :])
            before, after = (ABSENT,) * group, (ABSENT,) * (len(self.pools) - group - 1)
            allocated += [(*before, number, *after) for number in numbers]
        return allocated

    def mirror(self, blocks: Sequence[Block]) -> list[Block]:
        """Take a block for each of these blocks of another pool, in the same groups, none out of a reserve.

        Raises OutOfBlocks without taking any.
        """
        taken = self._allocate_spare([len(numbers) for _, numbers in self._columns(blocks)], "")
        columns = [iter(numbers) for numbers in taken]
        return [
            tuple([ABSENT if number == ABSENT else next(own) for own, number in zip(columns, block, strict=True)])
            for block in blocks
        ]

    def allocate_spare(self, scope: str) -> Block:
        """Take a block in every group, none out of the reserve of another scope. Raises OutOfBlocks."""
        return tuple(numbers[0] for numbers in self._allocate_spare([1] * len(self.pools), scope))

    def _allocate_spare(self, counts: Sequence[int], scope: str) -> list[list[int]]:
        """As many blocks as asked for in each group, or none at all."""
        taken: list[list[int]] = []
        try:
            for pool, count in zip(self.pools, counts, strict=True):
                taken.append(pool.allocate_spare(count, scope))
        except OutOfBlocks:
            for pool, numbers in zip(self.pools, taken, strict=False):
                pool.free(numbers)
            raise
        return taken

    def free(self, blocks: Sequence[Block]) -> None:
        """Drop one reference of each block in each group that has it."""
        for pool, numbers in self._columns(blocks):
            pool.free(numbers)

    def share(self, blocks: Sequence[Block]) -> None:
        """Take one more reference of each block in each group that has it."""
        for pool, numbers in self._columns(blocks):
            pool.share(numbers)

    def slide(self, table: list[Block], position: int) -> None:
        """Free the blocks that no token from `position` on sees; their parts of the table become ABSENT."""
        for group, window in self._slides:
            unseen = []
            index = min(first_visible_block(position, window), len(table)) - 1
            # All parts before an absent one are absent.
            while index >= 0 and table[index][group] != ABSENT:
                unseen.append(table[index][group])
                table[index] = (*table[index][:group], ABSENT, *table[index][group + 1 :])
                index -= 1
            self.pools[group].free(unseen[::-1])

    # ------------------------------------------------------------ the index

    def find(self, keys: Iterable[bytes]) -> list[Block]:
        """The blocks of the longest prefix of these keys after which every group can continue. Takes no references.

        A group with a window needs only those blocks that tokens after the prefix see.
        """
        keys = list(keys)
        columns: dict[int, list[int]] = {}
        length = len(keys)
        for group, pool in enumerate(self.pools):
            if not self.windows[group]:
                columns[group] = pool.find(keys[:length])
                length = len(columns[group])
        length = self._reach(keys, length)
        for group, window in self._slides:
            first = min(first_visible_block(length * BLOCK_TOKENS, window), length)
            columns[group] = [ABSENT] * first + self.pools[group].find(keys[first:length])
        return list(zip(*(columns[group][:length] for group in range(len(self.pools))), strict=True))

    def holds(self, key: bytes) -> bool:
        """Whether every group has a block with this key in its index."""
        return self.pools[0].holds(key) if self._single else all(pool.holds(key) for pool in self.pools)

    def _reach(self, keys: Sequence[bytes], length: int) -> int:
        """The longest prefix of at most `length` blocks whose last window is cached in all groups with windows."""
        while length:
            gaps = [
                index
                for group, window in self._slides
                for index in range(min(first_visible_block(length * BLOCK_TOKENS, window), length), length)
                if not self.pools[group].holds(keys[index])
            ]
            if not gaps:
                break
            # Every prefix that reaches beyond the gap needs the missing block.
            length = min(gaps)
        return length

    def publish(self, table: list[Block], index: int, key: bytes, scope: str = "") -> None:
        """Publish a table's written block in each group that has it. An equal block that was published before replaces
        it in the table."""
        if self._single:
            [number] = table[index]
            known = self.pools[0].publish(number, key, scope, table[index - 1][0] if index else ABSENT)
            if known != number:
                table[index] = (known,)
            return
        before = table[index - 1] if index else None
        for group, number in enumerate(table[index]):
            if number != ABSENT:
                # Where a window has moved on, what is left of a prefix is of use without its beginning.
                parent = ABSENT if before is None or self.windows[group] else before[group]
                known = self.pools[group].publish(number, key, scope, parent)
                if known != number:
                    table[index] = (*table[index][:group], known, *table[index][group + 1 :])

    def expect(self, keys: Sequence[bytes]) -> None:
        """A waiting request will look for these keys: evict their blocks after all others."""
        for pool in self.pools:
            pool.expect(keys)

    def dismiss(self, keys: Sequence[bytes]) -> None:
        """A request that was expected to look for these keys no longer waits."""
        for pool in self.pools:
            pool.dismiss(keys)

    def retain(self, keys: Sequence[bytes], until: float) -> None:
        """A lease on the blocks of these keys lasts until then, in the seconds of `expire`: they are worth more."""
        for pool in self.pools:
            pool.retain(keys, until)

    @property
    def leases(self) -> tuple[int, float]:
        """How many blocks are under a live lease, in the layer group that has most, and when the last of these ends."""
        return max(pool.leases for pool in self.pools)

    def expire(self, now: float) -> None:
        """It is `now`: leases that have ended no longer count."""
        for pool in self.pools:
            pool.expire(now)

    def set_share(self, scope: str, share: tuple[int, int] | None) -> None:
        """Bytes that others do not evict of a scope, and bytes that it may hold at most; None for neither.

        Each group gets its part by the memory that it has. Without `block_bytes` nothing happens.
        """
        if self._shares.get(scope) == share or not self._block_bytes:
            return
        if share is None:
            del self._shares[scope]
        else:
            self._shares[scope] = share
        memory = [size * pool.total for size, pool in zip(self._block_bytes, self.pools, strict=True)]
        for size, own, pool in zip(self._block_bytes, memory, self.pools, strict=True):
            part = own / sum(memory) / size
            reserve, limit = (0, None) if share is None else (int(share[0] * part), int(share[1] * part))
            pool.set_share(scope, reserve, limit)
        if len(self._shares) > MOST_SHARES:
            self.set_share(next(iter(self._shares)), None)

    def purge(self, keys: Iterable[bytes]) -> int:
        """Remove these keys from the index of every group; returns how many blocks were in it."""
        keys = list(keys)
        return sum(pool.purge(keys) for pool in self.pools)

    def forget(self, scope: str) -> int:
        """Purge all blocks that were published in this scope; returns how many."""
        forgotten = sum(pool.forget(scope) for pool in self.pools)
        self.set_share(scope, None)
        return forgotten

    def check(self) -> None:
        """Raise AssertionError unless each group's pool is consistent (C4)."""
        for pool in self.pools:
            pool.check()

    # ------------------------------------------------------------ inside

    def _columns(self, blocks: Sequence[Block]) -> Iterable[tuple[BlockPool, list[int]]]:
        for group, pool in enumerate(self.pools):
            yield pool, [block[group] for block in blocks if block[group] != ABSENT]


def first_visible_block(position: int, window: int) -> int:
    """The first block that the token at `position` sees: a token sees itself and the `window` − 1 before it."""
    return max(0, position - window + 1) // BLOCK_TOKENS
