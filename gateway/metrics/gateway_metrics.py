"""Prometheus metrics of a gateway worker, and of its replicas as their heartbeats report. No label names a tenant.

Where several workers share a socket, any of them may be scraped and reports for all: their parent sets
`PROMETHEUS_MULTIPROC_DIR`, a folder where prometheus_client keeps each worker's values in memory-mapped files (1 to 2
µs more per update). The files are named by worker and not by process id, so a restarted worker continues the counts of
the dead one: no total ever falls, and a dead worker's spool stays in the sum until its next start.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Literal, Protocol, TypeVar

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest, values
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.mmap_dict import MmapedDict
from prometheus_client.multiprocess import MultiProcessCollector
from prometheus_client.openmetrics import exposition as openmetrics
from prometheus_client.registry import Collector

from billing.money import PICO
from billing.settlement.settler import Settler
from billing.spool.spool import Spool
from billing.usage import UsageEvent
from gateway.fleet.replica_link import ReplicaLink
from gateway.fleet.replica_rates import FleetRates
from gateway.metrics.process_metrics import BuildInfo, ProcessMetrics
from protocol.metric_help import metric_help_text
from protocol.requests import LANES
from protocol.trace_context import TraceContext
from storage.disk_space import DiskWatch

FILE_KINDS = ("counter", "histogram", "gauge_sum", "gauge_max", "gauge_min")
"""The kinds of metrics in use, as the files' names begin."""
_FIRST_BYTES = 128 * 1024
_LARGEST_VALUE = 8 * 1024
"""More bytes than one value takes, with its name and labels."""


class AllocatedDict(MmapedDict):
    """A file of values whose disk space is allocated beforehand: on a full disk it raises OSError, and a write to the
    mapping cannot kill the process."""

    def _init_value(self, key: str) -> None:
        if self._used + _LARGEST_VALUE > self._capacity:
            os.posix_fallocate(self._f.fileno(), 0, 2 * self._capacity)
        super()._init_value(key)  # type: ignore[no-untyped-call]


def allocate_files(folder: Path, worker: str) -> None:
    """Create this worker's files, and make prometheus_client allocate them. Raises OSError if the disk is full."""
    values.MmapedDict = AllocatedDict  # type: ignore[attr-defined]
    for kind in FILE_KINDS:
        with folder.joinpath(f"{kind}_{worker}.db").open("ab") as file:
            os.posix_fallocate(file.fileno(), 0, _FIRST_BYTES)


_END = b"# EOF\n"
_FIRST_TOKEN = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
_BETWEEN = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5)
_NOT_IN_NAMES = re.compile(r"[^a-zA-Z0-9_:]")


Labelled = TypeVar("Labelled", Counter, Histogram)


def _by_labels(metric: Labelled) -> Callable[..., Labelled]:
    """The metric with these labels, as `labels` gives it, without its lock and its checks. Labels are few."""
    return cache(metric.labels)


class _HasLinks(Protocol):
    links: list[ReplicaLink]


