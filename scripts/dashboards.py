"""Write Grafana's dashboards: `python scripts/dashboards.py` rewrites deploy/grafana/*.json.

Each panel is a title, PromQL, and a unit. Import the files, and choose the Prometheus that scrapes the gateways. A test
fails when the files are not what this writes, or name a metric that /metrics does not have.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

FOLDER = Path(__file__).resolve().parent.parent / "deploy" / "grafana"
_WIDTH, _HEIGHT, _COLUMNS = 8, 7, 3
_VERSION = 39
"""Grafana's schema of dashboards: that of Grafana 10.4 and later."""


class Panel(NamedTuple):
    """`queries`: (PromQL, legend). `rare`: there may be nothing to show for days. `unit`: Grafana's name of it."""

    title: str
    unit: str
    queries: Sequence[tuple[str, str]]
    about: str = ""
    rare: bool = False


def _rate(metric: str, by: str, where: str = "") -> str:
    return f"sum by ({by}) (rate({metric}{where}[$__rate_interval]))"


def _quantile(share: float, metric: str, by: str) -> str:
    return f"histogram_quantile({share}, sum by (le, {by}) (rate({metric}_bucket[$__rate_interval])))"


def _engine(name: str) -> str:
    """A gauge of replicas, each once: every gateway tells of every replica."""
    return f"max by (replica) (turnpike_{name})"


def _engine_rate(name: str, of: str = "replica") -> str:
    each = f"max by (replica, model) (rate(turnpike_{name}[$__rate_interval]))"
    return f"sum by ({of}) ({each})"


_COST = "max by (replica, model) (turnpike_replica_cost_per_hour)"
_LANE_RATE = "max by (replica, model, lane) (rate(turnpike_replica_lane_seconds_total[$__rate_interval]))"
_LANE_SHARE = f"{_LANE_RATE} / on (replica, model) group_left sum by (replica, model) ({_LANE_RATE})"
_LANE_COST = f"sum by (model, lane) ({_LANE_SHARE} * on (replica, model) group_left {_COST})"
_LANE_BILLED = "3600 * sum by (model, lane) (rate(turnpike_billed_money_total[$__rate_interval]))"
_TOKENS = " + ".join(
    f"rate(turnpike_engine_{name}_tokens_total[$__rate_interval])" for name in ("computed", "read", "output")
)

