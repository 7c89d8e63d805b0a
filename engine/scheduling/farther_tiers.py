"""The places beyond the device in their order, host memory and the tiers behind it, in a step and a purge.

Each does its own part: `dram_tier` holds blocks and kept KV, `background_writer` copies blocks there before they are
evicted, `saving` lets blocks go on to a tier, `fetching` reads them from there, `restoring` brings blocks back into the
requests that wait for them.
Without host memory all of this does nothing; without tiers, or in layer groups with windows, nothing is saved.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence

from engine.scheduling.background_writer import BackgroundWriter
from engine.scheduling.dram_tier import DramTier
from engine.scheduling.request import Request
from engine.scheduling.restoring import Restorer
from engine.scheduling.saving import Saver
from engine.scheduling.step_costs import Rates, StepCosts
from engine.scheduling.step_work import Step
from engine.scheduling.tier import Tier
from prompt_cache.kv.grouped_pool import GroupedPool
from prompt_cache.placement.fetch_or_recompute import FetchOrRecompute


class FartherTiers:
    """A replica's `dram`, `restores` and a saver for each tier; with `clean`, a background `writer`.

    `clean`: how many blocks the writer keeps free or clean; 0 for no writer.
    `device`, `dram`: the pools of blocks, None for no host memory; `tiers`: those behind it, the nearest first.
    `joined`: called with a request when restored blocks have joined its KV.
    """

    def __init__(
        self,
        device: GroupedPool,
        dram: GroupedPool | None,
        tiers: Sequence[Tier],
        *,
        joined: Callable[[Request], None],
        chooser: FetchOrRecompute,
        block_bytes: int,
        clean: int = 0,
    ) -> None:
        self.dram = DramTier(dram, device)
        tiers = () if self.dram.index is None else tuple(tiers)
        self.restores = Restorer(self.dram, tiers, joined, chooser, block_bytes)
        self.savers = tuple(Saver(self.dram, tier) for tier in tiers)
        self.writer = BackgroundWriter(self.dram, device, clean) if clean and self.dram.index is not None else None
        self.now = 0.0
        """When the last step began, in seconds since the Unix epoch."""

    # ------------------------------------------------------------ a step

    def begin(self, step: Step, now: float) -> None:
        """A step begins."""
        self.now = now
        if self.dram.pool is not None:
            self.dram.begin(step, now)
        for saver in self.savers:
            saver.begin(now)

    @property
    def coming(self) -> bool:
        """Whether blocks are on their way to host memory or to the device."""
        return bool(self.restores.active or self.restores.fetches)

    def bring(self, step: Step, most: int) -> None:
        """Let blocks come to the requests that wait for them, at most `most` of them with the step's copies."""
        self.restores.advance(step, self.now, most)
        for saver in self.savers:
            saver.note_read(self.restores.fetches.take_read(saver.tier))

    def end(self, step: Step, costs: StepCosts) -> None:
        """The step has its work: let blocks that are to be saved, or will be evicted next, leave with it."""
        for saver in self.savers:
            if saver.wishes:
                saver.advance(step, costs.rates, alone=not step.work)
        if self.writer is not None and self.writer.pending:
            self.writer.advance(step, costs)
        self.dram.end()

    def copied(self, step: Step, bad: Collection[int]) -> Iterable[Request]:
        """The step's copies are done. Returns the requests that would compute with a damaged block."""
        spoiled = self.restores.copied(step, bad) if step.returns else ()
        self.dram.copied(step)
        for saver in self.savers:
            saver.copied(step)
        if self.writer is not None:
            self.writer.copied(step)
        return spoiled

    def save_only(self, now: float, rates: Rates) -> Step:
        """A step that only copies out what is to be saved."""
        step = Step()
        self.begin(step, now)
        for saver in self.savers:
            saver.advance(step, rates, alone=True)
        self.dram.end()
        return step

    @property
    def saves(self) -> bool:
        """Whether a step without work would save something, or write it ahead."""
        return any(saver.pending for saver in self.savers) or (self.writer is not None and self.writer.pending)

    @property
    def next_deadline(self) -> float | None:
        """When a step is due though nothing happens: blocks that did not come, or may stay no longer."""
        return min((at for at in (self.restores.next_deadline, self.dram.next_expiry) if at is not None), default=None)

    # ------------------------------------------------------------ a request's blocks

    def placed(self, request: Request, keys: Sequence[bytes], found: int) -> None:
        """A request was given its blocks; the first `found` were on the device. Restore others from these tiers.

        `keys`: of the blocks that it may read.
        """
        if found:
            self.dram.release_held_back(request, keys[:found])
        if request.blocks_for(request.kv) < len(keys):
            self.restores.begin(request, keys, self.now)
        for saver in () if request.began else self.savers:
            saver.used(request, found if request.restore is None else request.restore.end)

    def retained(self, request: Request, first: int, until: int) -> None:
        """A request that retains blocks has found or published those from `first` to `until`."""
        for saver in self.savers:
            saver.retained(request, first, until, self.now)

    # ------------------------------------------------------------ blocks that must go

    def purge(self, scope: str, keys: set[bytes]) -> None:
        """Make blocks unfindable, those that are on their way too."""
        self._cancel(lambda key, _: key in keys)
        for place in self.restores.places:
            place.purge(scope, keys)

    def forget(self, scope: str) -> None:
        """Make all blocks of a scope unfindable, and zero those in host memory."""
        self._cancel(lambda _, of: of == scope)
        for place in self.restores.places:
            place.forget(scope)

    def _cancel(self, purged: Callable[[bytes, str], bool]) -> None:
        self.restores.cancel(purged)
        for saver in self.savers:
            saver.cancel(purged)

    def check(self, waiting: list[Request], running: Collection[Request]) -> None:
        """Raise AssertionError unless blocks in host memory add up, and restores are those of running requests."""
        transfers = self.restores.fetches.blocks() + [block for saver in self.savers for block in saver.blocks()]
        self.dram.check(waiting, transfers)
        restoring = {request.arrival for request in running if request.restore is not None}
        assert restoring == set(self.restores.active), "a restore of nobody, or unknown"
