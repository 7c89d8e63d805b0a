"""How requests were served, as answers have it: how they ended, the time to the first token, the wait in queues."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

from msgspec import Struct

from billing.calendar import format_instant
from billing.service_levels.service_hours import ENDS, Served, added, quantile


class Quantiles(Struct, frozen=True, kw_only=True):
    """Durations in milliseconds, each at most a factor of 1.42 too large; none where nothing was measured."""

    requests: int
    p50_ms: float | None
    p99_ms: float | None


class LaneWait(Quantiles, frozen=True, kw_only=True):
    """How long requests of a lane waited in a replica's queue."""

    lane: str


class ServiceObject(Struct, frozen=True, kw_only=True):
    """How the requests that were admitted since `since` were served. Gateways count in memory and write every 5
    seconds: what a gateway that was killed had not written is missing here, never on the bill."""

    since: str
    ok: int
    cancelled: int
    failed: int
    first_token: Quantiles
    duration: Quantiles
    queue: list[LaneWait]


def service_object(since: int, counted: Iterable[Served]) -> ServiceObject:
    """What was counted since an instant."""
    ends = dict.fromkeys(ENDS, 0)
    histograms: defaultdict[str, dict[int, int]] = defaultdict(dict)
    lanes: defaultdict[str, dict[int, int]] = defaultdict(dict)
    for one in counted:
        counts = {one.bucket: one.requests}
        if one.measure in ends:
            ends[one.measure] += one.requests
            histograms["duration"] = added(histograms["duration"], counts)
        elif one.measure == "queue":
            lanes[one.lane] = added(lanes[one.lane], counts)
        else:
            histograms[one.measure] = added(histograms[one.measure], counts)
    return ServiceObject(
        since=format_instant(since),
        **{str(name): number for name, number in ends.items()},
        first_token=Quantiles(**_quantiles(histograms["first_token"])),
        duration=Quantiles(**_quantiles(histograms["duration"])),
        queue=[LaneWait(lane=lane, **_quantiles(counts)) for lane, counts in sorted(lanes.items())],
    )


def _quantiles(counts: Mapping[int, int]) -> dict[str, Any]:
    found = {"p50_ms": quantile(counts, 500), "p99_ms": quantile(counts, 990)}
    return {"requests": sum(counts.values())} | {
        name: None if microseconds is None else microseconds / 1000 for name, microseconds in found.items()
    }
