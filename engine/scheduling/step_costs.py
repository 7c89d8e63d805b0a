"""What a token costs in engine time: the unit of every share, bound and budget, measured and never a price.

All times are microseconds of one replica at work. The model is linear: a step costs a fixed part, a part for each
uncached and each cached prefill token, and a part for each request that decodes one token.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol


@dataclass(frozen=True)
class Rates:
    """Engine time in µs: for a step, for a prefill token to compute or to read, for one more row of a decode step, for
    a block to be copied out of the device's memory or back.

    A decoded token's share of its step's fixed part depends on how many decode together; `batch` is how many do when
    the replica is saturated, so that costs add up to the time that passes.
    """

    step: float = 5_000.0
    uncached: float = 30.0
    cached: float = 0.3
    row: float = 50.0
    batch: int = 64
    copied: float = 50.0
    decoded: float = field(init=False)
    """Engine time of one decoded token at saturation."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "decoded", self.row + self.step / self.batch)

    def cost(self, uncached: float, cached: float, decoded: float) -> float:
        """Engine time of so many tokens."""
        return uncached * self.uncached + cached * self.cached + decoded * self.decoded

    def step_time(self, prefill: int, decodes: int) -> float:
        """How long a step takes that prefills and decodes so many tokens."""
        return self.step + prefill * self.uncached + decodes * self.row


class StepCosts(Protocol):
    """Where the scheduler learns what things cost."""

    @property
    def rates(self) -> Rates:
        """The rates to charge by from now on."""

    def prefill_within(self, target: float, decodes: int) -> float:
        """How many tokens may be prefilled beside so many decodes in a step of `target` µs; may be infinite."""

    def observe(self, prefill: int, decodes: int, took: float) -> None:
        """A step of so many tokens took so many µs."""

    def observe_copies(self, blocks: int, took: float) -> None:
        """Copying so many blocks took so many µs."""


class FixedCosts:
    """Costs that are known: for tests, simulators and replicas that were measured before."""

    def __init__(self, rates: Rates | None = None) -> None:
        self.rates = rates or Rates()

    def prefill_within(self, target: float, decodes: int) -> float:
        return max(0.0, (target - self.rates.step_time(0, decodes)) / self.rates.uncached)

    def observe(self, prefill: int, decodes: int, took: float) -> None:
        """What is known needs no measuring."""

    def observe_copies(self, blocks: int, took: float) -> None:
        """What is known needs no measuring."""


class MeasuredCosts:
    """A table filled from the steps themselves: decode time by batch size, and time per prefilled token.

    Batch sizes share a row up to the next power of two. Each figure is a moving average over about eight steps, after
    the first, which pays for warming up, was left out. Sizes that no step had yet are as `calibrated` said, faster or
    slower by as much as the nearest size that was seen; so what a token costs does not depend on how many happened to
    run so far. Until there is any figure, no target limits a step.
    """

    _WEIGHT = 1 / 8

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
        """What was measured before there was work: µs of decode steps by batch size, and of a prefilled token."""
        self._calibrated = {_row(size): took for size, took in decodes.items()}
        self._prefill = prefill
        self._refresh()

    def prefill_within(self, target: float, decodes: int) -> float:
        if self._prefill is None or not (self._decode or self._calibrated):
            return math.inf
        return max(0.0, (target - self.decode_time(decodes)) / self._prefill)

    def decode_time(self, decodes: int) -> float:
        """A decode step's time in µs: the row of its batch size, else the nearest measured one's, made to fit."""
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
            self._decode[row] = before + (took - before) * self._WEIGHT
        else:
            # Beside decodes that were not measured yet, all counts as prefill: a budget too small, never too large.
            beside = min(self.decode_time(decodes), took / 2) if self._decode or self._calibrated else 0.0
            each = (took - beside) / prefill
            before = self._prefill or each
            # Small chunks are dearer per token; they weigh by their size.
            self._prefill = before + (each - before) * self._WEIGHT * min(1.0, prefill / 256)
        self._refresh()

    def observe_copies(self, blocks: int, took: float) -> None:
        each = took / blocks
        self._copied = each if self._copied is None else self._copied + (each - self._copied) * self._WEIGHT
        self._rates = replace(self._rates, copied=self._copied)

    def _refresh(self) -> None:
        first = self._first
        uncached = self._prefill or first.uncached
        decoded = self.decode_time(first.batch) / first.batch
        # Reading a block that is on the device costs the bookkeeping; the lower tiers will measure their own.
        copied = self._copied or first.copied
        self._rates = Rates(0.0, uncached, cached=uncached / 100, row=decoded, batch=first.batch, copied=copied)

    def _expected(self, row: int) -> float:
        """What a row's steps take by what was known before the first one."""
        if not self._calibrated:
            return self._first.step_time(0, 1 << row)
        nearest = _nearest(self._calibrated, row)
        return self._calibrated[nearest] * self._first.step_time(0, 1 << row) / self._first.step_time(0, 1 << nearest)


def _nearest(table: Iterable[int], row: int) -> int:
    return min(table, key=lambda known: (abs(known - row), known))


def _row(decodes: int) -> int:
    """Which row of the table a batch size belongs to: the exponent of the next power of two."""
    return max(0, decodes - 1).bit_length()