class _ReplicaMetrics(Collector):
    """The metrics in the last heartbeat of each replica."""

    def __init__(self, fleet: _HasLinks, rates: FleetRates | None) -> None:
        self._fleet = fleet
        self._rates = rates

    def collect(self) -> Iterable[Metric]:
        labels = ["replica", "model"]
        families: dict[str, Metric] = {}

        def put(name: str, help_text: str, link: ReplicaLink, value: float) -> None:
            counter = name.endswith("_total")
            family = families.get(name)
            if family is None:
                kind = CounterMetricFamily if counter else GaugeMetricFamily
                family = families[name] = kind(name, help_text, labels=labels)
            model = link.hello.model.name if link.hello else ""
            family.add_sample(name, dict(zip(labels, (link.replica, model), strict=True)), value)

        for link in self._fleet.links:
            put("turnpike_replica_healthy", "1 if the replica can take requests", link, float(link.healthy()))
            beat = link.beat
            if beat is None:
                continue
            put("turnpike_replica_steps_total", "Steps of the engine", link, float(beat.steps))
            put("turnpike_replica_running", "Requests in the batch", link, float(beat.running))
            put("turnpike_replica_waiting", "Requests queued, all lanes", link, float(sum(beat.waiting.values())))
            self._put_economics(put, link)
            for name, value in beat.metrics.items():
                put(_NOT_IN_NAMES.sub("_", name), metric_help_text(name), link, value)
        yield from families.values()
        yield self._lanes()

    def _put_economics(self, put: Callable[[str, str, ReplicaLink, float], None], link: ReplicaLink) -> None:
        if self._rates is None:
            return
        if cost := self._rates.costs.replica_hour:
            put("turnpike_replica_cost_per_hour", "What the replica costs an hour, by the settings", link, cost)
        if (rates := self._rates.of(link)) is None:
            return
        for name, text, value in (
            ("busy_ratio", "The share of the last minute in which its steps ran", rates.busy),
            ("bandwidth_ratio", "The share of its memory's bandwidth that its steps used (MBU)", rates.bandwidth),
            ("arithmetic_ratio", "The share of its arithmetic that its steps used (MFU)", rates.arithmetic),
        ):
            if value is not None:
                put(f"turnpike_replica_{name}", text, link, value)

    def _lanes(self) -> Metric:
        """Engine time by lane: by it a replica's cost is divided among lanes."""
        labels = ["replica", "model", "lane"]
        family = CounterMetricFamily("turnpike_replica_lane_seconds", "Engine time that a lane got", labels=labels)
        for link in self._fleet.links:
            if link.beat is None or link.hello is None:
                continue
            lanes = dict.fromkeys(map(str, LANES), 0)
            for flow, micros in link.beat.service.items():
                lane = flow.partition("/")[0]
                lanes[lane] = lanes.get(lane, 0) + micros
            for lane, micros in lanes.items():
                family.add_metric([link.replica, link.hello.model.name, lane], micros / 1e6)
        return family


