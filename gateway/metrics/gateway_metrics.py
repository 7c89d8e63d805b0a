"""Prometheus metrics of a gateway, and of its replicas as their beats tell. Never a tenant in a label.

Where several workers listen on one socket, any of them may be scraped, and answers for all: their parent names a
folder in `PROMETHEUS_MULTIPROC_DIR`, where prometheus_client keeps each worker's figures in files mapped into memory
(1 to 2 µs more for each figure). The files bear the worker's name, not its process id: one that is started again
counts on where the dead one stopped, so no total ever falls, and what a dead worker had in its spool stays in the sum
until its next start takes it up.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Literal, Protocol

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest, values
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.mmap_dict import MmapedDict
from prometheus_client.multiprocess import MultiProcessCollector
from prometheus_client.registry import Collector

from billing.settlement.settler import Settler
from billing.spool.spool import Spool
from billing.usage import Usage
from gateway.fleet.replica_link import ReplicaLink
from gateway.metrics.process_metrics import BuildInfo, ProcessFigures
from protocol.metric_help import metric_help_text
from storage.disk_space import DiskWatch

KINDS = ("counter", "histogram", "gauge_sum", "gauge_max", "gauge_min")
"""The kinds of figures that we have, by the beginning of their files' names."""
_FIRST_BYTES = 128 * 1024
_LARGEST_VALUE = 8 * 1024
"""More than one figure takes, with its name and labels."""


class AllocatedDict(MmapedDict):
    """A file of figures without holes. Raises OSError when there is no room for more figures."""

    def _init_value(self, key: str) -> None:
        if self._used + _LARGEST_VALUE > self._capacity:
            os.posix_fallocate(self._f.fileno(), 0, 2 * self._capacity)
        super()._init_value(key)  # type: ignore[no-untyped-call]


def take_room(folder: Path, worker: str) -> None:
    """Let this worker keep its figures in such files, which are made now. Raises OSError when there is no room."""
    values.MmapedDict = AllocatedDict  # type: ignore[attr-defined]
    for kind in KINDS:
        with folder.joinpath(f"{kind}_{worker}.db").open("ab") as file:
            os.posix_fallocate(file.fileno(), 0, _FIRST_BYTES)


_FIRST_TOKEN = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
_BETWEEN = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5)
_NOT_IN_NAMES = re.compile(r"[^a-zA-Z0-9_:]")


class _HasLinks(Protocol):
    links: list[ReplicaLink]


class _ReplicaFigures(Collector):
    """What the last beat of each replica said."""

    def __init__(self, fleet: _HasLinks) -> None:
        self._fleet = fleet

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
            for name, value in beat.metrics.items():
                put(_NOT_IN_NAMES.sub("_", name), metric_help_text(name), link, value)
        return families.values()


class GatewayMetrics:
    """All metrics of the worker named `worker`; where workers share a folder, one of these per process."""

    def __init__(self, worker: str = "") -> None:
        self.shared = "PROMETHEUS_MULTIPROC_DIR" in os.environ
        """Whether other workers answer for this one, so that `refresh` has to be called now and then."""
        if self.shared:
            take_room(Path(os.environ["PROMETHEUS_MULTIPROC_DIR"]), worker)
            values.ValueClass = values.MultiProcessValue(lambda: worker)  # type: ignore[no-untyped-call]
        self._asked: list[tuple[Gauge, Callable[[], float]]] = []
        self.registry = CollectorRegistry()
        self._own = CollectorRegistry()
        """What is looked up when it is asked for, by whichever worker is."""
        self._own.register(BuildInfo())
        folder = Path(os.environ["PROMETHEUS_MULTIPROC_DIR"]) if self.shared else None
        self._own.register(ProcessFigures(worker, folder))
        self._database_up = self._up("turnpike_database_up", "1 if the database answered when it was last asked")
        self._bus_up = self._up("turnpike_bus_up", "1 if revocations of keys reach this worker: Redis is connected")
        self._requests = Counter("turnpike_requests", "Requests answered", ["model", "status"], registry=self.registry)
        self._first_token = Histogram(
            "turnpike_time_to_first_token_seconds",
            "From admission to the first token",
            ["model"],
            buckets=_FIRST_TOKEN,
            registry=self.registry,
        )
        self._between = Histogram(
            "turnpike_inter_token_seconds",
            "Between output tokens",
            ["model"],
            buckets=_BETWEEN,
            registry=self.registry,
        )
        self._tokens = Counter("turnpike_tokens", "Tokens billed", ["model", "meter"], registry=self.registry)
        self._tried_again = Counter(
            "turnpike_requests_tried_again", "Requests sent to a second replica", ["model"], registry=self.registry
        )
        self._cut_off = Counter(
            "turnpike_connections_cut_off",
            "Connections ended before their client had the last answer: slow for too long, or one too many",
            ["reason"],
            registry=self.registry,
        )
        self._ended = Counter("turnpike_generations", "Generations ended", ["model", "status"], registry=self.registry)

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
    ) -> None:
        """Add figures that are asked for when scraped. `refused`: how many entries of journals made no sense."""
        self._own.register(_ReplicaFigures(fleet))
        figures: tuple[tuple[str, str, Literal["sum", "max", "min"], Callable[[], float]], ...] = (
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
            ("turnpike_disk_full", "1 while requests are refused because that disk is full", "max", lambda: disk.full),
        )
        for name, text, over_workers, value in figures:
            gauge = Gauge(name, text, registry=self.registry, multiprocess_mode=over_workers)
            self._asked.append((gauge, value))

    def reachable(self, *, database: bool, bus: bool) -> None:
        """Whether the database answers, and the bus is connected."""
        self._database_up.set(database)
        self._bus_up.set(bus)

    def answered(self, model: str, status: int) -> None:
        """An HTTP answer went out; `model` is empty where there is none."""
        self._requests.labels(model, str(status)).inc()

    def first_token(self, model: str, seconds: float) -> None:
        """The first token came."""
        self._first_token.labels(model).observe(seconds)

    def tried_again(self, model: str) -> None:
        """A request whose replica was lost was sent to another one."""
        self._tried_again.labels(model).inc()

    def cut_off(self, reason: str) -> None:
        """A connection that lingered was ended before its client had all that was written."""
        self._cut_off.labels(reason).inc()

    def between_tokens(self, model: str, seconds: float, tokens: int) -> None:
        """`tokens` tokens came, `seconds` after those before."""
        histogram = self._between.labels(model)
        for _ in range(tokens):
            histogram.observe(seconds / tokens)

    def finished(self, model: str, status: str, usage: Usage) -> None:
        """A generation ended and its usage is durable."""
        self._ended.labels(model, status).inc()
        for meter, tokens in usage.meters().items():
            if tokens:
                self._tokens.labels(model, meter).inc(tokens)

    def refresh(self) -> None:
        """Ask for what has to be asked for, so that whichever worker is scraped can tell it."""
        for gauge, value in self._asked:
            gauge.set(value())

    def exposition(self) -> bytes:
        """All of it, of all workers, in Prometheus' text format; replicas as this worker sees them."""
        self.refresh()
        registry = self.registry
        if self.shared:
            registry = CollectorRegistry()
            MultiProcessCollector(registry)  # type: ignore[no-untyped-call]
        return generate_latest(registry) + generate_latest(self._own)
