"""How likely something is read again, by what is known of it and by how long ago it was last used; learned online.

Entries are in classes. For each class and each range of ages (a *bin*) two sums are kept: how many entries passed
through it unread, times how long (exposure), and how many were read in it. Their quotient is the hazard of reuse. Ages
are in ticks of the tier's own clock, which advances with what is stored: an age says how much else had to be kept
meanwhile, which is the price of keeping something.

From the hazards follows what an entry of a class and an age is worth: the most reads that can be had for the room it
takes, over all times at which one might give it up without a read,

    worth(age) = max over end of  P(read before end) / E[time held until read or end],

the index by which Gittins orders jobs, and the hit density of LHD (Beckmann, Chen and Cidon, NSDI 2018) with the best
horizon in place of the observed one. Giving up the least worth first keeps the most reads a unit of room and time. A
class whose entries are read late, or never, is given up soon; where all come back after the same long time, as in a
scan that is repeated, the youngest go first.

Classes with little evidence take the hazards of their neighbours: a class is (uses, extension), and its uses' row is
drawn towards the row with one use less, the row towards the whole.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

TICKS = 64
"""How many ticks it takes to fill the tier once."""
BINS = 20
_WIDTHS = np.array([math.sqrt(2.0) ** number for number in range(BINS)])
"""In ticks: the bins reach to the age at which the tier was filled 38 times."""
_STARTS = np.concatenate([[0.0], np.cumsum(_WIDTHS)[:-1]])
BIN_OF_AGE: list[int] = (np.searchsorted(_STARTS, np.arange(int(_WIDTHS.sum()) + 1), side="right") - 1).tolist()
"""age in whole ticks -> bin. What is older is in no bin."""
_HALF_LIFE = 512
"""After how many ticks evidence counts half."""
_PRIOR_EXPOSURE = 10.0
"""How strong a prior is for a bin: as much exposure as all entries of a full tier have in so many ticks. Reads come
many at a time, a prompt's blocks together, so that there is less evidence in them than their number says."""
_PRIOR_READS = 0.05
"""How strong a prior is for a class's level: as many reads as this part of a full tier's entries."""
_PER_USE = 1.5
"""How much likelier another read makes the next one, before there is evidence."""
_PRIOR = 0.02 / (1.0 + _STARTS)
"""The hazard before there is any evidence. It falls with age: a new tier gives up the least recently used first."""

Table = NDArray[np.float64]


class ReuseHazard:
    """Evidence and worth of classes (uses, extension), numbered `uses * extensions + extension`."""

    def __init__(self, total: int, uses: int, extensions: int) -> None:
        self._shape = (uses, extensions)
        self._prior_exposure = _PRIOR_EXPOSURE * total
        self._prior_reads = _PRIOR_READS * total
        self._unread: Table = np.zeros((uses * extensions, BINS))
        """How many entries that were not read since are now in this bin, given up or not."""
        self._reads: Table = np.zeros((uses * extensions, BINS))
        self._exposure: Table = np.zeros((uses * extensions, BINS))
        self._ticks = 0
        self.worth: list[list[float]] = []
        """For each class, by bin; one more for what is older than all bins."""
        self.weigh()

    def enter(self, which: int, count: int = 1) -> None:
        """Entries of a class were used just now."""
        self._unread[which, 0] += count

    def read(self, which: int, age: int, count: int = 1) -> None:
        """Entries that entered this class so many ticks ago were read, whether they were still held or not."""
        if age < len(BIN_OF_AGE):
            number = BIN_OF_AGE[age]
            self._reads[which, number] += count
            self._unread[which, number] = max(0.0, self._unread[which, number] - count)

    def lose(self, which: int, age: int, count: int = 1) -> None:
        """It will not be known whether entries that entered this class so many ticks ago are read again."""
        if age < len(BIN_OF_AGE):
            number = BIN_OF_AGE[age]
            self._unread[which, number] = max(0.0, self._unread[which, number] - count)

    def tick(self) -> None:
        """A tick passed. Entries are taken to be spread evenly over their bin."""
        self._exposure += self._unread
        moved = self._unread / _WIDTHS
        self._unread -= moved
        self._unread[:, 1:] += moved[:, :-1]
        self._ticks += 1
        if self._ticks % _HALF_LIFE == 0:
            self._reads *= 0.5
            self._exposure *= 0.5

    def weigh(self) -> None:
        """Make `worth` of the evidence so far."""
        uses, extensions = self._shape
        reads, exposure = (sums.reshape(uses, extensions, BINS) for sums in (self._reads, self._exposure))
        whole = self._drawn(reads.sum((0, 1)), exposure.sum((0, 1)), _PRIOR)
        # How much more, or less, each extension is read than all together.
        expected = (exposure * whole).sum((0, 2))
        factor = (reads.sum((0, 2)) + 1.0) / (expected + 1.0)
        by_use = reads.sum(1), exposure.sum(1)
        rows = np.empty((uses, BINS))
        row = whole
        for number in range(uses):
            evidence = by_use[0][number], by_use[1][number]
            row = rows[number] = self._drawn(*evidence, self._scaled(row, *evidence))
            row = row * _PER_USE
        hazards = self._drawn(reads, exposure, self._scaled(rows[:, None] * factor[:, None], reads, exposure))
        self.worth = _worth(hazards.reshape(-1, BINS)).tolist()

    def _drawn(self, reads: Table, exposure: Table, prior: Table) -> Table:
        """Hazards by bin, drawn towards the prior where there is little evidence."""
        return (reads + prior * self._prior_exposure) / (exposure + self._prior_exposure)

    def _scaled(self, hazard: Table, reads: Table, exposure: Table) -> Table:
        """The hazards' shapes at the level of this evidence."""
        expected = (exposure * hazard).sum(-1, keepdims=True)
        scaled: Table = hazard * ((reads.sum(-1, keepdims=True) + self._prior_reads) / (expected + self._prior_reads))
        return scaled


def _worth(hazards: Table) -> Table:
    """`worth` of the module's docstring for each class and bin, and 0 for what is older than all bins."""
    chance = 1.0 - np.exp(-hazards * _WIDTHS)
    unread = np.cumprod(1.0 - chance, axis=1)
    before = np.concatenate([np.ones((len(hazards), 1)), unread[:, :-1]], axis=1)
    held = np.cumsum(before * _WIDTHS * (1.0 - chance / 2.0), axis=1)
    begun = np.concatenate([np.zeros((len(hazards), 1)), held[:, :-1]], axis=1)
    # [class, from the start of this bin, to the end of that bin]
    gained = before[:, :, None] - unread[:, None, :]
    kept = held[:, None, :] - begun[:, :, None]
    later = np.triu(np.ones((BINS, BINS), dtype=bool))
    density = np.where(later, gained / np.maximum(kept, 1e-12), 0.0)
    worth = np.zeros((len(hazards), BINS + 1))
    worth[:, :BINS] = np.where(before > 1e-9, density.max(axis=2), 0.0)
    return worth
