"""Dashboards and alerts name what /metrics of a running installation has, and each panel shows something there."""

from __future__ import annotations

import asyncio
import re
import time
import urllib.error
from pathlib import Path

import pytest
import yaml
from openai import OpenAI
from prometheus_client.parser import text_string_to_metric_families

from scripts import dashboards
from tests.deploy.prometheus import RULES, running_prometheus
from tests.e2e.processes import command, first_key, get, process, wait_ready
from tests.servers import free_port
from tests.tracing.collector import Collector, running_collector

pytestmark = [pytest.mark.e2e, pytest.mark.slow]
_NAME = re.compile(r"\b((?:turnpike|process)_[a-z0-9_]+)\b")
_LABELS = re.compile(r'\{[^}]*\}|"[^"]*"|\b(?:by|on|ignoring|group_left)\s*\([^)]*\)')


def test_the_files_are_what_the_script_writes() -> None:
    assert {path: path.read_text() for path in dashboards.files()} == dashboards.files()
    assert sorted(dashboards.FOLDER.glob("*.json")) == sorted(dashboards.files())


def names_in(expression: str) -> set[str]:
    """The metrics of an expression."""
    return set(_NAME.findall(_LABELS.sub(" ", expression)))


async def test_every_name_exists_and_every_panel_has_data(tmp_path: Path) -> None:
    async with running_collector() as collector:
        await asyncio.to_thread(check, tmp_path, collector)


def check(folder: Path, collector: Collector) -> None:
    port = free_port()
    flags = ("--otlp-endpoint", collector.endpoint, "--trace-ratio", "1", "--gpu-hour-cost", "2.5")
    limits = ("--device-bandwidth", "40", "--device-teraflops", "1")
    words = ("serve", "--port", str(port), "--data-dir", str(folder / "data"), *flags, *limits)
    with (
        process(folder / "serve", *words) as serving,
        running_prometheus(folder / "p", f"127.0.0.1:{port}") as prometheus,
    ):
        base = f"http://127.0.0.1:{port}"
        wait_ready(base, [serving], seconds=120)
        client, model = OpenAI(api_key=first_key(serving), base_url=f"{base}/v1"), "stdlib-qa"
        end = time.monotonic() + 20
        while time.monotonic() < end:
            client.chat.completions.create(model=model, messages=[{"role": "user", "content": "What is os.path?"}])
        families = text_string_to_metric_families(get(f"{base}/metrics")[1].decode())
        published = {sample for family in families for sample in samples_of(family.name, family.type)}
        rules = [rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]]
        panels = [panel for _, of in dashboards.DASHBOARDS.values() for panel in of]
        asked = [(rule["alert"], rule["expr"]) for rule in rules]
        asked += [(panel.title, expression) for panel in panels for expression, _ in panel.queries]
        missing = {(name, what) for what, expression in asked for name in names_in(expression) - published}
        assert not missing
        empty = []
        for panel in panels:
            for expression, _ in panel.queries:
                try:
                    found = prometheus.query(expression.replace("$__rate_interval", "15s"))
                except urllib.error.HTTPError as error:
                    raise AssertionError(f"{panel.title}: {error.read().decode()}") from error
                values = [float(series["value"][1]) for series in found]
                if not panel.rare and (not values or any(value != value for value in values)):  # NaN
                    empty.append((panel.title, expression, values))
        assert not empty
        for rule in rules:  # nothing is wrong with a fresh installation
            assert not prometheus.query(rule["expr"]), rule["alert"]
        assert collector.roots(), "and its requests are traced"
        data = ("--data-dir", str(folder / "data"))
        explained = command("replicas", "explain", "--seconds", "2", "--gpu-hour-cost", "2.5", *data)
        assert explained.returncode == 0, explained.stderr
        assert re.search(r"^replica-0 \(stdlib-qa\): .+\.\n  at work \d+% of \d+ s; a second: ", explained.stdout)
        assert "2.50 USD an hour; a million tokens: nothing was done" in explained.stdout
        examined = command("doctor", *data)
        assert "WRONG" not in examined.stdout, examined.stdout
        assert examined.returncode == 0
        assert f"gateway: ready at {base}" in examined.stdout


def samples_of(family: str, kind: str) -> set[str]:
    """The names that samples of a family have."""
    if kind == "counter":
        return {f"{family}_total", family}
    if kind == "histogram":
        return {f"{family}_bucket", f"{family}_count", f"{family}_sum"}
    return {family}
