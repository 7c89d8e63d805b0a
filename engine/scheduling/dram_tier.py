"""The DRAM tier: a bounded pool of blocks in host memory, with an index by block key.

It holds published blocks that left the device, found by their keys, and the private blocks of preempted requests,
which are in no index. Both share its budget. A preempted request's KV is kept here if measured costs say that copying
it out and back is cheaper than recomputing it, and if there is room.

Blocks leave the device only where their scope has a retention and no request has said `no-store` (C5): `hold_back`.
Copies begin with a step: out of the device before its fresh blocks are cleared, back after that. A block that is
copied to or from here, or that another thread reads or fills, is referenced until that is done.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from heapq import heappop, heappush
from math import inf

from engine.scheduling.request import Request
from engine.scheduling.step_costs import Rates
from engine.scheduling.step_work import Returned, Step
from prompt_cache.kv.block_pool import OutOfBlocks
from prompt_cache.kv.grouped_pool import ABSENT, Block, GroupedPool
from prompt_cache.placement.fetch_or_recompute import HOST, Place
from prompt_cache.tiers.identity import ScopeAccess

MOST_SCOPES = 10_000
_MOST_HELD_BACK = 100_000
_EXPIRIES_A_BLOCK = 4
"""Expiries that are remembered for each block, most of them of blocks that are gone."""


class DramTier:
    """Host memory's `pool`, in the layer groups of the `device` pool. None: no such tier."""

    name: Place = HOST

    def __init__(self, pool: GroupedPool | None, device: GroupedPool) -> None:
        self.pool = pool
        self.device = device
        self.index = None if device.slides else pool
        """The pool, where published blocks are kept: not yet with layer groups that have windows."""
        self.swaps = 0
        """How many preemptions kept the KV here."""
        self.entered = 0
        """How many evicted blocks were copied here."""
        self.damaged = 0
        """How many blocks came back otherwise than they went."""
        self.scopes: OrderedDict[str, ScopeAccess] = OrderedDict()
        """The scopes that requests are in, the latest last."""
        self._held_back: set[bytes] = set()
        """Keys of blocks that must not leave the device."""
        self._out: list[tuple[Block, Block]] = []
        """Copies out for the next step, in order."""
        self._pins: list[Block] = []
        """Blocks with one more reference until the next step's copies are done: they come from there or go there."""
        self._copying: list[list[Block]] = []
        """Those of steps whose copies are not done yet."""
        self._expiries: list[tuple[float, bytes]] = []
        """(when, key), a heap: what may stay no longer."""
        self._expires: dict[bytes, float] = {}
        self._now = 0.0
        if self.index is not None:
            device.watch_evictions(self._evicted)

    # ------------------------------------------------------------ a step

    def begin(self, step: Step, now: float) -> None:
        """Copies from now on go into this step, until `end`."""
        self._now = now
        if self._expiries and self._expiries[0][0] <= now:
            self._expire()
        step.out, step.pins = self._out, self._pins

    def end(self) -> None:
        """The step is made. Copies from now on go into the next one."""
        if self._pins:
            self._copying.append(self._pins)
        self._out, self._pins = [], []

    def copied(self, step: Step) -> None:
        """The step's copies are done, and so are those of the steps before."""
        if step.pins:
            assert self.pool is not None
            self._copying = [pins for pins in self._copying if pins is not step.pins]
            self.pool.free(step.pins)

    @property
    def next_expiry(self) -> float | None:
        """When a block may stay no longer, in seconds since the Unix epoch."""
        return self._expiries[0][0] if self._expiries else None

    # ------------------------------------------------------------ who may leave the device

    def introduce(self, access: ScopeAccess) -> None:
        """Requests of this scope come: this is from now on how long and how much of it may be kept."""
        self.scopes[access.scope] = access
        self.scopes.move_to_end(access.scope)
        if len(self.scopes) > MOST_SCOPES:
            self.scopes.popitem(last=False)

    def publishing(self, request: Request, key: bytes) -> None:
        """A request is about to publish a block on the device: hold it back there unless the request allows that its KV
        is stored."""
        if request.store == "all":
            self._held_back.discard(key)
        elif not self.device.pools[0].holds(key):
            if len(self._held_back) >= _MOST_HELD_BACK:
                self._held_back = {known for known in self._held_back if self.device.pools[0].holds(known)}
            self._held_back.add(key)

    def release_held_back(self, request: Request, keys: Iterable[bytes]) -> None:
        """A request reads these published blocks. If it allows that its KV is stored, they may be copied to host memory
        from now on, whoever published them."""
        if self._held_back and request.store == "all":
            self._held_back.difference_update(keys)

    def may_leave(self, key: bytes, scope: str) -> bool:
        """Whether this block may be copied to host memory."""
        access = self.scopes.get(scope)
        return access is not None and access.retention > 0 and key not in self._held_back

    # ------------------------------------------------------------ published blocks

    def holds(self, scope: str, key: bytes) -> bool:
        """Whether the block is here, in all layer groups."""
        return self.index is not None and all(pool.holds(key) for pool in self.index.pools)

    def on_device(self, key: bytes) -> bool:
        """Whether the block can be found on the device."""
        return all(pool.holds(key) for pool in self.device.pools)

    def find(self, key: bytes) -> Block | None:
        """The block with this key."""
        found = [] if self.index is None else self.index.find([key])
        return found[0] if found else None

    def copy_back(self, request: Request, index: int, source: Block, step: Step) -> None:
        """Copy a block of this tier into the table of a request that restores."""
        assert self.pool is not None
        self.pool.share([source])
        self._pins.append(source)
        step.back.append((source, request.table[index]))
        step.returns.append(Returned(request, index, request.keys[index], request.restore))

    def copy_out(self, key: bytes, scope: str) -> Block | None:
        """Copy a published block of the device here, if it is not here; returns it with one more reference.

        None if it is on neither side, or there is no room.
        """
        assert self.index is not None
        here: list[int] = []
        for group, pool in enumerate(self.index.pools):
            known = pool.find([key])
            if known:
                pool.share(known)
                here += known
                continue
            source = self.device.pools[group].find([key])
            taken = self._take(group, key, scope) if source else None
            if taken is None:
                self._drop(here)
                return None
            entered = self._alone(group, taken)
            self._out.append((self._alone(group, source[0]), entered))
            # Until the copy is done, also if it is not wanted any more.
            self.index.share([entered])
            self._pins.append(entered)
            here.append(taken)
        return tuple(here)

    def allocate(self, scope: str) -> Block | None:
        """A block with one reference and no key, for another thread to fill with one of this scope; None if there is no
        room."""
        try:
            return None if self.index is None else self.index.allocate_spare(scope)
        except OutOfBlocks:
            return None

    def publish(self, block: Block, key: bytes, scope: str) -> None:
        """An allocated block was filled and verified: it may be found, and its reference is dropped."""
        assert self.index is not None
        table = [block]
        self.index.publish(table, 0, key, scope)
        self.index.free(table)
        self._keep_until(key, scope)

    def free(self, block: Block) -> None:
        """Drop a reference."""
        assert self.pool is not None
        self.pool.free([block])

    def reject(self, key: bytes) -> None:
        """The block with this key is damaged: nobody is to find it again."""
        self.damaged += 1
        if self.index is not None:
            self.index.purge([key])

    def purge(self, scope: str, keys: Iterable[bytes]) -> None:
        """Make blocks unfindable; their memory is zeroed when nobody uses it, which is now for almost all."""
        if self.index is not None:
            self.index.purge(keys)

    def forget(self, scope: str) -> None:
        """Make the blocks of a scope unfindable, and zero them. No more of it leaves the device."""
        self.scopes.pop(scope, None)
        if self.index is not None:
            self.index.forget(scope)

    def _evicted(self, group: int, block: int, key: bytes, scope: str) -> None:
        """A published block of the device is about to lose its place there."""
        assert self.index is not None
        pool = self.index.pools[group]
        if pool.holds(key):
            pool.mark_duplicate(key, duplicate=False)
        elif self.may_leave(key, scope):
            self.entered += self.enter(group, block, key, scope)

    def enter(self, group: int, block: int, key: bytes, scope: str) -> bool:
        """Copy a published block of the device here with the step that is made, or with the next one. Returns whether
        there was room."""
        taken = self._take(group, key, scope)
        if taken is None:
            return False
        entered = self._alone(group, taken)
        self._out.append((self._alone(group, block), entered))
        # Nobody else is to fill it before the copy is done.
        self._pins.append(entered)
        return True

    def _take(self, group: int, key: bytes, scope: str) -> int | None:
        """A published block of one layer group, with one reference, which the next step is to fill."""
        assert self.index is not None
        pool = self.index.pools[group]
        try:
            [taken] = pool.allocate_spare(1, scope)
        except OutOfBlocks:
            return None
        pool.publish(taken, key, scope)
        self._keep_until(key, scope)
        return taken

    def _drop(self, numbers: list[int]) -> None:
        assert self.index is not None
        for pool, number in zip(self.index.pools, numbers, strict=False):
            pool.free([number])

    def _alone(self, group: int, number: int) -> Block:
        """A block that has only the part of one layer group."""
        groups = len(self.device.pools)
        return (number,) if groups == 1 else tuple(number if at == group else ABSENT for at in range(groups))

    # ------------------------------------------------------------ retention

    def _keep_until(self, key: bytes, scope: str) -> None:
        access = self.scopes.get(scope)
        if access is None:
            return
        until = self._now + access.retention
        if until < self._expires.get(key, inf):
            if len(self._expiries) >= _EXPIRIES_A_BLOCK * len(self.device.pools) * self.device.pools[0].total + 1000:
                self._expires = {known: when for known, when in self._expires.items() if self.holds("", known)}
                self._expiries = sorted((when, known) for known, when in self._expires.items())
            self._expires[key] = until
            heappush(self._expiries, (until, key))

    def _expire(self) -> None:
        while self._expiries and self._expiries[0][0] <= self._now:
            when, key = heappop(self._expiries)
            if self._expires.get(key) == when:
                del self._expires[key]
                self.purge("", [key])

    # ------------------------------------------------------------ preempted requests

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
        self.pool.share(request.swapped)
        self._pins += request.swapped
        step.out += zip(blocks, request.swapped, strict=True)
        self.swaps += 1

    def bring_back(self, request: Request, table: list[Block], found: int, step: Step) -> None:
        """Copy the kept blocks into the request's new table, but for the first `found`, which were cached."""
        for index, kept in enumerate(request.swapped):
            if index >= found:
                step.back.append((kept, table[index]))
                key = request.keys[index] if index < len(request.keys) else b""
                step.returns.append(Returned(request, index, key, None))
        self._pins += request.swapped
        self._forget_kept(request)

    def drop(self, request: Request) -> None:
        """Free the kept blocks of a request that has ended."""
        if self.pool is not None and request.swapped:
            self.pool.free(request.swapped)
            self._forget_kept(request)

    def cost(self, blocks: list[Block], rates: Rates) -> float:
        """µs to copy these blocks out and back."""
        return 2 * len(blocks) * rates.copied

    def check(self, waiting: list[Request], transfers: Iterable[Block]) -> None:
        """Raise AssertionError unless blocks add up (C4). Referenced are blocks that are kept for `waiting` requests,
        that are being copied, or that `transfers` in flight have, and no others."""
        if self.pool is None:
            return
        self.pool.check()
        held = [block for request in waiting for block in request.swapped] + self._pins + [*transfers]
        held += [block for pins in self._copying for block in pins]
        for group, pool in enumerate(self.pool.pools):
            numbers = [block[group] for block in held if block[group] != ABSENT]
            assert {number: numbers.count(number) for number in numbers} == {
                number: pool.references(number) for number in range(pool.total) if pool.references(number)
            }, "host memory leaks, or is used by somebody unknown"

    def _forget_kept(self, request: Request) -> None:
        request.swapped = []
        request.swapped_tokens = 0
