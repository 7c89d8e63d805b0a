"""Prometheus metrics of the gateway's processes: the version, and the resources that each process uses."""

from __future__ import annotations

import contextlib
import os
import platform
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path

from prometheus_client import ProcessCollector
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

_PID_SUFFIX = ".pid"


class BuildInfo(Collector):
    """A constant 1, with the version and Python's as labels."""

    def collect(self) -> Iterable[Metric]:
        """One family."""
        family = GaugeMetricFamily("turnpike_build_info", "Always 1; the labels say what runs", labels=_BUILD_LABELS)
        family.add_metric([version(), platform.python_version()], 1)
        return [family]


_BUILD_LABELS = ["version", "python"]


def version() -> str:
    """The version of what runs."""
    try:
        return metadata.version("turnpike")
    except metadata.PackageNotFoundError:  # a source tree that is not installed
        return "unknown"


class ProcessMetrics(Collector):
    """prometheus_client's `process_*` of every worker, with the worker's name as a label.

    Workers that share a folder write their process ids there; the one that is scraped reads all of them from /proc.
    """

    def __init__(self, worker: str, folder: Path | None) -> None:
        self._worker = worker
        self._folder = folder
        if folder is not None:
            folder.joinpath(worker + _PID_SUFFIX).write_text(str(os.getpid()))

    def collect(self) -> Iterable[Metric]:
        """A family for each metric, with a sample for each running worker."""
        families: dict[str, Metric] = {}
        for worker, process in self._processes():
            for metric in ProcessCollector(pid=lambda pid=process: pid, registry=None).collect():  # type: ignore[misc]
                family = families.setdefault(
                    metric.name, Metric(metric.name, metric.documentation, metric.type, metric.unit)
                )
                for sample in metric.samples:
                    family.add_sample(sample.name, {**sample.labels, "worker": worker}, sample.value)
        return families.values()

    def _processes(self) -> Iterable[tuple[str, int]]:
        if self._folder is None:
            yield self._worker, os.getpid()
            return
        for path in sorted(self._folder.glob("*" + _PID_SUFFIX)):
            with contextlib.suppress(OSError, ValueError):  # another worker is writing it
                yield path.name.removesuffix(_PID_SUFFIX), int(path.read_text())
