"""The cost model of a step in µs of engine time, measured while the replica runs. Shares, bounds and budgets use it.

The model is linear: a step costs a fixed part, a part for each uncached and each cached prefill token, and a part for
each decoding request. Engine time is not a price.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol

from prompt_cache.placement.fetch_or_recompute import HOST, ComputeRate, FetchOrRecompute, Place, TierRate


@dataclass(frozen=True)
class Rates:
    """Engine time in µs of each part of a step."""

    step: float = 5_000.0
    """The fixed part of a step."""
    uncached: float = 30.0
    """A prompt token that is computed."""
    cached: float = 0.3
    """A prompt token that is read from the cache."""
    row: float = 50.0
    """One more row of a decode step."""
    batch: int = 64
    """Decoding requests of a saturated replica, among which a step's fixed part is divided."""
    copied: float = 50.0
    """A block that is copied from the device to host memory or back."""
    decoded: float = field(init=False)
    """A decoded token at saturation."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "decoded", self.row + self.step / self.batch)

    def cost(self, uncached: float, cached: float, decoded: float) -> float:
        """µs for these numbers of tokens."""
        return uncached * self.uncached + cached * self.cached + decoded * self.decoded

    def step_time(self, prefill: int, decodes: int) -> float:
        """µs of a step with `prefill` uncached prompt tokens and `decodes` decoding requests."""
        return self.step + prefill * self.uncached + decodes * self.row


def first_guess(rates: Rates, block_bytes: int, tiers: Mapping[Place, TierRate]) -> FetchOrRecompute:
    """What chooses between fetching and computing, by the rates that are known at the start."""
    memory = TierRate(0.0, block_bytes / max(rates.copied, 1e-3) * 1e6)
    return FetchOrRecompute({HOST: memory, **tiers}, ComputeRate(rates.uncached / 1e6))


class StepCosts(Protocol):
    """Gives the scheduler its rates, and learns them from steps."""

    @property
    def rates(self) -> Rates:
        """The rates to charge by from now on."""

    def prefill_within(self, target: float, decodes: int) -> float:
        """How many tokens can be prefilled beside `decodes` decodes in a step of `target` µs; may be infinite."""

    def step_time(self, prefill: int, decodes: int) -> float:
        """How many µs a step of `prefill` prompt tokens and `decodes` decodes is expected to take."""

    def observe(self, prefill: int, decodes: int, took: float) -> None:
        """A step of `prefill` prompt tokens and `decodes` decodes took `took` µs."""

    def observe_copies(self, blocks: int, took: float) -> None:
        """Copying `blocks` blocks took `took` µs."""


class FixedCosts:
    """Costs that do not change: for tests and simulators."""

    def __init__(self, rates: Rates | None = None) -> None:
        self.rates = rates or Rates()

    def prefill_within(self, target: float, decodes: int) -> float:
        return max(0.0, (target - self.rates.step_time(0, decodes)) / self.rates.uncached)

    def step_time(self, prefill: int, decodes: int) -> float:
        return self.rates.step_time(prefill, decodes)

    def observe(self, prefill: int, decodes: int, took: float) -> None:
        """Nothing is learned."""

    def observe_copies(self, blocks: int, took: float) -> None:
        """Nothing is learned."""


class MeasuredCosts:
    """Costs learned from steps: decode time by batch size, time per prefilled token, time per copied block.

    Batch sizes are grouped up to the next power of two. Each figure is a moving average over about eight steps; the
    first step is left out, since it pays for warming up. A size without a figure takes that of `calibrate`, scaled as
    the nearest measured size differs from its calibration; so a token's cost does not depend on which sizes have run.
    Before any figure is known, no target limits a step.

    A step that takes longer than twice its figure counts as twice: what held it up once (a disk, a kernel that was
    compiled) says nothing of the next one, while a machine that has become slower is followed within some steps.
    """

    _WEIGHT = 1 / 8
    _MOST_ABOVE = 2.0

    def __init__(self, batch: int, rates: Rates | None = None) -> None:
        self._first = rates or Rates(batch=batch)
        self._rates = self._first
        self._calibrated: dict[int, float] = {}
        self._decode: dict[int, float] = {}
        self._prefill: float | None = None
        self._copied: float | None = None
        self._steps = 0

    @property
    def rates(self) -> Rates:
        return self._rates

    def calibrate(self, decodes: Mapping[int, float], prefill: float) -> None:
        """Set what was measured at start: µs of decode steps by batch size, and µs of a prefilled token."""
        self._calibrated = {_row(size): took for size, took in decodes.items()}
        self._prefill = prefill
        self._refresh()

    def prefill_within(self, target: float, decodes: int) -> float:
        if self._prefill is None or not (self._decode or self._calibrated):
            return math.inf
        return max(0.0, (target - self.decode_time(decodes)) / self._prefill)

    def step_time(self, prefill: int, decodes: int) -> float:
        return self.decode_time(decodes) + prefill * self._rates.uncached

    def decode_time(self, decodes: int) -> float:
        """µs of a decode step: measured for its batch size, else scaled from the nearest measured size."""
        if not decodes:
            return 0.0
        wanted = _row(decodes)
        if not self._decode:
            return self._expected(wanted)
        nearest = _nearest(self._decode, wanted)
        return self._decode[nearest] * self._expected(wanted) / self._expected(nearest)

    def observe(self, prefill: int, decodes: int, took: float) -> None:
        self._steps += 1
        if self._steps == 1 or took <= 0:
            return
        if prefill == 0:
            row = _row(decodes)
            before = self._decode.get(row) or (self.decode_time(decodes) if self._calibrated else took)
            self._decode[row] = self._follow(before, took, self._WEIGHT)
        else:
            # Before decodes are measured, all time counts as prefill: the budget is too small rather than too large.
            beside = min(self.decode_time(decodes), took / 2) if self._decode or self._calibrated else 0.0
            per_token = (took - beside) / prefill
            before = self._prefill or per_token
            # Small chunks cost more per token, so they weigh less.
            self._prefill = self._follow(before, per_token, self._WEIGHT * min(1.0, prefill / 256))
        self._refresh()

    def _follow(self, figure: float, seen: float, weight: float) -> float:
        return figure + (min(seen, self._MOST_ABOVE * figure) - figure) * weight

    def observe_copies(self, blocks: int, took: float) -> None:
        per_block = took / blocks
        before = per_block if self._copied is None else self._copied
        self._copied = before + (per_block - before) * self._WEIGHT
        self._rates = replace(self._rates, copied=self._copied)

    def _refresh(self) -> None:
        first = self._first
        uncached = self._prefill or first.uncached
        decoded = self.decode_time(first.batch) / first.batch
        # Reading a block that is on the device costs bookkeeping alone.
        copied = self._copied or first.copied
        self._rates = Rates(0.0, uncached, cached=uncached / 100, row=decoded, batch=first.batch, copied=copied)

    def _expected(self, row: int) -> float:
        """µs of a row's steps by calibration, else by the initial rates."""
        if not self._calibrated:
            return self._first.step_time(0, 1 << row)
        nearest = _nearest(self._calibrated, row)
        return self._calibrated[nearest] * self._first.step_time(0, 1 << row) / self._first.step_time(0, 1 << nearest)


def _nearest(table: Iterable[int], row: int) -> int:
    return min(table, key=lambda candidate: (abs(candidate - row), candidate))


def _row(decodes: int) -> int:
    """The table's row for a batch size: the exponent of the next power of two."""
    return max(0, decodes - 1).bit_length()
