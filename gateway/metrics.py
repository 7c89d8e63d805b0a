"""Prometheus metrics of one gateway worker, and of its replicas as their beats tell. Never a tenant in a label."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Protocol

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from billing.settler import Settler
from billing.spool import Spool
from billing.usage import Usage
from gateway.fleet.link import Link

_FIRST_TOKEN = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
_BETWEEN = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5)
_NOT_IN_NAMES = re.compile(r"[^a-zA-Z0-9_:]")


class _HasLinks(Protocol):
    links: list[Link]


class _ReplicaFigures(Collector):
    """What the last beat of each replica said."""

    def __init__(self, fleet: _HasLinks) -> None:
        self._fleet = fleet

    def collect(self) -> Iterable[Metric]:
        labels = ["replica", "model"]
        families: dict[str, Metric] = {}

        def put(name: str, help_text: str, link: Link, value: float) -> None:
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
                put(_NOT_IN_NAMES.sub("_", name), "As told by the replica's beat", link, value)
        return families.values()


class Metrics:
    """All metrics, in a registry of their own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
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
        self._ended = Counter("turnpike_generations", "Generations ended", ["model", "status"], registry=self.registry)

    def watch(self, *, fleet: _HasLinks, spool: Spool, settler: Settler) -> None:
        """Add figures that are asked for when scraped."""
        self.registry.register(_ReplicaFigures(fleet))
        for name, text, value in (
            ("turnpike_spool_waiting", "Records durable and not settled", lambda: float(settler.lag)),
            ("turnpike_spool_lag_seconds", "How long records have been waiting", lambda: float(settler.lag_s)),
            ("turnpike_spool_corrupt", "Damaged stretches found in spools", lambda: float(spool.corrupt)),
        ):
            Gauge(name, text, registry=self.registry).set_function(value)

    def answered(self, model: str, status: int) -> None:
        """An HTTP answer went out; `model` is empty where there is none."""
        self._requests.labels(model, str(status)).inc()

    def first_token(self, model: str, seconds: float) -> None:
        """The first token came."""
        self._first_token.labels(model).observe(seconds)

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

    def exposition(self) -> bytes:
        """All of it in Prometheus' text format."""
        return generate_latest(self.registry)
