"""Fetch or recompute: how many of a prompt's missing blocks to fetch, from the tail, while the front is computed.

The KV of a prompt's tail needs nothing of ours, its computation would need the front's. So blocks are fetched from the
tail and computed from the front until the two meet. Whoever restores asks `plan` when it begins and after each piece:
how many blocks to compute and how many to fetch so that both end together, or all of one kind where the other does not
pay. It tells what was begun and how long it took (`begin`, `end`, `computed`).

Times are expected from rates: a fixed time and bytes/s for each tier, seconds per token and per token of context for
computing. All rates are measured by `turnpike calibrate` or at start, and corrected by every piece (exponentially
weighted).

- A disk is read beside the steps that compute. Blocks in host memory are copied by the steps themselves, so that this
  time is added to the time of computing.
- A resource is shared by those who use it now. Either what is ahead of us ends first, or we get an equal part of it:
  the sooner of both is expected.
- The rate of a tier follows from all that it read while a piece was under way: the piece may have waited for most of
  that time.
- A late piece counts before it ends, so that a throttled disk is noticed at once.
- A tier that was not used for long is believed to be as calibrated, and tried again.

No I/O, no clock, no tensors: times come as arguments, in seconds.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TypeAlias

from protocol.replicas import Tier

Place: TypeAlias = Tier
"""Where blocks are beside the device."""
HOST: Place = "dram"
"""Host memory, by way of which blocks come from all other places."""

_NOTHING: Mapping[Place, int] = MappingProxyType({})
_NEW = 0.25
"""The weight of a new piece in a rate."""
_BELIEVE_AGAIN_S = 20.0
"""After so many seconds without use, half of what is known of a tier is what was calibrated."""
_WORTH = 0.1
"""Computing or fetching is left out where it would save less than this part of the time: others have a use for it, and
on a CPU each slows the other down."""
LATE = 2.0
"""A piece that takes this multiple of what was expected is late."""
SLACK_S = 0.005


@dataclass(frozen=True, slots=True)
class TierRate:
    """A read of n bytes takes `fixed_s + n / bytes_per_s` when nobody else reads."""

    fixed_s: float
    bytes_per_s: float


@dataclass(frozen=True, slots=True)
class ComputeRate:
    """Computing a token at depth p takes `token_s + p * context_s` when nobody else computes. `fixed_s`: for a step."""

    token_s: float
    context_s: float = 0.0
    fixed_s: float = 0.0

    def seconds(self, start: int, tokens: int) -> float:
        """To compute so many tokens from `start` on."""
        return tokens * (self.token_s + self.context_s * (start + tokens / 2))

    def per_token(self, depth: float) -> float:
        """Of a token with so many before it."""
        return self.token_s + self.context_s * depth


@dataclass(frozen=True, slots=True)
class Missing:
    """A prompt's blocks that are not in device memory but in farther tiers: runs of (place, blocks), front first.

    `start`: tokens before them. `block_tokens` and `block_bytes` of a block.
    """

    start: int
    runs: tuple[tuple[Place, int], ...]
    block_tokens: int
    block_bytes: int

    @property
    def blocks(self) -> int:
        """How many are missing."""
        return sum(count for _, count in self.runs)

    def tail(self, blocks: int) -> dict[Place, int]:
        """How many of the last `blocks` lie in each place."""
        places: dict[Place, int] = {}
        for place, count in reversed(self.runs):
            taken = min(count, blocks)
            if taken:
                places[place] = places.get(place, 0) + taken
            blocks -= taken
        return places


@dataclass(frozen=True, slots=True)
class Plan:
    """Compute the first `compute` missing blocks and fetch the last `fetch`.

    `seconds`: expected until all are there. `late_s`: ask again if nothing came until then.
    """

    compute: int
    fetch: int
    seconds: float
    late_s: float


@dataclass(frozen=True, slots=True)
class _Piece:
    """A read of `size` bytes. `pending_bytes`: of all reads that had not ended when it was begun, its own too;
    `read_before`: of all that had."""

    began: float
    size: int
    pending_bytes: int
    read_before: int


@dataclass(slots=True)
class _Tier:
    calibrated: TierRate
    slowness: float = 1.0
    """How much longer a byte takes than calibrated."""
    used_at: float = -math.inf
    pending_bytes: int = 0
    read_bytes: int = 0
    """Of all reads that ended."""
    begun: dict[int, _Piece] = field(default_factory=dict)
    """What is being read, in the order in which it was begun."""

    def served(self, piece: _Piece) -> int:
        """Bytes that the tier reads from when a piece was begun until it ends: those before it and its own."""
        return max(piece.pending_bytes, self.read_bytes - piece.read_before + piece.size)


class FetchOrRecompute:
    """One for a replica. `tiers`: the calibrated rates of the tiers that there are; `compute`: of the model."""

    def __init__(self, tiers: Mapping[Place, TierRate], compute: ComputeRate) -> None:
        self._tiers = {place: _Tier(rate) for place, rate in tiers.items()}
        self._calibrated = compute
        self._compute_slowness = 1.0
        self._pieces = 0

    # ------------------------------------------------------------ what happened

    def begin(self, place: Place, size: int, now: float) -> int:
        """A read of so many bytes begins. Returns the number by which `end` knows it."""
        tier = self._tiers[place]
        self._pieces += 1
        tier.pending_bytes += size
        tier.begun[self._pieces] = _Piece(now, size, tier.pending_bytes, tier.read_bytes)
        return self._pieces

    def end(self, place: Place, piece: int, now: float, *, failed: bool = False) -> None:
        """A read ended."""
        tier = self._tiers[place]
        ended = tier.begun.pop(piece)
        if not failed:
            self._learn(tier, ended, now)
            tier.read_bytes += ended.size
        tier.pending_bytes -= ended.size

    def pieces(self, place: Place) -> Collection[int]:
        """What is being read from a place."""
        return self._tiers[place].begun.keys()

    def computed(self, start: int, tokens: int, seconds: float) -> None:
        """A step computed so many tokens of a prompt from `start` on, and nothing else, in so many seconds."""
        expected = self._calibrated.fixed_s + self._calibrated.seconds(start, tokens)
        if expected > 0:
            self._compute_slowness += _NEW * (seconds / expected - self._compute_slowness)

    def _learn(self, tier: _Tier, ended: _Piece, now: float) -> None:
        rate = tier.calibrated
        expected = tier.served(ended) / rate.bytes_per_s
        sample = max(0.02, (now - ended.began - rate.fixed_s) / expected)
        tier.slowness = self._slowness(tier, now)
        # A slower sample counts more: one slow read says more of a throttled disk than one quick read of a good one.
        weight = _NEW if sample < 2 * tier.slowness else 0.5
        tier.slowness *= math.pow(sample / tier.slowness, weight)
        tier.used_at = now

    def _slowness(self, tier: _Tier, now: float) -> float:
        """How slow a tier is, by what is known now."""
        kept = math.pow(0.5, max(0.0, now - tier.used_at) / _BELIEVE_AGAIN_S) if tier.used_at > -math.inf else 0.0
        slowness = math.pow(tier.slowness, kept)
        rate = tier.calibrated
        if tier.begun:
            # What is not there yet takes at least as long as it has taken; a pause of `SLACK_S` says nothing of a disk.
            oldest = next(iter(tier.begun.values()))
            taken = now - oldest.began - rate.fixed_s - SLACK_S
            slowness = max(slowness, taken * rate.bytes_per_s / tier.served(oldest))
        return slowness

    # ------------------------------------------------------------ what is expected

    def fetch_seconds(
        self, missing: Missing, blocks: int, now: float, *, reading: Mapping[Place, int] = _NOTHING
    ) -> float:
        """Until the last `blocks` missing blocks are there. `reading`: bytes that are being read for this prompt."""
        return max(self._copy_seconds(missing, blocks, now), self._read_seconds(missing, blocks, now, reading))

    def _copy_seconds(self, missing: Missing, blocks: int, now: float) -> float:
        """Time of the steps that copies of so many blocks from host memory take."""
        return self._tier_seconds(HOST, blocks * missing.block_bytes, now) if HOST in self._tiers else 0.0

    def _read_seconds(self, missing: Missing, blocks: int, now: float, reading: Mapping[Place, int]) -> float:
        """Until those of the last `blocks` that are not in host memory have come there."""
        longest = 0.0
        for place, count in missing.tail(blocks).items():
            if place not in self._tiers:
                return math.inf
            if place != HOST:
                size, underway = count * missing.block_bytes, reading.get(place, 0)
                longest = max(longest, self._tier_seconds(place, size, now, underway))
        return longest

    def _tier_seconds(self, place: Place, size: int, now: float, reading: int = 0) -> float:
        if not size:
            return 0.0
        tier = self._tiers[place]
        others = max(0, tier.pending_bytes - reading)
        users = len(tier.begun) + (0 if reading else 1)
        ahead = min(others + size, size * max(1, users))
        return tier.calibrated.fixed_s + ahead * self._slowness(tier, now) / tier.calibrated.bytes_per_s

    def compute_seconds(self, missing: Missing, blocks: int, waiting_tokens: int = 0, sharers: int = 0) -> float:
        """Until the first `blocks` missing blocks are computed, after others' `waiting_tokens`, or beside `sharers`."""
        if not blocks:
            return 0.0
        rate = self._calibrated
        own = (rate.fixed_s + rate.seconds(missing.start, blocks * missing.block_tokens)) * self._compute_slowness
        others = rate.seconds(missing.start, waiting_tokens) * self._compute_slowness
        return min(own + others, own * (1 + sharers))

    def plan(
        self,
        missing: Missing,
        now: float,
        *,
        waiting_tokens: int = 0,
        sharers: int = 0,
        reading: Mapping[Place, int] = _NOTHING,
    ) -> Plan:
        """What to compute and what to fetch.

        `waiting_tokens`: what others want computed now, and `sharers`, how many these are. `reading`: bytes that are
        being read for this prompt already, by place, of the blocks in `missing`.
        """
        blocks = missing.blocks

        def ends(compute: int) -> tuple[float, float]:
            steps = self.compute_seconds(missing, compute, waiting_tokens, sharers)
            steps += self._copy_seconds(missing, blocks - compute, now)
            return steps, self._read_seconds(missing, blocks - compute, now, reading)

        low, high = 0, blocks  # with `low` blocks computed the steps end before the others are read
        while low < high:
            middle = (low + high + 1) // 2
            steps, reads = ends(middle)
            if steps <= reads:
                low = middle
            else:
                high = middle - 1
        best = min((low, low + 1), key=lambda compute: max(ends(compute)) if compute <= blocks else math.inf)
        seconds = max(ends(best))
        for pure in (blocks, 0):  # what does not help much is left to others
            if max(ends(pure)) <= seconds * (1 + _WORTH):
                best, seconds = pure, max(ends(pure))
        return Plan(best, blocks - best, seconds, SLACK_S + LATE * seconds)

    def pays_from(self, place: Place, block_tokens: int, block_bytes: int, most: int = 1 << 20) -> int | None:
        """From how many tokens on fetching from a place is quicker than computing them, from a prompt's beginning.

        None if it is not at `most` tokens.
        """
        tier, compute = self._tiers[place].calibrated, self._calibrated

        def quicker(blocks: int) -> bool:
            fetching = tier.fixed_s + blocks * block_bytes / tier.bytes_per_s
            return fetching < compute.fixed_s + compute.seconds(0, blocks * block_tokens)

        low, high = 1, most // block_tokens
        if not quicker(high):
            return None
        while low < high:
            middle = (low + high) // 2
            low, high = (low, middle) if quicker(middle) else (middle + 1, high)
        return low * block_tokens
