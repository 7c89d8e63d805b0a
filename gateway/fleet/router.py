"""Chooses the replica from which a request is expected to have its first token soonest. No I/O: a simulator drives it.

Expected seconds of a replica: the work that is before the request there, what of its prompt must be computed, beside
what decodes, and what must be fetched from a farther tier. A request so leaves the replica that holds its prefix
exactly when the wait there is longer than the prefix takes to be computed elsewhere. A choice counts as work at once,
within the same call: a burst that comes between two heartbeats is spread.

- Work that a request makes others wait for is weighed too (`_OTHERS_WAIT`): computing a prefix a second time is worth
  it only if it saves more than the time it takes from requests that come later.
- Where no replica holds anything, the one goes first that was given a new group of prompts longest ago.
- Equal ones are told apart by a rendezvous of the prompt's key with the replicas' names, never by order or clock, so
  that several gateways agree.
- A prefix that many requests want has further homes (`gateway.fleet.hot_prefixes`).
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Generic, Literal, Protocol, TypeAlias, TypeVar

from msgspec import Struct

from gateway.fleet.hot_prefixes import HotPrefixes, Warming
from gateway.fleet.prefix_map import Name, PrefixMap
from gateway.fleet.replica_work import Credit, ReplicaFigures, ReplicaWork
from protocol.replicas import Tier
from protocol.requests import Lane

_OTHERS_WAIT, _BUSY_S = 1.0, 10.0
"""How many seconds others are expected to wait for each second that a replica computes, where all replicas were busy
for the last `_BUSY_S` seconds; none where all were idle."""
_NEAR_S = 0.0002
"""Replicas whose seconds differ by less than this are equal. With more a burst fills one replica after the other."""
_COLD = 0.1
"""A prompt of which no replica holds this part begins a group."""
_GONE_S = 3600.0
"""What is known of a replica that was lost so long ago is dropped."""

Why: TypeAlias = Literal["cached", "spilled", "least_work", "new_group", "only"]
"""`cached`: it holds the longest prefix. `spilled`: another one holds more, and takes longer. `least_work`: several
hold the same. `new_group`: none holds anything. `only`: there is no other."""


class Named(Protocol):
    """What is asked of a replica."""

    @property
    def replica(self) -> str:
        """Its name."""
        ...


ReplicaT = TypeVar("ReplicaT", bound=Named)


class Routed(Struct, frozen=True, kw_only=True):
    """A request that needs a replica. `names` and `ends`: its prompt's prefixes and the tokens up to each. `key`: what
    is alike for requests that continue one another. A lease on its first `leased` tokens lives until `until`. `rows`:
    outputs that will decode for it."""

    key: bytes
    tokens: int
    names: Sequence[Name] = ()
    ends: Sequence[int] = ()
    lane: Lane = "standard"
    leased: int = 0
    until: float = 0.0
    rows: int = 1


class Estimate(Struct, frozen=True):
    """The seconds that one replica would take, and how many of the prompt's tokens it is believed to hold."""

    wait: float
    compute: float
    fetch: float
    held: int
    weighed: float
    """What is compared: the sum of them, and what others wait for."""

    @property
    def seconds(self) -> float:
        """Until the first token."""
        return self.wait + self.compute + self.fetch


class Choice(Struct, Generic[ReplicaT], frozen=True):
    """The chosen replica. `others`: how many could have been chosen beside it; `next_s`: seconds of the best of them,
    `next_replica`. `warming`: the prompt's longest hot prefix, and where it is to be computed too."""

    replica: ReplicaT
    why: Why
    estimate: Estimate
    credit: Credit
    others: int = 0
    next_s: float = 0.0
    next_replica: str = ""
    warming: Warming | None = None


