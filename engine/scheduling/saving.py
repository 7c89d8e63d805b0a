"""Saving: copies of published blocks go to disk in the background, by way of host memory.

A block is admitted to disk when it is read for the second time, or when it is retained for at least `LONG_LEASE_S`; at
a clean stop, also when it is retained at all. It is copied to host memory with a step's copies, if it is not there, and
written from there by other threads after those. More wishes than `MOST_WISHES` are dropped: a tier that is slower
than what comes must not hold anything up.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from engine.scheduling.dram_tier import DramTier
from engine.scheduling.request import Request
from engine.scheduling.step_costs import Rates
from engine.scheduling.step_work import Step
from engine.scheduling.tier import Tier, Transfer
from prompt_cache.kv.block_keys import BLOCK_TOKENS
from prompt_cache.kv.grouped_pool import Block

LONG_LEASE_S = 30 * 60.0
MOST_WISHES = 16_384
MOST_KNOWN = 1_000_000
ON_DISK_S, REFUSED_S = 60.0, 5.0
"""For so long at most a block is not looked up again that was on disk, or that the disk refused."""
_BESIDE_US = 2_000.0
"""µs that a step with other work may spend on copies for saving."""
_ALONE = 32
"""Blocks copied for saving in a step without other work."""


@dataclass(slots=True)
class Wish:
    """A block to be saved."""

    scope: str
    position: int
    before: tuple[str, bytes] | None
    """Scope and key of the block before it."""
    lease_until: float = 0.0

    @classmethod
    def of(cls, request: Request, index: int) -> Wish:
        """A wish for a block of a request's tokens."""
        before = request.block_key_and_scope(index - 1)[::-1] if index else None
        scope = request.block_key_and_scope(index)[1]
        return cls(scope, index * BLOCK_TOKENS, before, lease_end(request, index))


