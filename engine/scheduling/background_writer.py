"""The background writer: what the device will evict next is copied to host memory before its place is needed.

A prompt that is admitted to a full device drives out as many blocks as it takes. If all of these have to be copied out
then, steps stand still meanwhile. So a few blocks a step are copied ahead, in the order in which they would be evicted.
On the device they stay valid and are found; such a block is *clean*: to evict it costs no copy. This goes on until
there are as many free and clean blocks as the longest prompt needs.

What is written ahead takes room of host memory that others could use. So it is at most a third of that, and two thirds
of the device's. It drives out neither what others have in reserve, nor blocks of a scope at its limit, nor what was
written ahead itself. What is used again, so that the device will keep it, is the first to go from host memory.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from engine.scheduling.dram_tier import DramTier
from engine.scheduling.step_costs import StepCosts
from engine.scheduling.step_work import Step
from prompt_cache.kv.block_pool import BlockPool
from prompt_cache.kv.grouped_pool import GroupedPool

_PART = 0.25
"""Copies may take this part of the time of the step that they set out with: they have to be done before it ends."""
_MOST = 32
"""Blocks that set out with one step, at most. So many do with a step that has no other work."""
_LOOKS = 4
"""So often is looked up what comes next while as many blocks as are wanted are evicted."""


@dataclass(slots=True)
class _Group:
    """What is known of a layer group."""

    device: BlockPool
    host: BlockPool
    target: int
    """How many blocks are to be free or clean."""
    seen: int = -(1 << 60)
    """The device's turnover when it was looked up what comes next."""
    upcoming: set[bytes] = field(default_factory=set)
    """Keys of the blocks that come next."""
    dirty: deque[tuple[bytes, str]] = field(default_factory=deque)
    """Key and scope of those that are still to be copied, in order."""

    @property
    def slack(self) -> int:
        """After how much turnover it is looked up again."""
        return max(1, self.target // _LOOKS)

    @property
    def due(self) -> bool:
        """Whether it is to be looked up what comes next."""
        moved = self.device.turnover - self.seen >= self.slack
        return moved and (self.device.free_blocks < self.target or bool(self.upcoming))


class BackgroundWriter:
    """Copies blocks of the `device` to `dram` ahead, until `target` blocks are free or clean, in each layer group."""

    def __init__(self, dram: DramTier, device: GroupedPool, target: int) -> None:
        assert dram.index is not None
        self.dram = dram
        self.written = 0
        """How many blocks were copied ahead."""
        self._groups = [
            _Group(pool, host, min(target, host.total // 4, pool.total // 2))
            for pool, host in zip(device.pools, dram.index.pools, strict=True)
        ]
        self._copying = 0
        """Blocks whose copies are not done."""

    @property
    def pending(self) -> bool:
        """Whether a step would copy something, or look whether there is something."""
        return any(group.dirty or group.due for group in self._groups)

    def advance(self, step: Step, costs: StepCosts) -> None:
        """Let the next blocks be copied with this step.

        Twice as many may be on their way: that the copies of a step are done is heard of two steps later.
        """
        most = _MOST
        if step.work:
            tokens, decodes = sum(work.count for work in step.work), sum(work.count == 1 for work in step.work)
            expected = costs.step_time(tokens - decodes, decodes)
            most = max(1, min(most, int(_PART * expected / max(costs.rates.copied, 1.0))))
        room = min(most - len(step.out), 2 * most - self._copying)
        for number, group in enumerate(self._groups):
            if group.due:
                self._look(group)
            while group.dirty and room > 0:
                room -= self._write(number, group, step)

    def copied(self, step: Step) -> None:
        """The step's copies are done."""
        self._copying -= step.ahead

    # ------------------------------------------------------------ inside

    def _look(self, group: _Group) -> None:
        """See which blocks come next: a few more than wanted, as some will be gone when it is looked up again."""
        before = group.upcoming
        group.seen = group.device.turnover
        wanted = group.target - group.device.free_blocks
        coming = group.device.coming(wanted + group.slack) if wanted > 0 else []
        group.upcoming = {key for _, key, _ in coming}
        group.dirty = deque((key, scope) for _, key, scope in coming if not group.host.holds(key))
        for key in before - group.upcoming:
            if group.device.holds(key):
                group.host.mark_duplicate(key, duplicate=True)
        for key in group.upcoming - before:
            group.host.mark_duplicate(key, duplicate=False)

    def _write(self, number: int, group: _Group, step: Step) -> bool:
        """Copy the next block, if it is still to be copied and may be."""
        key, scope = group.dirty.popleft()
        found = group.device.find([key])
        if not found or group.device.references(found[0]) or group.host.holds(key):
            return False
        if not self.dram.may_leave(key, scope) or not self._has_room(group, scope):
            return False
        if not self.dram.enter(number, found[0], key, scope):
            return False
        self.written += 1
        self._copying += 1
        step.ahead += 1
        return True

    @staticmethod
    def _has_room(group: _Group, scope: str) -> bool:
        """Whether host memory has room for a block of this scope, at nobody's cost but of what it would keep least."""
        if group.host.is_at_limit(scope):
            return False
        if group.host.free_blocks:
            return True
        # Where that was written ahead itself, host memory would not keep what is written now either.
        return any(key not in group.upcoming for _, key, _ in group.host.coming(1))