DASHBOARDS: dict[str, tuple[str, Sequence[Panel]]] = {
    "gateway": (
        "Turnpike: gateway",
        (
            Panel("Requests", "reqps", [(_rate("turnpike_requests_total", "status"), "{{status}}")]),
            Panel(
                "Time to first token",
                "s",
                [
                    (_quantile(0.5, "turnpike_time_to_first_token_seconds", "lane"), "p50 {{lane}}"),
                    (_quantile(0.95, "turnpike_time_to_first_token_seconds", "lane"), "p95 {{lane}}"),
                    (_quantile(0.99, "turnpike_time_to_first_token_seconds", "lane"), "p99 {{lane}}"),
                ],
                "From admission on. Points of the graph lead to traces where Prometheus keeps exemplars.",
            ),
            Panel(
                "Time between tokens",
                "s",
                [(_quantile(0.99, "turnpike_inter_token_seconds", "model"), "p99 {{model}}")],
            ),
            Panel(
                "Generations ended",
                "reqps",
                [(_rate("turnpike_generations_total", "lane, status"), "{{lane}} {{status}}")],
            ),
            Panel(
                "Share of answers that are our errors",
                "percentunit",
                [
                    (
                        '(sum(rate(turnpike_requests_total{status=~"5.."}[$__rate_interval])) or vector(0))'
                        " / sum(rate(turnpike_requests_total[$__rate_interval]))",
                        "5xx",
                    )
                ],
            ),
            Panel(
                "Refused by a rate limit",
                "reqps",
                [(_rate("turnpike_rate_limited_total", "meter"), "{{meter}}")],
                rare=True,
            ),
            Panel(
                "Connections",
                "short",
                [("sum(turnpike_connections)", "open"), ("sum(turnpike_connections_lingering)", "lingering")],
            ),
            Panel("Cut off", "cps", [(_rate("turnpike_connections_cut_off_total", "reason"), "{{reason}}")], rare=True),
            Panel(
                "Database and bus",
                "short",
                [("min(turnpike_database_up)", "database"), ("min(turnpike_bus_up)", "bus")],
                "1: it answers.",
            ),
            Panel("Free disk", "bytes", [("min by (instance) (turnpike_disk_free_bytes)", "{{instance}}")]),
            Panel(
                "CPU", "short", [(_rate("process_cpu_seconds_total", "instance, worker"), "{{instance}} {{worker}}")]
            ),
            Panel("Memory", "bytes", [("sum by (instance) (process_resident_memory_bytes)", "{{instance}}")]),
            Panel("Traces", "reqps", [(_rate("turnpike_traced_requests_total", "outcome"), "{{outcome}}")], rare=True),
            Panel("Times left out", "short", [("sum(turnpike_waterfalls_dropped)", "requests")]),
        ),
    ),
    "fleet": (
        "Turnpike: replicas",
        (
            Panel("Healthy", "short", [(_engine("replica_healthy"), "{{replica}}")], "1: it takes requests."),
            Panel("Running", "short", [(_engine("replica_running"), "{{replica}}")]),
            Panel("Waiting", "short", [(_engine("replica_waiting"), "{{replica}}")]),
            Panel("Steps", "ops", [(_engine_rate("replica_steps_total"), "{{replica}}")]),
            Panel("At work", "percentunit", [(_engine("replica_busy_ratio"), "{{replica}}")]),
            Panel(
                "Bandwidth used (MBU)",
                "percentunit",
                [(_engine("replica_bandwidth_ratio"), "{{replica}}")],
                "Of --device-bandwidth, while steps run.",
            ),
            Panel(
                "Arithmetic used (MFU)",
                "percentunit",
                [(_engine("replica_arithmetic_ratio"), "{{replica}}")],
                "Of --device-teraflops, while steps run.",
            ),
            Panel(
                "Tokens",
                "short",
                [
                    (_engine_rate("engine_computed_tokens_total", "model"), "computed {{model}}"),
                    (_engine_rate("engine_read_tokens_total", "model"), "read {{model}}"),
                    (_engine_rate("engine_output_tokens_total", "model"), "output {{model}}"),
                ],
            ),
            Panel("Engine time by lane", "percentunit", [(f"sum by (lane) ({_LANE_RATE})", "{{lane}}")]),
            Panel("Preemptions", "ops", [(_engine_rate("engine_preemptions_total"), "{{replica}}")]),
            Panel("Free blocks", "short", [(_engine("engine_free_blocks"), "{{replica}}")]),
            Panel("Time gained by drafts", "s", [(_engine("engine_speculation_gained_seconds"), "{{replica}}")]),
            Panel(
                "Went on elsewhere",
                "reqps",
                [
                    (_rate("turnpike_continuations_total", "reason"), "after tokens: {{reason}}"),
                    (_rate("turnpike_requests_tried_again_total", "model"), "before any: {{model}}"),
                ],
                rare=True,
            ),
            Panel(
                "Ended without acknowledgement", "short", [(_engine("engine_journal_unacknowledged"), "{{replica}}")]
            ),
        ),
    ),
    "cache": (
        "Turnpike: prompt cache",
        (
            Panel(
                "Share of prompts that was read",
                "percentunit",
                [
                    (
                        f"{_engine_rate('engine_read_tokens_total', 'model')} / ("
                        f"{_engine_rate('engine_read_tokens_total', 'model')} + "
                        f"{_engine_rate('engine_computed_tokens_total', 'model')})",
                        "{{model}}",
                    )
                ],
            ),
            Panel("Billed tokens", "short", [(_rate("turnpike_tokens_total", "meter"), "{{meter}}")]),
            Panel(
                "Read from farther tiers",
                "short",
                [
                    (_engine_rate("engine_dram_read_tokens_total"), "host memory {{replica}}"),
                    (_engine_rate("engine_nvme_read_tokens_total"), "disk {{replica}}"),
                ],
            ),
            Panel("Cached blocks", "short", [(_engine("engine_cached_blocks"), "{{replica}}")]),
            Panel("Evicted blocks", "ops", [(_engine_rate("engine_evicted_blocks_total"), "{{replica}}")]),
            Panel("Computed again", "short", [(_engine_rate("engine_recomputed_tokens_total"), "{{replica}}")]),
            Panel("Waiting for farther tiers", "short", [(_engine("engine_restoring_requests"), "{{replica}}")]),
            Panel("Fetched too late", "ops", [(_engine_rate("engine_restores_late_total"), "{{replica}}")]),
            Panel("KV on disk", "bytes", [(_engine("engine_nvme_bytes"), "{{replica}}")]),
            Panel(
                "Damaged or unread records",
                "ops",
                [
                    (_engine_rate("engine_nvme_fetches_failed_total"), "disk {{replica}}"),
                    (_engine_rate("engine_dram_blocks_damaged_total"), "host memory {{replica}}"),
                ],
            ),
            Panel("Not saved", "ops", [(_engine_rate("engine_nvme_saves_dropped_total"), "{{replica}}")]),
        ),
    ),
    "money": (
        "Turnpike: money",
        (
            Panel(
                "Billed an hour",
                "short",
                [(f"3600 * {_rate('turnpike_billed_money_total', 'model, currency')}", "{{model}} {{currency}}")],
                "By the gateways' counters. The ledger has it exactly.",
            ),
            Panel(
                "Replicas cost an hour", "short", [(f"sum by (model) ({_COST})", "{{model}}")], "By --gpu-hour-cost."
            ),
            Panel(
                "Margin by model and lane, an hour",
                "short",
                [(f"({_LANE_BILLED}) - on (model, lane) ({_LANE_COST})", "{{model}} {{lane}}")],
                "A replica's cost is divided among lanes by engine time. Both must be in one currency.",
            ),
            Panel(
                "Cost of a million tokens",
                "short",
                [
                    (
                        f"1e6 / 3600 * sum by (model) ({_COST}) / sum by (model) (max by (replica, model) ({_TOKENS}))",
                        "{{model}}",
                    )
                ],
                "Prompt tokens, computed or read, and output.",
            ),
            Panel("Tokens", "short", [(_rate("turnpike_tokens_total", "model, meter"), "{{model}} {{meter}}")]),
            Panel("Records that wait to be settled", "short", [("sum(turnpike_spool_waiting)", "records")]),
            Panel("Oldest hold", "s", [("max(turnpike_oldest_hold_seconds)", "open for")]),
            Panel("… and how long", "s", [("max(turnpike_spool_lag_seconds)", "seconds")]),
            Panel(
                "Usage that cannot be billed",
                "short",
                [("sum(turnpike_refused_records)", "refused"), ("sum(turnpike_spool_corrupt)", "damaged")],
            ),
            Panel("Rate limits without Redis", "short", [("max(turnpike_limits_degraded)", "degraded")]),
        ),
    ),
}


