"""The block pools of all layer groups of a model behind one: a block is a tuple with its number in each group's pool.

Layers that attend to everything need every block of a sequence; layers with a sliding window only those that the
window still reaches. So a group's part of a block may be `ABSENT`: its tokens are not computed yet (`lay`), it fell out
of the window and was given back (`slide`), or a prefix was found of which only the window's last blocks are needed
(`find`). All groups use the same keys, each in its own pool of blocks of its own size (C1 and C4 hold for each).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TypeAlias

from prompt_cache.kv.block_keys import BLOCK_TOKENS
from prompt_cache.kv.block_pool import BlockPool, OutOfBlocks

ABSENT = -1
Block: TypeAlias = tuple[int, ...]
"""The number of a block in each group's pool, or ABSENT."""


class GroupedPool:
    """One pool for each (total, window): blocks of the group, and its window in tokens, 0 for no window.

    `on_free` is called with (group, block) when a block becomes free, so that tests can poison its memory.
    """

    def __init__(self, groups: Sequence[tuple[int, int]], on_free: Callable[[int, int], None] | None = None) -> None:
        if not groups:
            raise ValueError("a model without layer groups")
        self.pools = tuple(
            BlockPool(total, None if on_free is None else self._telling(on_free, group))
            for group, (total, _) in enumerate(groups)
        )
        self.windows = tuple(window for _, window in groups)
        self._slides = [(group, window) for group, window in enumerate(self.windows) if window]
        self.slides = bool(self._slides)
        """Whether any group has a window, so that `slide` gives something back."""

    @staticmethod
    def _telling(on_free: Callable[[int, int], None], group: int) -> Callable[[int], None]:
        return lambda block: on_free(group, block)

    # ------------------------------------------------------------ figures

    @property
    def available(self) -> int:
        """How many blocks `allocate` can give."""
        return min([pool.available for pool in self.pools])

    def span(self, tokens: int) -> list[int]:
        """For each group, how many blocks a sequence has at most while up to so many tokens are computed at a time.

        0 where there is no window, and so no bound. The block of the token that is sampled after them is among them.
        """
        return [(tokens + window - 1) // BLOCK_TOKENS + 2 if window else 0 for window in self.windows]

    @property
    def free_blocks(self) -> int:
        """Blocks whose content means nothing, of all groups together."""
        return sum(pool.free_blocks for pool in self.pools)

    @property
    def cached_blocks(self) -> int:
        """Blocks in no table that can still be found under their key, of all groups together."""
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
        """Take `count` blocks in every group. Raises OutOfBlocks, and then took none."""
        for pool in self.pools:
            if count > pool.available:
                raise OutOfBlocks(f"{count} blocks asked for, {self.available} available")
        return list(zip(*[pool.allocate(count) for pool in self.pools], strict=True))

    def begin(self, count: int) -> list[Block]:
        """Take `count` blocks in the groups without a window; the others' parts are ABSENT until they are laid.

        Raises OutOfBlocks, and then took none.
        """
        whole = [pool for pool, window in zip(self.pools, self.windows, strict=True) if not window]
        if any(count > pool.available for pool in whole):
            raise OutOfBlocks(f"{count} blocks asked for, {min(pool.available for pool in whole)} available")
        columns = [
            [ABSENT] * count if window else pool.allocate(count)
            for pool, window in zip(self.pools, self.windows, strict=True)
        ]
        return list(zip(*columns, strict=True))

    def lay(self, table: list[Block], first: int, until: int, position: int) -> list[Block]:
        """Take the parts of the blocks `first`..`until` in the groups with windows, where tokens from `position` on see
        them. Returns what was taken, as blocks whose other parts are ABSENT. Raises OutOfBlocks.
        """
        laid: list[Block] = []
        for group, window in self._slides:
            start = max(first, first_visible_block(position, window))
            numbers = self.pools[group].allocate(max(0, until - start))
            for index, number in enumerate(numbers, start):
                table[index] = (*table[index][:group], number, *table[index][group + 1 :])
            before, after = (ABSENT,) * group, (ABSENT,) * (len(self.pools) - group - 1)
            laid += [(*before, number, *after) for number in numbers]
        return laid

    def mirror(self, blocks: Sequence[Block]) -> list[Block]:
        """Take a block for each of these, of another pool, in the groups that have it. OutOfBlocks: took none."""
        counts = [len(numbers) for _, numbers in self._columns(blocks)]
        if any(count > pool.available for pool, count in zip(self.pools, counts, strict=True)):
            raise OutOfBlocks(f"{max(counts)} blocks asked for, {self.available} available")
        taken = [iter(pool.allocate(count)) for pool, count in zip(self.pools, counts, strict=True)]
        return [
            tuple([ABSENT if number == ABSENT else next(own) for own, number in zip(taken, block, strict=True)])
            for block in blocks
        ]

    def free(self, blocks: Sequence[Block]) -> None:
        """Drop one reference of each block in each group that has it."""
        for pool, numbers in self._columns(blocks):
            pool.free(numbers)

    def share(self, blocks: Sequence[Block]) -> None:
        """Take one more reference of each block in each group that has it."""
        for pool, numbers in self._columns(blocks):
            pool.share(numbers)

    def slide(self, table: list[Block], position: int) -> None:
        """Give back what no token from `position` on can see any more; those parts of the table become ABSENT."""
        for group, window in self._slides:
            gone = []
            index = min(first_visible_block(position, window), len(table)) - 1
            # What lies before an absent part is absent too.
            while index >= 0 and table[index][group] != ABSENT:
                gone.append(table[index][group])
                table[index] = (*table[index][:group], ABSENT, *table[index][group + 1 :])
                index -= 1
            self.pools[group].free(gone[::-1])

    # ------------------------------------------------------------ the index

    def find(self, keys: Iterable[bytes]) -> list[Block]:
        """The blocks of the longest prefix of these keys that every group can go on from. Takes no reference.

        A group with a window only needs those blocks that the token after the prefix, or a later one, can see.
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

    def _reach(self, keys: Sequence[bytes], length: int) -> int:
        """The longest prefix up to `length` whose last window is there in all groups with windows."""
        while length:
            gaps = [
                index
                for group, window in self._slides
                for index in range(min(first_visible_block(length * BLOCK_TOKENS, window), length), length)
                if not self.pools[group].holds(keys[index])
            ]
            if not gaps:
                break
            # Every prefix that is longer than the gap needs the missing block as well.
            length = min(gaps)
        return length

    def publish(self, table: list[Block], index: int, key: bytes, scope: str = "") -> None:
        """Let a table's written block be found under `key` in each group that has it. Where an equal block was there
        before, the table has that one from now on."""
        for group, number in enumerate(table[index]):
            if number != ABSENT:
                known = self.pools[group].publish(number, key, scope)
                if known != number:
                    table[index] = (*table[index][:group], known, *table[index][group + 1 :])

    def expect(self, keys: Sequence[bytes]) -> None:
        """Somebody waits who will look for these keys: what is there under them is evicted after all else."""
        for pool in self.pools:
            pool.expect(keys)

    def dismiss(self, keys: Sequence[bytes]) -> None:
        """Whoever was expected to look for these keys does not wait any more."""
        for pool in self.pools:
            pool.dismiss(keys)

    def purge(self, keys: Iterable[bytes]) -> int:
        """Make these keys unfindable in every group; returns how many blocks were."""
        keys = list(keys)
        return sum(pool.purge(keys) for pool in self.pools)

    def forget(self, scope: str) -> int:
        """Purge all that was published in this scope; returns how many blocks."""
        return sum(pool.forget(scope) for pool in self.pools)

    def check(self) -> None:
        """Raise AssertionError unless each group's pool is consistent (C4)."""
        for pool in self.pools:
            pool.check()

    # ------------------------------------------------------------ inside

    def _columns(self, blocks: Sequence[Block]) -> Iterable[tuple[BlockPool, list[int]]]:
        for group, pool in enumerate(self.pools):
            yield pool, [block[group] for block in blocks if block[group] != ABSENT]


def first_visible_block(position: int, window: int) -> int:
    """The first block that the token at `position` sees; a token sees itself and the `window` − 1 before it."""
    return max(0, position - window + 1) // BLOCK_TOKENS