class Router:
    """The routing of one served model by one gateway worker. `clock`: monotonic seconds; `lease_clock`: seconds since
    the Unix epoch, in which leases end."""

    def __init__(self, clock: Callable[[], float], lease_clock: Callable[[], float] | None = None) -> None:
        self._clock = clock
        self._lease_clock = lease_clock or clock
        self._work: dict[str, ReplicaWork] = {}
        self._maps: dict[str, PrefixMap] = {}
        self._epochs: dict[str, int] = {}
        self._given: dict[str, int] = {}
        """replica -> the serial number of the last group that it was given."""
        self._lost: dict[str, float] = {}
        """replica -> when its link was lost; those lost longest ago first."""
        self._groups = 0
        self._busy, self._looked = 0.0, clock()
        """The share of replicas at which requests had to wait of late, and when that was looked at."""
        self.hot = HotPrefixes()

    # ------------------------------------------------------------ what replicas say

    def hear(self, replica: str, epoch: int, figures: ReplicaFigures, room: Mapping[Tier, int]) -> None:
        """A heartbeat of a replica. One that was started again holds nothing of what it held."""
        if self._epochs.get(replica) != epoch:
            self.forget(replica)
            self._epochs[replica] = epoch
        self._lost.pop(replica, None)
        self._drop_gone()
        self._work_of(replica).hear(figures, self._clock())
        self._map_of(replica).room = room

    def hear_prefix(self, replica: str, names: Sequence[Name], ends: Sequence[int], until: float, leased: int) -> None:
        """Another gateway sent this prefix there."""
        self._map_of(replica).store(names, ends, until=until, leased=leased)
        self._map_of(replica).trim(self._lease_clock())

    def holds(self, replica: str, names: Sequence[Name]) -> bool:
        """Whether the replica is believed to hold the prefix with these names."""
        return self._map_of(replica).find_held(names) == len(names)

    def lose(self, replica: str) -> None:
        """The link to the replica is lost, and with it the requests. Its memory may be as it was."""
        self._work_of(replica).forget()
        self._lost.pop(replica, None)
        self._lost[replica] = self._clock()

    def forget(self, replica: str) -> None:
        """The replica is gone, and its memory with it."""
        self._maps.pop(replica, None)
        self._epochs.pop(replica, None)
        self._given.pop(replica, None)
        if (work := self._work.get(replica)) is not None:
            work.forget()

    def hear_warmed(self, replica: str, names: Sequence[Name], ends: Sequence[int]) -> None:
        """A prefix was computed there ahead of requests."""
        self.hear_prefix(replica, names, ends, 0.0, 0)

    def begin(self, replica: str, estimate: Estimate, credit: Credit, computed: int, read: int) -> None:
        """The replica began with a request: it computes and reads so many tokens."""
        work = self._work_of(replica)
        work.begin(credit, work.seconds_of(computed), self._clock())
        self._map_of(replica).correct(estimate.held, read)

    def end_prefill(self, replica: str, credit: Credit) -> None:
        """The request has its first token."""
        if (work := self._work.get(replica)) is not None:
            work.end_prefill(credit)

    def end(self, replica: str, credit: Credit) -> None:
        """The request has ended, also where it was cancelled or refused."""
        if (work := self._work.get(replica)) is not None:
            work.end(credit)

    # ------------------------------------------------------------ choosing

    def choose(self, routed: Routed, replicas: Sequence[ReplicaT]) -> Choice[ReplicaT]:
        """One of at least one replica. What it takes there counts from now on: `end` must be called."""
        now = self._clock()
        estimates = [self.estimate(routed, replica.replica, now) for replica in replicas]
        self._observe(estimates, now)
        index, why = self._best(routed, replicas, estimates)
        chosen, estimate = replicas[index], estimates[index]
        best = min(
            (other for at, other in enumerate(estimates) if at != index), key=lambda one: one.weighed, default=None
        )
        next_replica = "" if best is None else replicas[estimates.index(best)].replica
        credit = self.add(routed, chosen.replica, estimate)
        return Choice(
            chosen,
            why,
            estimate,
            credit,
            len(replicas) - 1,
            0.0 if best is None else best.seconds,
            next_replica,
            self._warming(routed, replicas, now),
        )

    def add(self, routed: Routed, replica: str, estimate: Estimate) -> Credit:
        """Count a request that is sent to this replica."""
        credit = Credit(estimate.compute + estimate.fetch, routed.lane, routed.rows)
        self._work_of(replica).add(credit)
        prefixes = self._map_of(replica)
        prefixes.store(routed.names, routed.ends, until=routed.until, leased=routed.leased)
        prefixes.trim(self._lease_clock())
        return credit

    def estimate(self, routed: Routed, replica: str, now: float | None = None) -> Estimate:
        """The seconds that this replica would take."""
        now = self._clock() if now is None else now
        work = self._work_of(replica)
        held, tier = self._held(routed, replica)
        compute = work.seconds_of(max(1, routed.tokens - held))
        fetch = held * work.figures.fetch_s.get(tier, 0.0)
        if fetch > (whole := work.seconds_of(held)):  # computing it again is quicker
            compute, fetch = compute + whole, 0.0
        wait = self._wait(routed, replica, now)
        pressing = work.figures.row_s * work.decodes
        return Estimate(
            wait, compute, fetch, held, wait + (compute + fetch) * (1 + _OTHERS_WAIT * self._busy) + pressing
        )

    def backlog(self, replicas: Iterable[str]) -> float:
        """Seconds of work that these replicas have together."""
        now = self._clock()
        return sum(self._work_of(replica).backlog(now) for replica in replicas)

    @property
    def token_s(self) -> float:
        """Seconds of a computed prompt token, by the slowest replica that was heard of."""
        return max((work.figures.token_s for work in self._work.values()), default=ReplicaFigures().token_s)

    def _held(self, routed: Routed, replica: str) -> tuple[int, Tier]:
        """Tokens of the prompt that the replica holds, and the tier of the farthest of them."""
        prefixes = self._map_of(replica)
        count = prefixes.find_held(routed.names)
        if not count:
            return 0, "hbm"
        return min(routed.tokens - 1, routed.ends[count - 1]), prefixes.tier_of(routed.names[count - 1])

    def _wait(self, routed: Routed, replica: str, now: float) -> float:
        return self._work_of(replica).wait(routed.lane, now)

    def _best(self, routed: Routed, replicas: Sequence[ReplicaT], estimates: Sequence[Estimate]) -> tuple[int, Why]:
        if len(replicas) == 1:
            return 0, "only"
        least = min(estimate.weighed for estimate in estimates)
        near = [index for index, estimate in enumerate(estimates) if estimate.weighed <= least + _NEAR_S]
        most = max(estimate.held for estimate in estimates)
        if most < routed.tokens * _COLD:
            index = min(
                near, key=lambda at: (self._given.get(replicas[at].replica, 0), self._rank(routed, replicas[at]))
            )
            self._groups += 1
            self._given[replicas[index].replica] = self._groups
            return index, "new_group"
        index = min(near, key=lambda at: (-estimates[at].held, estimates[at].weighed, self._rank(routed, replicas[at])))
        if estimates[index].held < most:
            return index, "spilled"
        alike = sum(estimate.held == most for estimate in estimates)
        return index, "cached" if alike == 1 else "least_work"

    def _observe(self, estimates: Sequence[Estimate], now: float) -> None:
        """Learn how busy the replicas are. Requests that come at the same instant count as one."""
        busy = sum(estimate.wait > 0 for estimate in estimates) / len(estimates)
        self._busy += (busy - self._busy) * (1 - math.exp((self._looked - now) / _BUSY_S))
        self._looked = now

    def _rank(self, routed: Routed, replica: Named) -> bytes:
        return rendezvous(routed.key, replica.replica)

    def _warming(self, routed: Routed, replicas: Sequence[ReplicaT], now: float) -> Warming | None:
        """The longest hot prefix of this prompt, and another home for it if it lacks one."""
        if len(replicas) < 2:
            return None
        hot = self.hot.note(routed.names, routed.ends, self.token_s, now)
        if hot is None:
            return None
        name, tokens, homes = hot
        count = routed.names.index(name) + 1
        names = [replica.replica for replica in replicas]
        holding = [one for one in names if self.holds(one, routed.names[:count])]
        if len(holding) >= min(homes, len(names)) or not self.hot.may_warm(name, now):
            return Warming("", tokens, count)
        home = min((one for one in names if one not in holding), key=lambda one: rendezvous(repr(name).encode(), one))
        return Warming(home, tokens, count)

    def _drop_gone(self) -> None:
        last = self._clock() - _GONE_S
        while self._lost and next(iter(self._lost.values())) < last:
            replica = next(iter(self._lost))
            del self._lost[replica]
            self.forget(replica)
            self._work.pop(replica, None)

    def _work_of(self, replica: str) -> ReplicaWork:
        work = self._work.get(replica)
        if work is None:
            work = self._work[replica] = ReplicaWork()
        return work

    def _map_of(self, replica: str) -> PrefixMap:
        prefixes = self._maps.get(replica)
        if prefixes is None:
            prefixes = self._maps[replica] = PrefixMap({"hbm": 1 << 20})
        return prefixes


def rendezvous(key: bytes, replica: str) -> bytes:
    """The rank of a replica for a key: the replica with the lowest is the key's home."""
    return hashlib.blake2b(replica.encode(), digest_size=8, key=key[:64]).digest()