def dashboard(name: str) -> dict[str, Any]:
    """The JSON of one dashboard."""
    title, panels = DASHBOARDS[name]
    return {
        "uid": f"turnpike-{name}",
        "title": title,
        "tags": ["turnpike"],
        "schemaVersion": _VERSION,
        "editable": True,
        "refresh": "30s",
        "time": {"from": "now-3h", "to": "now"},
        "templating": {
            "list": [{"name": "datasource", "type": "datasource", "query": "prometheus", "label": "Prometheus"}]
        },
        "panels": [_panel(number, panel) for number, panel in enumerate(panels)],
    }


def _panel(number: int, panel: Panel) -> dict[str, Any]:
    row, column = divmod(number, _COLUMNS)
    return {
        "id": number + 1,
        "type": "timeseries",
        "title": panel.title,
        "description": panel.about,
        "datasource": {"type": "prometheus", "uid": "${datasource}"},
        "gridPos": {"x": column * _WIDTH, "y": row * _HEIGHT, "w": _WIDTH, "h": _HEIGHT},
        "fieldConfig": {
            "defaults": {"unit": panel.unit, "min": 0 if "argin" not in panel.title else None},
            "overrides": [],
        },
        "targets": [
            {"refId": chr(ord("A") + at), "expr": expr, "legendFormat": legend, "exemplar": "_bucket" in expr}
            for at, (expr, legend) in enumerate(panel.queries)
        ],
    }


def files() -> dict[Path, str]:
    """What the files hold."""
    return {FOLDER / f"{name}.json": json.dumps(dashboard(name), indent=1) + "\n" for name in DASHBOARDS}


if __name__ == "__main__":
    for path, text in files().items():
        path.write_text(text)
