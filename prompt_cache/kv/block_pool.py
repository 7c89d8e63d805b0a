"""The block pool of one layer group and its prefix index: allocate, share, publish, free.

A pool handles block numbers, not memory. Each block is in exactly one of three states (C4): *free* (its content is
meaningless), *referenced* (in one or more block tables) or *cached* (in no table, but in the index under its key). A
published block keeps its key when its last reference is dropped. It is evicted when no free block is left, in the order
that `placement` says: ends of prefixes before their beginnings, blocks that a waiting request will read (*awaited*)
after all others.

A block is found only under the key with which it was published. Keys are made from the scope's secret root, so that
only who knows the root can find the block (C1). Every operation takes a bounded time per block, however many there are
(evicting one: logarithmic).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence

from prompt_cache.placement.eviction_order import NO_PARENT, EvictionOrder
from prompt_cache.placement.hit_density import HitDensity


class OutOfBlocks(Exception):
    """More blocks were requested than are free or cached."""


class BlockPool:
    """Blocks 0..total-1 of one layer group.

    `on_free`: called with each block that becomes free (not cached), so that its memory can be overwritten; `on_take`:
    with free blocks before they are used again. `order`: what is evicted first.
    """

    def __init__(
        self,
        total: int,
        on_free: Callable[[int], None] | None = None,
        order: EvictionOrder | None = None,
        *,
        on_take: Callable[[Sequence[int]], None] | None = None,
    ) -> None:
        if total < 1:
            raise ValueError(f"a pool of {total} blocks")
        self.total = total
        self.available = total
        """How many blocks `allocate` can return: free ones, and cached ones that it would evict."""
        self.evictions = 0
        self.turnover = 0
        """Blocks that were taken, or came to rest under a key: after so many what would be evicted next may differ."""
        self._on_free = on_free
        self._on_take = on_take
        self.on_evict: Callable[[int, bytes, str], None] | None = None
        """Called with (block, key, scope) of each published block that is about to lose its key to another use, while
        its content is still there: so that a farther tier can take a copy. Not called for what is purged."""
        self._free = list(range(total - 1, -1, -1))
        self._order: EvictionOrder = HitDensity(total) if order is None else order
        self._awaited_keys: dict[bytes, int] = {}
        """key -> how many waiting requests will look for it"""
        self._reserved: set[str] = set()
        """Scopes with a reserve."""
        self._limited: dict[str, int] = {}
        """scope -> how many blocks it may hold at most, where it has a limit"""
        self._references = [0] * total
        self._key: list[bytes | None] = [None] * total
        self._scope = [""] * total
        self._index: dict[bytes, int] = {}
        self._scopes: defaultdict[str, dict[bytes, None]] = defaultdict(dict)

    # ------------------------------------------------------------ counts

    @property
    def free_blocks(self) -> int:
        """Blocks whose content is meaningless."""
        return len(self._free)

    @property
    def cached_blocks(self) -> int:
        """Blocks in no table that can be found under their key."""
        return self.available - len(self._free)

    @property
    def referenced_blocks(self) -> int:
        """Blocks in at least one table."""
        return self.total - self.available

    def references(self, block: int) -> int:
        """How many tables hold the block."""
        return self._references[block]

    # ------------------------------------------------------------ blocks in and out

    def allocate(self, count: int) -> list[int]:
        """Take `count` blocks, each with one reference and no key. Raises OutOfBlocks without taking any."""
        if count > self.available:
            raise OutOfBlocks(f"{count} blocks requested, {self.available} of {self.total} available")
        short = count - len(self._free)
        return self._take(count, self._order.victims(short) if short > 0 else [])

    def allocate_spare(self, count: int, scope: str = "") -> list[int]:
        """As `allocate`, for what can be computed again as well: it evicts nothing that is in the reserve of another
        scope than `scope`, and nothing that a waiting request will look for."""
        short = count - len(self._free)
        victims: list[int] = []
        # Several only after a look whether there are so many, so that none is evicted in vain.
        if short == 1 or (short > 1 and (not self._reserved or len(self._order.coming(short)) == short)):
            victims = self._order.spare_victims(short, scope)
        if len(victims) < short:
            self._evict(victims)
            for block in victims:
                self._release(block)
            raise OutOfBlocks(f"{count} blocks requested, fewer of {self.total} are free or not reserved")
        return self._take(count, victims)

    def _take(self, count: int, victims: list[int]) -> list[int]:
        """Free blocks, and `victims` that are given up for the others."""
        self.available -= count
        self.turnover += count
        free = self._free
        blocks = free[: -count - 1 : -1]
        del free[len(free) - len(blocks) :]
        if blocks and self._on_take is not None:
            self._on_take(blocks)
        if victims:
            self._evict(victims)
            blocks += victims
        for block in blocks:
            self._references[block] = 1
        return blocks

    def free(self, blocks: Sequence[int]) -> None:
        """Drop one reference of each block. Published blocks stay cached; the last of the sequence is evicted first.

        Raises ValueError for a block without references, which means that a table was freed twice.
        """
        references, keys = self._references, self._key
        resting = []
        for block in reversed(blocks):
            left = references[block] - 1
            if left < 0:
                raise ValueError(f"block {block} is freed but not referenced")
            references[block] = left
            if left == 0:
                self.available += 1
                if keys[block] is None:
                    self._release(block)
                else:
                    resting.append(block)
        if resting:
            resting.reverse()
            self.turnover += len(resting)
            self._order.release(resting)
            if self._limited:
                for scope in {self._scope[block] for block in resting} & self._limited.keys():
                    self._keep_to_limit(scope)

    # ------------------------------------------------------------ the index

    def find(self, keys: Iterable[bytes]) -> list[int]:
        """The blocks of the longest prefix of these keys that is in the index. Takes no references."""
        blocks = []
        for key in keys:
            block = self._index.get(key)
            if block is None:
                break
            blocks.append(block)
        return blocks

    def holds(self, key: bytes) -> bool:
        """Whether the key is in the index."""
        return key in self._index

    def expect(self, keys: Sequence[bytes]) -> None:
        """A waiting request will look for these keys of its prompt, in order: evict their blocks after all others."""
        awaited = self._awaited_keys
        for key in reversed(keys):
            awaited[key] = awaited.get(key, 0) + 1
            if awaited[key] == 1 and (block := self._index.get(key)) is not None:
                self._order.expect(block)

    def dismiss(self, keys: Sequence[bytes]) -> None:
        """A request that was expected to look for these keys no longer waits."""
        awaited = self._awaited_keys
        for key in reversed(keys):
            awaited[key] -= 1
            if not awaited[key]:
                del awaited[key]
                if (block := self._index.get(key)) is not None:
                    self._order.dismiss(block)

    def coming(self, count: int) -> list[tuple[int, bytes, str]]:
        """(block, key, scope) of at most `count` blocks that would be evicted next, in about that order.

        None that a waiting request will look for, and none that would be taken from a reserve.
        """
        return [(block, self._key[block] or b"", self._scope[block]) for block in self._order.coming(count)]

    def mark_duplicate(self, key: bytes, *, duplicate: bool) -> None:
        """Whether a nearer tier has the block with this key too, and will keep it: then it is evicted before all
        others."""
        block = self._index.get(key)
        if block is not None:
            (self._order.duplicated if duplicate else self._order.sole)(block)

    def retain(self, keys: Iterable[bytes], until: float) -> None:
        """A lease on the blocks of these keys lasts until then, in the seconds of `expire`: they are worth more."""
        self._order.retain([block for key in keys if (block := self._index.get(key)) is not None], until)

    @property
    def leases(self) -> tuple[int, float]:
        """How many blocks are under a live lease, and when the last of these leases ends; 0 for none."""
        return self._order.leases

    def expire(self, now: float) -> None:
        """It is `now`: leases that have ended no longer count."""
        self._order.expire(now)

    def share(self, blocks: Sequence[int]) -> None:
        """Take one more reference of each block, in a prompt's order; they must be in the index or referenced by the
        caller."""
        references = self._references
        for block in blocks:
            if references[block] == 0:
                if self._key[block] is None:
                    raise ValueError(f"block {block} is shared but free")
                self.available -= 1
            references[block] += 1
        self._order.touch(blocks)

    def publish(self, block: int, key: bytes, scope: str = "", parent: int = NO_PARENT) -> int:
        """Put a referenced, written block into the index under `key`; returns the block to use from now on.

        If an equal block was published before, that one is returned: the caller's reference moves to it and its own
        block is freed, so that a prefix is stored once. `parent`: the published block before it in the prompt.
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
        self._order.insert(block, parent if parent >= 0 and self._key[parent] is not None else NO_PARENT, key, scope)
        if key in self._awaited_keys:
            self._order.expect(block)
        if scope in self._limited:
            self._keep_to_limit(scope)
        return block

    def purge(self, keys: Iterable[bytes]) -> int:
        """Remove these keys from the index; returns how many were in it. Referenced blocks stay until freed."""
        purged = 0
        for key in reversed(list(keys)):  # ends of prefixes first
            block = self._index.get(key)
            if block is not None:
                purged += 1
                self._order.remove(block)
                self._unpublish(block)
                if self._references[block] == 0:
                    self._release(block)
        return purged

    def forget(self, scope: str) -> int:
        """Purge all blocks that were published in this scope; returns how many (C5)."""
        return self.purge(list(self._scopes.get(scope, ())))

    # ------------------------------------------------------------ shares

    def set_share(self, scope: str, reserve: int = 0, limit: int | None = None) -> None:
        """From now on others do not evict the last `reserve` blocks of a scope, which holds at most `limit`.

        A reserve keeps what is cached from what others cache. It gives way where a running request finds no other
        block: what is cached can be computed again, a request cannot wait for ever. A scope over its limit evicts its
        own. Blocks in use are not evicted, so that it may be exceeded while requests run.
        """
        self._order.set_share(scope, reserve, limit, [self._index[key] for key in self._scopes.get(scope, ())])
        (self._reserved.add if reserve > 0 else self._reserved.discard)(scope)
        if limit is None:
            self._limited.pop(scope, None)
        else:
            self._limited[scope] = limit
            self._keep_to_limit(scope)

    def held_by(self, scope: str) -> int:
        """How many published blocks the scope has."""
        return len(self._scopes.get(scope, ()))

    def is_at_limit(self, scope: str) -> bool:
        """Whether the scope has to give up a block for each that it publishes."""
        return scope in self._limited and self.held_by(scope) >= self._limited[scope]

    def _keep_to_limit(self, scope: str) -> None:
        if self.held_by(scope) <= self._limited[scope]:
            return
        while (block := self._order.excess(scope)) is not None:
            self._evict([block])
            self._release(block)

    # ------------------------------------------------------------ inside

    def _evict(self, blocks: Sequence[int]) -> None:
        """Take blocks that are given up out of the index."""
        keys, scopes = self._key, self._scope
        for block in blocks:
            key, scope = keys[block], scopes[block]
            assert key is not None
            if self.on_evict is not None:
                self.on_evict(block, key, scope)
            # As `_unpublish`.
            del self._index[key]
            own = self._scopes[scope]
            del own[key]
            if not own:
                del self._scopes[scope]
            keys[block] = None
            scopes[block] = ""
        self.evictions += len(blocks)

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
        free = set(self._free)
        referenced = {block for block in range(self.total) if self._references[block] > 0}
        assert len(free) == len(self._free), "a block is free twice"
        assert not free & referenced, "a free block is referenced"
        assert self.total - len(referenced) == self.available, "what is available is counted wrong"
        assert min(self._references) >= 0, "a block has a negative reference count"
        keyed = {block: key for block, key in enumerate(self._key) if key is not None}
        assert {key: block for block, key in keyed.items()} == self._index, "the index disagrees with the blocks"
        cached = keyed.keys() - referenced
        assert len(free) + len(cached) + len(referenced) == self.total, "free + cached + referenced is not total"
        assert not free & keyed.keys(), "a free block has a key"
        scoped = {key: scope for scope, keys in self._scopes.items() for key in keys}
        assert scoped == {key: self._scope[block] for block, key in keyed.items()}, "a scope disagrees with its blocks"