class GatewayMetrics:
    """All metrics of the worker named `worker`. Where workers share a folder, there may be one of these per process."""

    def __init__(self, worker: str = "") -> None:
        self.shared = "PROMETHEUS_MULTIPROC_DIR" in os.environ
        """Whether other workers report for this one, so that `refresh` must be called regularly."""
        if self.shared:
            allocate_files(Path(os.environ["PROMETHEUS_MULTIPROC_DIR"]), worker)
            values.ValueClass = values.MultiProcessValue(lambda: worker)  # type: ignore[no-untyped-call]
        self._polled: list[tuple[Gauge, Callable[[], float]]] = []
        self.registry = CollectorRegistry()
        self._local = CollectorRegistry()
        """Metrics that are collected when the scrape comes, by the worker that is scraped."""
        self._local.register(BuildInfo())
        folder = Path(os.environ["PROMETHEUS_MULTIPROC_DIR"]) if self.shared else None
        self._local.register(ProcessMetrics(worker, folder))
        self._database_up = self._up("turnpike_database_up", "1 if the database answered when it was last asked")
        self._bus_up = self._up("turnpike_bus_up", "1 if revocations of keys reach this worker: Redis is connected")
        self._oldest_hold = Gauge(
            "turnpike_oldest_hold_seconds",
            "How long the oldest hold of money has been open, of all gateways'",
            registry=self.registry,
            multiprocess_mode="max",
        )
        self._requests = _by_labels(
            Counter("turnpike_requests", "Requests answered", ["model", "status"], registry=self.registry)
        )
        self._first_token = _by_labels(
            Histogram(
                "turnpike_time_to_first_token_seconds",
                "From admission to the first token",
                ["model", "lane"],
                buckets=_FIRST_TOKEN,
                registry=self.registry,
            )
        )
        self._between = _by_labels(
            Histogram(
                "turnpike_inter_token_seconds",
                "Between output tokens",
                ["model"],
                buckets=_BETWEEN,
                registry=self.registry,
            )
        )
        self._tokens = _by_labels(
            Counter("turnpike_tokens", "Tokens billed", ["model", "meter"], registry=self.registry)
        )
        self._tried_again = _by_labels(
            Counter(
                "turnpike_requests_tried_again",
                "Requests of which no token had come, sent to another replica",
                ["model"],
                registry=self.registry,
            )
        )
        self._continuations = _by_labels(
            Counter(
                "turnpike_continuations",
                "Requests that went on at another replica after tokens had come",
                ["model", "reason", "numerics"],
                registry=self.registry,
            )
        )
        self._cut_off = _by_labels(
            Counter(
                "turnpike_connections_cut_off",
                "Connections ended before their client had the last answer: slow for too long, or one too many",
                ["reason"],
                registry=self.registry,
            )
        )
        self._limited = _by_labels(
            Counter(
                "turnpike_rate_limited",
                "Requests refused because a rate limit was reached",
                ["meter"],
                registry=self.registry,
            )
        )
        self._ended = _by_labels(
            Counter("turnpike_generations", "Generations ended", ["model", "lane", "status"], registry=self.registry)
        )
        self._billed = _by_labels(
            Counter(
                "turnpike_billed_money",
                "What requests cost their tenants, in units of the currency; the ledger has it exactly",
                ["model", "lane", "currency"],
                registry=self.registry,
            )
        )
        self._traced = _by_labels(
            Counter(
                "turnpike_traced_requests",
                "Requests whose traces the collector has, or that were left out",
                ["outcome"],
                registry=self.registry,
            )
        )

    def _up(self, name: str, text: str) -> Gauge:
        gauge = Gauge(name, text, registry=self.registry, multiprocess_mode="min")
        gauge.set(1)
        return gauge

    def watch(
        self,
        *,
        fleet: _HasLinks,
        spool: Spool,
        settler: Settler,
        disk: DiskWatch,
        connections: Callable[[], int] = lambda: 0,
        refused: Callable[[], int] = lambda: 0,
        lingering: Callable[[], int] = lambda: 0,
        limits_degraded: Callable[[], bool] = lambda: False,
        waterfalls_dropped: Callable[[], int] = lambda: 0,
        rates: FleetRates | None = None,
        backlogs: Mapping[str, Callable[[], float]] | None = None,
    ) -> None:
        """Add metrics that are polled. `refused`: entries of replicas' journals that nothing can be billed from.
        `backlogs`: of each served model."""
        self._local.register(_ReplicaMetrics(fleet, rates))
        gauges: tuple[tuple[str, str, Literal["sum", "max", "min"], Callable[[], float]], ...] = (
            ("turnpike_spool_waiting", "Records durable and not settled", "sum", lambda: settler.lag),
            ("turnpike_spool_lag_seconds", "How long records have been waiting", "max", lambda: settler.lag_s),
            (
                "turnpike_refused_records",
                "Records and journals' entries that nothing can be billed from, since the workers' start",
                "sum",
                lambda: settler.total.refused + refused(),
            ),
            ("turnpike_connections", "Open connections of clients", "sum", connections),
            (
                "turnpike_connections_lingering",
                "Connections that are being closed while their client still sends or reads",
                "sum",
                lingering,
            ),
            ("turnpike_spool_corrupt", "Damaged stretches found in spools", "sum", lambda: spool.corrupt),
            (
                "turnpike_disk_free_bytes",
                "Free bytes on the fullest disk of spool and database",
                "min",
                lambda: disk.free_bytes,
            ),
            (
                "turnpike_limits_degraded",
                "1 while Redis is away and a worker keeps its share of every rate limit by itself",
                "max",
                limits_degraded,
            ),
            (
                "turnpike_waterfalls_dropped",
                "Requests whose times were left out, since the workers' start: the database was away for too long",
                "sum",
                waterfalls_dropped,
            ),
            ("turnpike_disk_full", "1 while requests are refused because that disk is full", "max", lambda: disk.full),
        )
        for name, text, over_workers, value in gauges:
            gauge = Gauge(name, text, registry=self.registry, multiprocess_mode=over_workers)
            self._polled.append((gauge, value))

        backlog = Gauge(
            "turnpike_backlog_seconds",
            "Work that waits for a model's replicas, in seconds of one replica: prompts that are to be computed, there "
            "or at a gateway, and a step of what decodes; for autoscaling",
            ["model"],
            registry=self.registry,
            multiprocess_mode="max",
        )
        self._polled += [(backlog.labels(model), value) for model, value in (backlogs or {}).items()]

    def reachable(self, *, database: bool, bus: bool) -> None:
        """Record whether the database answers and the bus is connected."""
        self._database_up.set(database)
        self._bus_up.set(bus)

    def oldest_hold(self, seconds: float) -> None:
        """Record how long the oldest hold has been open."""
        self._oldest_hold.set(seconds)

    def answered(self, model: str, status: int) -> None:
        """Count an HTTP response. `model` is empty if the request named none."""
        self._requests(model, str(status)).inc()

    def first_token(self, model: str, lane: str, seconds: float, trace: TraceContext | None = None) -> None:
        """Record the time to the first token. `trace`: the request's, which is shown as an example if it is sampled."""
        exemplar = {"trace_id": trace.trace_id} if trace is not None and trace.sampled else None
        self._first_token(model, lane).observe(seconds, exemplar)

    def traced(self, outcome: str, requests: int) -> None:
        """Count requests whose traces were `sent` to the collector, or `dropped`."""
        self._traced(outcome).inc(requests)

    def tried_again(self, model: str) -> None:
        """Count a request that was sent to another replica before any of its tokens had come."""
        self._tried_again(model).inc()

    def continued(self, model: str, reason: str, *, same_numerics: bool) -> None:
        """Count a request that went on at another replica after tokens had come. `reason`: what became of the first;
        `same_numerics`: the tokens are those that would have come there."""
        self._continuations(model, reason, "same" if same_numerics else "other").inc()

    def rate_limited(self, meter: str) -> None:
        """Count a request that a rate limit refused."""
        self._limited(meter).inc()

    def cut_off(self, reason: str) -> None:
        """Count a connection that was ended before its client had read everything."""
        self._cut_off(reason).inc()

    def between_tokens(self, model: str, seconds: float, tokens: int) -> None:
        """Record `tokens` tokens that arrived `seconds` after those before."""
        histogram = self._between(model)
        for _ in range(tokens):
            histogram.observe(seconds / tokens)

    def finished(self, model: str, lane: str, status: str, event: UsageEvent, currency: str) -> None:
        """Count a generation whose usage is durable, its tokens and its price."""
        self._ended(model, lane, status).inc()
        self._billed(model, lane, currency).inc(event.cost_pico / PICO)
        usage = event.usage
        for meter, tokens in usage.meters().items():
            if tokens:
                self._tokens(model, meter).inc(tokens)

    def refresh(self) -> None:
        """Poll the metrics added by `watch`, so that whichever worker is scraped can report them."""
        for gauge, value in self._polled:
            gauge.set(value())

    def exposition_with_exemplars(self) -> bytes:
        """The metrics of a worker that is alone, in OpenMetrics' format, with traces as examples. Workers that share
        files keep no examples in them."""
        self.refresh()
        write: Callable[[CollectorRegistry], bytes] = openmetrics.generate_latest
        return write(self.registry).removesuffix(_END) + write(self._local)

    def exposition(self) -> bytes:
        """The metrics of all workers in Prometheus' text format; those of replicas as this worker sees them."""
        self.refresh()
        registry = self.registry
        if self.shared:
            registry = CollectorRegistry()
            MultiProcessCollector(registry)  # type: ignore[no-untyped-call]
        return generate_latest(registry) + generate_latest(self._local)
