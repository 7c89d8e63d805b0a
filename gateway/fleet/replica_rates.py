"""What replicas do per second, by the counters in their heartbeats over the last minute, against what they cost."""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Iterable, Mapping

from msgspec import Struct

from gateway.fleet.replica_link import ReplicaLink

_EVERY_S = 5.0
_SAMPLES = 13
"""A minute of them."""
_MOST_GROWN = 1e18
"""Any counter grows by less in a minute."""
_GIGA, _TERA = 1e9, 1e12
_HOUR_S = 3600.0
_MILLION = 1e6


class DeviceCosts(Struct, frozen=True, kw_only=True):
    """What a replica's hardware costs and is able to do; 0: not said. `hour_cost`: of one device and hour, without
    power; `watts` of one device under load, `power_price` of a kilowatt-hour; `devices` of a replica. `gigabytes` and
    `teraflops` per second: of one device's memory and arithmetic."""

    currency: str = "USD"
    hour_cost: float = 0.0
    watts: float = 0.0
    power_price: float = 0.0
    devices: int = 1
    gigabytes: float = 0.0
    teraflops: float = 0.0

    @property
    def replica_hour(self) -> float:
        """What a replica costs an hour, busy or not."""
        return self.devices * (self.hour_cost + self.watts / 1000 * self.power_price)


class ReplicaRates(Struct, frozen=True, kw_only=True):
    """A replica over the last `seconds`. `busy`: the share of them in which steps ran. `bandwidth`, `arithmetic`: the
    shares of the device's limits that useful work took of its steps (MBU and MFU); None: a limit or the model's size is
    not known. `million_cost`: what a million prompt and output tokens cost; None where nothing is known of costs, or
    nothing was done. The others are counts per second."""

    seconds: float
    busy: float
    steps: float
    computed: float
    read: float
    output: float
    recomputed: float
    preempted: float
    drafting: float
    decodes_of_step: float
    bandwidth: float | None = None
    arithmetic: float | None = None
    million_cost: float | None = None


class FleetRates:
    """Samples of all replicas' counters. `costs`: of any replica."""

    def __init__(self, links: Iterable[ReplicaLink], costs: DeviceCosts) -> None:
        self.costs = costs
        self._links = links
        self._samples: dict[ReplicaLink, deque[tuple[float, int, Mapping[str, float]]]] = {}

    async def run(self) -> None:
        """Take samples for ever."""
        while True:
            self.sample(asyncio.get_running_loop().time())
            await asyncio.sleep(_EVERY_S)

    def sample(self, now: float) -> None:
        """Keep what each replica's last heartbeat says."""
        links = [link for link in self._links if link.up]
        self._samples = {link: self._samples[link] for link in links if link in self._samples}
        for link in links:
            if link.hello is None or link.beat is None:
                self._samples.pop(link, None)
                continue
            samples = self._samples.setdefault(link, deque(maxlen=_SAMPLES))
            if samples and samples[-1][1] != link.hello.epoch:
                samples.clear()  # it was started again: its counters began anew
            samples.append((now, link.hello.epoch, link.beat.metrics))

    def of(self, link: ReplicaLink) -> ReplicaRates | None:
        """Its rates; None until there are two samples."""
        samples = self._samples.get(link)
        if samples is None or len(samples) < 2 or samples[-1][0] <= samples[0][0]:
            return None
        (began, _, first), (ended, _, last) = samples[0], samples[-1]
        return rates_between(first, last, ended - began, self.costs)


def rates_between(
    first: Mapping[str, float], last: Mapping[str, float], seconds: float, costs: DeviceCosts
) -> ReplicaRates:
    """The rates by what a replica's counters were at the ends of `seconds`."""

    def grown(name: str) -> float:
        name = f"turnpike_engine_{name}_total"
        growth = last.get(name, 0.0) - first.get(name, 0.0)
        return min(max(0.0, growth), _MOST_GROWN) if math.isfinite(growth) else 0.0

    at_work, steps = grown("step_seconds"), grown("steps")
    tokens = grown("computed_tokens") + grown("read_tokens") + grown("output_tokens")
    moved, operations = grown("moved_bytes"), grown("operations")
    bandwidth, arithmetic = costs.devices * costs.gigabytes * _GIGA, costs.devices * costs.teraflops * _TERA
    cost = costs.replica_hour * seconds / _HOUR_S
    return ReplicaRates(
        seconds=seconds,
        busy=min(1.0, at_work / seconds),
        steps=steps / seconds,
        computed=grown("computed_tokens") / seconds,
        read=grown("read_tokens") / seconds,
        output=grown("output_tokens") / seconds,
        recomputed=grown("recomputed_tokens") / seconds,
        preempted=grown("preemptions") / seconds,
        drafting=min(1.0, grown("speculation_drafting_seconds") / seconds),
        decodes_of_step=grown("speculation_decodes") / steps if steps else 0.0,
        bandwidth=moved / at_work / bandwidth if moved and at_work and bandwidth else None,
        arithmetic=operations / at_work / arithmetic if operations and at_work and arithmetic else None,
        million_cost=cost / tokens * _MILLION if cost and tokens else None,
    )