def lease_end(request: Request, index: int) -> float:
    """When the last lease that a request asks for on a block ends, in seconds since the Unix epoch; 0 without one."""
    if not request.retain:
        return 0.0
    return max((until for tokens, until in request.retain if index < tokens // BLOCK_TOKENS), default=0.0)


class RecentKeys:
    """Keys that came within the last `seconds` at most, and ends of leases: all are forgotten at once, so often."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._keys: dict[bytes, float] = {}
        self._until = 0.0

    def __contains__(self, key: bytes) -> bool:
        return key in self._keys

    def lease_until(self, key: bytes) -> float | None:
        """The latest end of a lease that came with this key, if it came."""
        return self._keys.get(key)

    def add(self, keys: Iterable[bytes], lease_until: float = 0.0) -> None:
        """These came now."""
        if len(self._keys) >= MOST_KNOWN:
            self._keys.clear()
        for key in keys:
            self._keys[key] = max(self._keys.get(key, 0.0), lease_until)

    def age(self, now: float) -> None:
        """It is `now`, in seconds since the Unix epoch. A clock that was set back forgets too early."""
        if not now < self._until <= now + self._seconds:
            self.clear()
            self._until = now + self._seconds

    def clear(self) -> None:
        """Forget all."""
        self._keys.clear()


class Saver:
    """Keeps account of what is to be saved, and lets its tier save it."""

    def __init__(self, dram: DramTier, tier: Tier) -> None:
        self.dram = dram
        self.tier = tier
        self.dropped = 0
        """Blocks that were to be saved and were not: there were too many, or no room in host memory, or the disk did
        not take them."""
        self.wishes: OrderedDict[bytes, Wish] = OrderedDict()
        self.leased: OrderedDict[bytes, Wish] = OrderedDict()
        """Blocks that are retained for a short time: they are saved at a clean stop."""
        self._on_disk = RecentKeys(ON_DISK_S)
        """What was on disk lately, and which lease the disk was told of: it spares wishes that `tier.holds` would end,
        and says nothing for longer. A record that was evicted, expired or damaged meanwhile is to be written again."""
        self._refused = RecentKeys(REFUSED_S)
        """What the disk refused lately: it may have room again soon."""
        self._copying: dict[bytes, Transfer] = {}
        """What is being copied out, by key; it is written after that."""
        self._saving: dict[bytes, Transfer] = {}

    # ------------------------------------------------------------ what is wanted

    def used(self, request: Request, blocks: int) -> None:
        """A request reads the first `blocks` whole blocks of its tokens, which somebody has computed before."""
        if request.store != "all":
            return
        for index in range(min(blocks, len(request.keys))):
            self._want(request, index)

    def retained(self, request: Request, first: int, until: int, now: float) -> None:
        """A request has published or found the blocks `first`..`until` of its tokens, some of which it retains."""
        if request.store != "all":
            return
        for tokens, end in request.retain:
            for index in range(first, min(until, tokens // BLOCK_TOKENS)):
                key = request.keys[index]
                if end - now >= LONG_LEASE_S:
                    self._want(request, index)
                elif (known := self.leased.get(key)) is not None:
                    known.lease_until = max(known.lease_until, end)
                else:
                    self.leased[key] = Wish.of(request, index)
                    if len(self.leased) > MOST_WISHES:
                        self.leased.popitem(last=False)

    def note_read(self, keys: Iterable[bytes]) -> None:
        """These blocks were read from disk."""
        self._on_disk.add(keys)

    def stop(self, now: float) -> None:
        """The replica stops cleanly: all that is retained now is to be saved."""
        for key, wish in self.leased.items():
            if wish.lease_until > now and not self._is_vain(key, wish.lease_until):
                self._wish(key, wish)
        self.leased.clear()

    def cancel(self, purged: Callable[[bytes, str], bool]) -> None:
        """The blocks of these keys and scopes are to be purged: what of them waits to be copied or written is not, and
        what is being written is purged after that."""
        for wanted in (self.wishes, self.leased):
            for key in [key for key, wish in wanted.items() if purged(key, wish.scope)]:
                del wanted[key]
        for transfer in (*self._copying.values(), *self._saving.values()):
            transfer.cancelled |= purged(transfer.key, transfer.access.scope)
        self._on_disk.clear()

    # ------------------------------------------------------------ a step

    @property
    def pending(self) -> bool:
        """Whether a step would advance something."""
        return bool(self.wishes) and self.tier.save_room > 0

    @property
    def idle(self) -> bool:
        """Whether nothing is left to be saved."""
        return not (self.wishes or self._copying or self._saving)

    def begin(self, now: float) -> None:
        """A step begins: take note of what was written meanwhile."""
        self._on_disk.age(now)
        self._refused.age(now)
        for transfer in self.tier.saved():
            del self._saving[transfer.key]
            self.dram.free(transfer.block)
            if transfer.cancelled:
                continue
            if transfer.ok:  # it may have been sealed before its lease was renewed
                self._is_there(transfer.access.scope, transfer.key, transfer.lease_until)
            else:
                self.dropped += 1
                self._refused.add([transfer.key])

    def copied(self, step: Step) -> None:
        """The step's copies are done: what it copied out is written."""
        for transfer in [each for each in step.saves if self._copying.get(each.key) is each]:
            del self._copying[transfer.key]
            if transfer.cancelled:
                self.dram.free(transfer.block)
            else:
                self._saving[transfer.key] = transfer
                self.tier.save(transfer)

    def advance(self, step: Step, rates: Rates, *, alone: bool) -> None:
        """Let the next blocks be copied out in this step. `alone`: it has no other work."""
        most = min(_ALONE if alone else max(1, int(_BESIDE_US / max(rates.copied, 1.0))), self.tier.save_room)
        looked = 0
        while self.wishes and len(self._copying) < most and looked < 4 * _ALONE:
            looked += 1
            key, wish = self.wishes.popitem(last=False)
            transfer = self._copying.get(key) or self._saving.get(key)
            if transfer is not None:
                transfer.lease_until = max(transfer.lease_until, wish.lease_until)
                continue
            if self._is_vain(key, wish.lease_until):
                continue
            if self.tier.holds(wish.scope, key):
                self._is_there(wish.scope, key, wish.lease_until)
                continue
            access = self.dram.scopes.get(wish.scope)
            if access is None or not self.dram.may_leave(key, wish.scope):
                continue
            block = self.dram.copy_out(key, wish.scope)
            if block is None:
                self.dropped += 1
                continue
            transfer = Transfer(access, key, block, wish.position, wish.before, wish.lease_until)
            self._copying[key] = transfer
            step.saves.append(transfer)

    def blocks(self) -> list[Block]:
        """Blocks of host memory that are being written, or will be once they are copied."""
        return [transfer.block for transfer in (*self._copying.values(), *self._saving.values())]

    # ------------------------------------------------------------ inside

    def _want(self, request: Request, index: int) -> None:
        """A block of a request's tokens is to be on disk, under the lease that the request asks for."""
        key = request.keys[index]
        if not self._is_vain(key, lease_end(request, index)):
            self._wish(key, Wish.of(request, index))

    def _wish(self, key: bytes, wish: Wish) -> None:
        if len(self.wishes) >= MOST_WISHES and key not in self.wishes:
            self.dropped += 1
            return
        self.wishes[key] = wish

    def _is_vain(self, key: bytes, lease_until: float) -> bool:
        """Whether a wish for this block would come to nothing: it was refused just now, or there is one already, or it
        is on disk under a lease that ends at most a minute earlier: who reads it each second renews that once a
        minute."""
        if (wish := self.wishes.get(key)) is not None:
            return lease_until <= wish.lease_until
        told = self._on_disk.lease_until(key)
        return key in self._refused or (told is not None and lease_until <= told + ON_DISK_S)

    def _is_there(self, scope: str, key: bytes, lease_until: float) -> None:
        """A block is on disk, where its lease is to last until then."""
        self._on_disk.add([key], lease_until)
        if lease_until:
            self.tier.lease(scope, key, lease_until)
