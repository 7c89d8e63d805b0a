"""Decides how many drafts each request of a step gets: as many as bring more tokens a second than plain decoding.

A row more is worth the chance that its token is emitted; it costs everybody in the step the time that the step becomes
longer. Rows are taken lane by lane, the likeliest first, as long as the step's tokens a second grow. Requests of the
batch lane get rows that cost nothing. No draft at all is a normal answer.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import inf
from operator import mul

from engine.speculation.verify_costs import VerifyCosts, expected_tokens
from protocol.requests import LANES, Lane

_LEAST_GAIN = 1.03
"""Expected tokens a second by which a step with drafts must be better than one without."""
_FREE = 1.005
"""A step that is at most so many times as long costs nothing."""
_BEST_CHANCE = 0.95
_ASKED_AGAIN, _KV_STEP = 64, 256.0
"""Steps after which it is found out anew whether drafts could pay, and tokens of KV that count as the same."""
_FIRST_PROBE, _DOUBLINGS, _PROBE_ROWS, _PROBE_CHANCE = 32, 4, 3, 0.5
"""Where drafts do not pay by the table, a step verifies some rows of at least this chance now and then: the table may
be wrong, and only steps that run can say so. After how many steps doubles with each such step, up to 512."""
_PROBING = 4
"""Steps after which that is put off again, if nobody has had a draft of such a chance: asking takes time, too."""
_SWITCHES_AFTER = 2
"""Steps in a row that must agree before drafting goes on or off."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """The drafts that a request could get; `chances`: how likely each is right if those before it are."""

    arrival: int
    lane: Lane
    chances: Sequence[float]


@dataclass(frozen=True, slots=True)
class StepLoad:
    """A step without drafts: how many `requests` decode or prefill, the `rows` that decode, the mean `kv` of these,
    µs that prefills take `beside` them, and the longest that the step may take (`target`)."""

    requests: int
    rows: int
    kv: float
    beside: float = 0.0
    target: float = float("inf")


class DraftPlanner:
    """`costs`: what steps take; None: every draft is free, as in tests."""

    def __init__(self, costs: VerifyCosts | None, most: int) -> None:
        self.costs = costs
        self.most = most
        self.drafting = True
        """Whether drafts paid when steps last agreed about it."""
        self._against = 0
        self._spare: dict[tuple[int, float], float] = {}
        self._asked = 0
        self._in_vain = 0
        """Steps since drafts were last verified, in which they would not have paid."""
        self._probed = self._probing = 0
        """Times that this was ended, and steps that the present one takes."""

    def could_pay(self, load: StepLoad, asking_us: float = 0.0) -> bool:
        """Whether drafts of the best chance would pay in such a step if asking for them takes so long: if not, nobody
        needs to be asked for any."""
        if self._probes(load):
            self._probing += 1
            if self._probing > _PROBING:
                self._end_probing()
        could_pay = self.affords(load, asking_us)
        self._in_vain += not could_pay
        return could_pay

    def affords(self, load: StepLoad, asking_us: float) -> bool:
        """Whether drafts of the best chance would bring more in such a step than asking for them takes."""
        return self.costs is None or self._probes(load) or self._spare_us(load) > asking_us

    def _probes(self, load: StepLoad) -> bool:
        """Whether the next drafts are verified to find out what that takes."""
        return not load.beside and self._in_vain >= _FIRST_PROBE << min(self._probed, _DOUBLINGS)

    def _spare_us(self, load: StepLoad) -> float:
        if load.beside:
            return self._most_spare_us(load)
        # Costs change slowly, and this is asked before each step.
        key = load.rows, load.kv // _KV_STEP
        if len(self._spare) >= _ASKED_AGAIN or self._asked >= _ASKED_AGAIN:
            self._spare.clear()
            self._asked = 0
        self._asked += 1
        if key not in self._spare:
            self._spare[key] = self._most_spare_us(load)
        return self._spare[key]

    def _most_spare_us(self, load: StepLoad) -> float:
        """The longest that drafts of the best chance may take, in µs beside their step, to be worth it; below 0 if they
        never are."""
        plain, spare = self._took(load, 0, 0.0), -1.0
        for drafts in range(1, self.most + 1):
            # One request's drafts, or everybody's.
            for drafting in {1, load.rows}:
                gained = (expected_tokens(_BEST_CHANCE, drafts) - 1) * drafting
                worth = plain * (load.requests + gained) / load.requests / _LEAST_GAIN
                spare = max(spare, worth - self._took(load, drafts * drafting, 0.0))
        return spare

    def chain_length(self, load: StepLoad, asked: int, chance: float, cost_us: Callable[[int, int], float]) -> int:
        """How many drafts for each of `asked` requests bring the most tokens a second, where they cost time before it
        is known whether they are right. `chance`: of each draft; `cost_us`: by requests and drafts of each. 0: none."""
        if self.costs is None or self._probes(load):
            return self.most
        best, best_rate = 0, load.requests / self._took(load, 0, 0.0) * _LEAST_GAIN
        for drafts in range(1, self.most + 1):
            took = self._took(load, drafts * asked, cost_us(asked, drafts))
            rate = (load.requests + (expected_tokens(chance, drafts) - 1) * asked) / took
            if took <= load.target and rate > best_rate:
                best, best_rate = drafts, rate
        return best

    def refused(self) -> None:
        """Nobody was asked for drafts in a step, since they would have taken too long."""
        self._in_vain += 1

    def plan(
        self,
        load: StepLoad,
        candidates: Sequence[Candidate],
        room: int,
        drafting_us: float,
        *,
        queued: bool = False,
    ) -> dict[int, int]:
        """By arrival, how many of its drafts each candidate gets: `room` together at most. `drafting_us`: what asking
        for them took, beside the step. `queued`: the step is queued, so that drafts are for the one behind it."""
        rows: list[tuple[int, float, int]] = []
        for candidate in candidates:
            lane, arrival = LANES.index(candidate.lane), candidate.arrival
            rows += [(lane, -survives, arrival) for survives in accumulate(candidate.chances, mul)]
        rows.sort()
        if self._probes(load) and self.costs is not None:
            probed = [row for row in rows if -row[1] >= _PROBE_CHANCE][: min(room, _PROBE_ROWS)]
            return _counted(probed) if queued else self._probe(probed)
        batch = LANES.index("batch")
        first_of_batch = bisect_left(rows, (batch, -inf, 0))
        urgent = rows[: min(first_of_batch, room)]
        count = self._best_count(load, urgent, drafting_us)
        taken = urgent[:count]
        for row in rows[first_of_batch : first_of_batch + room - count]:
            if not self._is_free(load, len(taken)):
                break
            taken.append(row)
        if not self._agreed(wanted=bool(taken)):
            self._in_vain += 1
            return {}
        if not queued:
            self._in_vain = 0
        return _counted(taken)

    def _probe(self, rows: Sequence[tuple[int, float, int]]) -> dict[int, int]:
        if rows:
            self._end_probing()
        return _counted(rows)

    def _end_probing(self) -> None:
        self._in_vain = self._probing = 0
        self._probed += 1

    def _best_count(self, load: StepLoad, rows: Sequence[tuple[int, float, int]], drafting_us: float) -> int:
        """How many of these rows, from the first on, bring the most tokens a second."""
        if self.costs is None:
            return len(rows)
        tokens = list(accumulate((-survives for _, survives, _ in rows), initial=float(load.requests)))
        best, best_rate = 0, tokens[0] / self._took(load, 0, 0.0) * _LEAST_GAIN
        for count in self.costs.sizes(load.rows, len(rows)):
            took = self._took(load, count, drafting_us)
            if took > load.target:
                break
            if tokens[count] / took > best_rate:
                best, best_rate = count, tokens[count] / took
        return best

    def _is_free(self, load: StepLoad, drafts: int) -> bool:
        return self.costs is None or self._took(load, drafts + 1, 0.0) <= self._took(load, drafts, 0.0) * _FREE

    def _took(self, load: StepLoad, drafts: int, drafting_us: float) -> float:
        assert self.costs is not None
        if not drafts:
            return self.costs.step_us(load.rows, load.kv) + load.beside
        return self.costs.verify_us(load.rows + drafts, load.kv) + load.beside + drafting_us

    def _agreed(self, *, wanted: bool) -> bool:
        """Whether drafts are verified now; it changes after some steps that agree."""
        self._against = 0 if wanted == self.drafting else self._against + 1
        if self._against >= _SWITCHES_AFTER:
            self.drafting, self._against = wanted, 0
        return wanted and self.drafting


def _counted(rows: Sequence[tuple[int, float, int]]) -> dict[int, int]:
    """How many of these rows are of each arrival."""
    return Counter(arrival for _, _, arrival in rows)
