"""The seconds of work that a replica has, as a gateway knows them: its own requests at once, others' as it is told."""

from __future__ import annotations

import math
from collections.abc import Mapping

from msgspec import Struct, field

from protocol.replicas import Tier
from protocol.requests import LANES, Lane

_FORGOTTEN_S = 2.0
"""After so many seconds without a heartbeat a part 1/e of what others had in the last one is still counted."""


class ReplicaFigures(Struct, frozen=True, kw_only=True):
    """What a replica says of its speed and its queue. Times in seconds.

    `token_s`: a prompt token that is computed. `step_s` and `row_s`: the fixed part of a step with decodes, and each
    decode in it; `chunk`: prompt tokens of a step beside them. `fetch_s`: a token from each farther tier. `queued`:
    prompt tokens that are to be computed, by lane. `decodes`: requests that decode.
    """

    token_s: float = 30e-6
    step_s: float = 5e-3
    row_s: float = 50e-6
    chunk: float = 2048.0
    fetch_s: Mapping[Tier, float] = field(default_factory=dict)
    queued: Mapping[Lane, float] = field(default_factory=dict)
    decodes: int = 0


class Credit(Struct):
    """What a request that was sent is expected to take of its replica, until it has its first token or has ended."""

    seconds: float
    lane: Lane
    rows: int = 1
    began_at: float = math.nan
    """When the replica began with it."""


class ReplicaWork:
    """One replica's work, as seen by one gateway. `now` is a monotonic clock in seconds."""

    def __init__(self) -> None:
        self.figures = ReplicaFigures()
        self._credits: dict[int, Credit] = {}
        """Own requests whose prompts are to be computed, by identity."""
        self._decoding: dict[int, Credit] = {}
        self._decodes = 0
        """Outputs of own requests that decode."""
        self._others: dict[Lane, float] = dict.fromkeys(LANES, 0.0)
        self._others_decoding = 0
        self._heard_at = -math.inf

    def hear(self, figures: ReplicaFigures, now: float) -> None:
        """A heartbeat. What it counts beyond our own requests belongs to other gateways."""
        self.figures = figures
        pressed = figures.token_s * self.pressure
        for lane in LANES:
            own = sum(self._left(credit, now) for credit in self._credits.values() if credit.lane == lane)
            self._others[lane] = max(0.0, figures.queued.get(lane, 0.0) * pressed - own)
        self._others_decoding = max(0, figures.decodes - self._decodes)
        self._heard_at = now

    @property
    def decodes(self) -> int:
        """Requests that decode, others' as of the last heartbeat."""
        return self._decodes + self._others_decoding

    @property
    def pressure(self) -> float:
        """How many times as long a prompt takes beside what decodes."""
        figures, decodes = self.figures, self.decodes
        if not decodes:
            return 1.0
        return 1.0 + (figures.step_s + decodes * figures.row_s) / max(1e-9, figures.chunk * figures.token_s)

    def seconds_of(self, tokens: float) -> float:
        """Seconds until so many prompt tokens are computed, beside what decodes."""
        return tokens * self.figures.token_s * self.pressure

    def wait(self, lane: Lane, now: float) -> float:
        """Seconds of prompts that are computed before one that comes now: those of its lane and of higher ones."""
        before = LANES[: LANES.index(lane) + 1]
        faded = math.exp(-max(0.0, now - self._heard_at) / _FORGOTTEN_S)
        own = sum(self._left(credit, now) for credit in self._credits.values() if credit.lane in before)
        return own + faded * sum(self._others[name] for name in before)

    def backlog(self, now: float) -> float:
        """Seconds of work in all lanes: prompts that are to be computed, and a step of what decodes."""
        figures = self.figures
        step = figures.step_s + self.decodes * figures.row_s if self.decodes else 0.0
        return self.wait(LANES[-1], now) + step

    def add(self, credit: Credit) -> None:
        """A request is sent: from this moment on its work counts."""
        self._credits[id(credit)] = credit

    def begin(self, credit: Credit, seconds: float, now: float) -> None:
        """The replica has begun with its prompt, of which so many seconds are to be computed."""
        credit.seconds, credit.began_at = seconds, now

    def end_prefill(self, credit: Credit) -> None:
        """Its prompt is computed: it decodes."""
        if self._credits.pop(id(credit), None) is not None:
            self._decoding[id(credit)] = credit
            self._decodes += credit.rows

    def end(self, credit: Credit) -> None:
        """It has ended, at whatever point."""
        self._credits.pop(id(credit), None)
        if self._decoding.pop(id(credit), None) is not None:
            self._decodes -= credit.rows

    def forget(self) -> None:
        """The replica was lost: nothing is known of it any more."""
        self._credits.clear()
        self._decoding.clear()
        self._decodes = self._others_decoding = 0
        self._others = dict.fromkeys(LANES, 0.0)
        self._heard_at = -math.inf

    @staticmethod
    def _left(credit: Credit, now: float) -> float:
        if math.isnan(credit.began_at):
            return credit.seconds
        return max(0.0, credit.seconds - (now - credit.began_at))
