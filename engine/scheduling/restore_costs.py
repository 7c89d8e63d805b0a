"""Fetch or recompute: which blocks of a prompt are worth fetching, and how far the engine should compute meanwhile.

Fetching goes from the tail and computing from the front, until they meet. If fetching all takes `f` and computing all
takes `c`, they meet where computing has done the part f / (f + c).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from engine.scheduling.step_costs import Rates
from prompt_cache.kv.block_keys import BLOCK_TOKENS

WORTH = 1.0
"""A block of disk is fetched if that takes at most this multiple of what computing it takes."""
HOLD = 0.1
"""Where computing beside would save less than this part of the time, it is left out: others can have that time."""
SLACK_S = 0.05
PATIENCE = 2.0
"""A restore that takes longer than this multiple of what was expected, and `SLACK_S`, is not waited for."""


@dataclass(frozen=True, slots=True)
class Fetchable:
    """What of a prompt lies in farther tiers, in blocks, and what a block takes from each, in µs."""

    dram: int
    nvme: int
    dram_us: float
    nvme_us: float

    @property
    def fetch_us(self) -> float:
        """µs to fetch all of it."""
        return self.dram * self.dram_us + (self.nvme * self.nvme_us if self.nvme else 0.0)


class RestoreCosts(Protocol):
    """Answers the questions of a restore."""

    def worth_reading(self, nvme_us: float, waiting: int, rates: Rates) -> bool:
        """Whether a block of disk, after `waiting` others, should be read rather than computed."""

    def front_blocks(self, fetchable: Fetchable, rates: Rates) -> int:
        """How many blocks of what is still to be fetched should be computed instead, from the front."""

    def patience(self, fetchable: Fetchable) -> float:
        """Seconds after which computing goes on without what has not come."""


class MeasuredRestoreCosts:
    """By measured rates."""

    def worth_reading(self, nvme_us: float, waiting: int, rates: Rates) -> bool:
        return nvme_us <= WORTH * BLOCK_TOKENS * rates.uncached

    def front_blocks(self, fetchable: Fetchable, rates: Rates) -> int:
        blocks = fetchable.dram + fetchable.nvme
        compute = blocks * BLOCK_TOKENS * rates.uncached
        part = fetchable.fetch_us / (fetchable.fetch_us + compute) if compute else 0.0
        return 0 if part < HOLD else int(blocks * part)

    def patience(self, fetchable: Fetchable) -> float:
        return SLACK_S + PATIENCE * fetchable.fetch_us / 1e6
