"""The table of the engine on a GPU: what it says of figures, and that the page has it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks.gpu.table import WORKLOADS, page, table

FIGURES = Path(__file__).resolve().parents[2] / "docs" / "figures.md"


def report(share: float) -> dict[str, Any]:
    """A report whose figures are what is aimed at in bf16, times `share`."""
    runs = {row.name: [{row.figure: row.bf16 * share}] for row in WORKLOADS}
    return {**runs, "start_s": 20.0 * share}


def rows(ours: dict[str, Any]) -> dict[str, list[str]]:
    """The cells of each workload, vLLM as quick as what is aimed at."""
    text = table({"bf16": ours, "fp8": ours}, {mode: report(1.0) for mode in ("invariant", "bf16", "fp8")})
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines()[2:]]
    return dict(zip([row.name for row in WORKLOADS] + ["start"], cells, strict=True))


def test_what_misses_its_aim_is_marked() -> None:
    slower = rows(report(1.001))
    assert all("missed" in cells[1] for name, cells in slower.items() if name != "saturated")
    assert "missed" not in slower["saturated"][1]
    assert "missed" in rows(report(0.999))["saturated"][1]


def test_what_meets_its_aim_is_not_marked() -> None:
    assert not [cells[1] for cells in rows(report(1.0)).values() if "missed" in cells[1]]


def test_the_median_of_runs_that_ended_counts() -> None:
    runs = [{"s": 1.0}, {"s": 2.0}, {"s": 60.0, "stopped": True}, {"s": 2.1}]
    assert rows({**report(1.0), "batch32": runs})["batch32"][1] == "2.00"
    assert rows({**report(1.0), "batch32": runs[2:3]})["batch32"][1] == "–"


def test_the_page_of_figures_has_the_table_of_the_last_results() -> None:
    assert page() in FIGURES.read_text(encoding="utf-8")
