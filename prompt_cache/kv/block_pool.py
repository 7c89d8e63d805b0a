"""The block pool and its index: allocate, share, publish, free.

A pool knows block numbers only, never the memory behind them. Each block is in exactly one of three states: *free* (its
content means nothing), *referenced* (in one or more block tables) or *cached* (in no table, but still found under its
key). The free list is the cache: a block that was published keeps its key when its last reference goes, and is only
taken for another use when no free block is left, the least recently used first (C4). Those that somebody who waits
will look for are taken after all others: that they will be used is known, and of the others it is only likely.

A block is found only under the very key it was published with, and keys are made of the scope's secret root, so whoever
does not know the root cannot find it (C1). Every operation is O(1) per block.
"""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterable, Sequence


class OutOfBlocks(Exception):
    """More blocks were asked for than are free or cached."""


class BlockPool:
    """Blocks 0..total-1 of one layer group in device memory.

    `on_free` is called with each block that becomes free (not: cached), so that tests can poison its memory.
    """

    def __init__(self, total: int, on_free: Callable[[int], None] | None = None) -> None:
        if total < 1:
            raise ValueError(f"a pool of {total} blocks")
        self.total = total
        self.available = total
        """How many blocks `allocate` can give: free ones, and cached ones that it would evict."""
        self.evictions = 0
        self._on_free = on_free
        self._free = list(range(total - 1, -1, -1))
        # The oldest first. A plain dictionary steps over every entry that it ever lost before it finds its first.
        self._cached: OrderedDict[int, None] = OrderedDict()
        self._awaited: OrderedDict[int, None] = OrderedDict()
        """Cached too, under keys that are awaited; the oldest first."""
        self._awaited_keys: dict[bytes, int] = {}
        """How many who wait will look for a key."""
        self._references = [0] * total
        self._key: list[bytes | None] = [None] * total
        self._scope = [""] * total
        self._index: dict[bytes, int] = {}
        self._scopes: defaultdict[str, dict[bytes, None]] = defaultdict(dict)

    # ------------------------------------------------------------ figures

    @property
    def free_blocks(self) -> int:
        """Blocks whose content means nothing."""
        return len(self._free)

    @property
    def cached_blocks(self) -> int:
        """Blocks in no table that can still be found under their key."""
        return len(self._cached) + len(self._awaited)

    @property
    def referenced_blocks(self) -> int:
        """Blocks in at least one table."""
        return self.total - self.available

    def references(self, block: int) -> int:
        """How many tables hold the block."""
        return self._references[block]

    # ------------------------------------------------------------ blocks in and out

    def allocate(self, count: int) -> list[int]:
        """Take `count` blocks with one reference each and no key. Raises OutOfBlocks, and then took none."""
        if count > self.available:
            raise OutOfBlocks(f"{count} blocks asked for, {self.available} of {self.total} available")
        self.available -= count
        free = self._free
        blocks = free[: -count - 1 : -1]
        del free[len(free) - len(blocks) :]
        while len(blocks) < count:
            block, _ = (self._cached or self._awaited).popitem(last=False)
            self._unpublish(block)
            self.evictions += 1
            blocks.append(block)
        for block in blocks:
            self._references[block] = 1
        return blocks

    def free(self, blocks: Sequence[int]) -> None:
        """Drop one reference of each block. Published ones stay cached, the last of the sequence to be evicted first.

        Raises ValueError for a block that nobody references: a table was freed twice.
        """
        for block in reversed(blocks):
            references = self._references[block] - 1
            if references < 0:
                raise ValueError(f"block {block} is freed but not referenced")
            self._references[block] = references
            if references == 0:
                self.available += 1
                key = self._key[block]
                if key is None:
                    self._release(block)
                else:
                    (self._awaited if key in self._awaited_keys else self._cached)[block] = None

    # ------------------------------------------------------------ the index

    def find(self, keys: Iterable[bytes]) -> list[int]:
        """The blocks of the longest run of these keys, from the first, that are here. Takes no reference."""
        blocks = []
        for key in keys:
            block = self._index.get(key)
            if block is None:
                break
            blocks.append(block)
        return blocks

    def holds(self, key: bytes) -> bool:
        """Whether a block can be found under this key."""
        return key in self._index

    def expect(self, keys: Sequence[bytes]) -> None:
        """Somebody waits who will look for these keys, a prompt's in order: what is there is evicted after all else."""
        awaits = self._awaited_keys
        for key in reversed(keys):
            awaits[key] = awaits.get(key, 0) + 1
            if awaits[key] == 1 and (block := self._index.get(key)) is not None and block in self._cached:
                del self._cached[block]
                self._awaited[block] = None

    def dismiss(self, keys: Sequence[bytes]) -> None:
        """Whoever was expected to look for these keys does not wait any more."""
        awaits = self._awaited_keys
        for key in reversed(keys):
            awaits[key] -= 1
            if not awaits[key]:
                del awaits[key]
                if (block := self._index.get(key)) is not None and block in self._awaited:
                    del self._awaited[block]
                    self._cached[block] = None

    def share(self, blocks: Sequence[int]) -> None:
        """Take one more reference of each block, all of them found or held by the caller."""
        for block in blocks:
            if self._references[block] == 0:
                if self._key[block] is None:
                    raise ValueError(f"block {block} is shared but free")
                self._uncache(block)
                self.available -= 1
            self._references[block] += 1

    def publish(self, block: int, key: bytes, scope: str = "") -> int:
        """Let a referenced, written block be found under `key`; returns the block to use for it from now on.

        That is another one if an equal block was published before: the caller's reference has then moved to it, and
        its own block was freed, so that a prefix is stored once.
        """
        if not self._references[block]:
            raise ValueError(f"block {block} is published but not referenced")
        known = self._index.get(key)
        if known == block:
            return block
        if known is not None:
            self.share([known])
            self.free([block])
            return known
        if self._key[block] is not None:
            raise ValueError(f"block {block} is published under two keys")
        self._index[key] = block
        self._key[block] = key
        self._scope[block] = scope
        self._scopes[scope][key] = None
        return block

    def purge(self, keys: Iterable[bytes]) -> int:
        """Make these keys unfindable; returns how many were here. Referenced blocks live on until they are freed."""
        purged = 0
        for key in keys:
            block = self._index.get(key)
            if block is not None:
                purged += 1
                self._unpublish(block)
                if self._references[block] == 0:
                    self._uncache(block)
                    self._release(block)
        return purged

    def forget(self, scope: str) -> int:
        """Purge all that was published in this scope; returns how many blocks."""
        return self.purge(list(self._scopes.get(scope, ())))

    # ------------------------------------------------------------ inside

    def _uncache(self, block: int) -> None:
        """The block is cached, and will not be."""
        if block in self._cached:
            del self._cached[block]
        else:
            del self._awaited[block]

    def _release(self, block: int) -> None:
        self._free.append(block)
        if self._on_free is not None:
            self._on_free(block)

    def _unpublish(self, block: int) -> None:
        key = self._key[block]
        assert key is not None
        scope = self._scope[block]
        del self._index[key]
        del self._scopes[scope][key]
        if not self._scopes[scope]:
            del self._scopes[scope]
        self._key[block] = None
        self._scope[block] = ""

    def check(self) -> None:
        """Raise AssertionError unless the pool is consistent (C4). O(total): for tests and audits."""
        free, cached = set(self._free), self._cached.keys() | self._awaited.keys()
        assert len(cached) == self.cached_blocks, "a block is cached twice"
        for block in cached:
            assert (self._key[block] in self._awaited_keys) == (block in self._awaited), (
                "a block is wrongly awaited, or not"
            )
        referenced = {block for block in range(self.total) if self._references[block] > 0}
        assert len(free) == len(self._free), "a block is free twice"
        assert not free & cached, "a block is free and cached"
        assert not free & referenced, "a free block is referenced"
        assert not cached & referenced, "a cached block is referenced"
        assert len(free) + len(cached) == self.available, "what is available is counted wrong"
        assert len(free) + len(cached) + len(referenced) == self.total, "free + cached + referenced is not total"
        assert min(self._references) >= 0, "a block has a negative reference count"
        keyed = {block: key for block, key in enumerate(self._key) if key is not None}
        assert {key: block for block, key in keyed.items()} == self._index, "the index disagrees with the blocks"
        assert cached <= keyed.keys(), "a cached block has no key"
        assert not free & keyed.keys(), "a free block has a key"
        scoped = {key: scope for scope, keys in self._scopes.items() for key in keys}
        assert scoped == {key: self._scope[block] for block, key in keyed.items()}, "a scope disagrees with its blocks"
