"""The table of the engine on a GPU, from the figures that were measured last: `python -m benchmarks.gpu.table`.

`results/` has what `benchmarks.engine_gpu` wrote (`bf16.json`, `fp8.json`) and what vLLM took for the same workloads.
Each figure is the median of its runs. A figure that misses what is aimed at is marked.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"
Report = dict[str, Any]


@dataclass(frozen=True)
class Workload:
    """A row of the table. `figure` of `name` in a report; what is aimed at in bf16 and in FP8."""

    text: str
    name: str
    figure: str
    bf16: float
    fp8: float
    digits: int
    more_is_better: bool = False

    def of(self, report: Report) -> float | None:
        """The median of a report's runs; None where it has none that ended."""
        runs = [run for run in report.get(self.name, ()) if not run.get("stopped")]
        return statistics.median(run[self.figure] for run in runs) if runs else None

    def meets(self, value: float, aim: float) -> bool:
        """Whether a figure is as good as what is aimed at."""
        return value >= aim if self.more_is_better else value <= aim


WORKLOADS = (
    Workload("batch 1, 1,024 in, 256 out: ms a token", "single_decode", "itl_ms", 4.3, 2.8, 2),
    Workload("32 × (1,024 in, 256 out), s", "batch32", "s", 2.2, 1.7, 2),
    Workload("512 × (1,024 in, 256 out), tokens/s out", "saturated", "out_tok_s", 6_500, 9_700, 0, True),
    Workload("32 prefixes of 8,192 × 16 requests, 64 out, s", "shared_prefix", "s", 14, 10, 2),
    Workload("the same again, prefixes cached, s", "shared_prefix_warm", "s", 4.2, 3.4, 2),
    Workload("32,768 in, 1 out, s", "long_prefill", "s", 1.3, 0.92, 2),
)
_START_TEXT = "process start to first token, kernels compiled before (not), s"
_START_AIM = 20.0
_HEAD = (
    "| workload | bf16 | vLLM: invariant, fast | aimed at | FP8 | vLLM FP8 | aimed at |\n|---|---|---|---|---|---|---|"
)


def table(ours: dict[str, Report], vllm: dict[str, Report]) -> str:
    """Markdown. `ours` by precision; `vllm` in its modes "invariant", "bf16" and "fp8"."""
    lines = [_HEAD]
    for row in WORKLOADS:
        theirs = ", ".join(_shown(row, vllm[mode]) for mode in ("invariant", "bf16"))
        lines.append(
            f"| {row.text} | {_marked(row, ours['bf16'], row.bf16)} | {theirs} | {row.bf16:,g} "
            f"| {_marked(row, ours['fp8'], row.fp8)} | {_shown(row, vllm['fp8'])} | {row.fp8:,g} |"
        )
    starts = [_start(ours[precision]) for precision in ("bf16", "fp8")]
    lines.append(f"| {_START_TEXT} | {starts[0]} | | {_START_AIM:g} | {starts[1]} | | {_START_AIM:g} |")
    return "\n".join(lines)


def _number(row: Workload, value: float) -> str:
    return f"{value:,.{row.digits}f}"


def _shown(row: Workload, report: Report) -> str:
    value = row.of(report)
    return "–" if value is None else _number(row, value)


def _marked(row: Workload, report: Report, aim: float) -> str:
    value = row.of(report)
    if value is None:
        return "–"
    shown = _number(row, value)
    return shown if row.meets(value, aim) else f"{shown} (missed)"


def _start(report: Report) -> str:
    warm, cold = report["start_s"], report.get("cold_kernels_start_s")
    shown = f"{warm:.1f}" if warm <= _START_AIM else f"{warm:.1f} (missed)"
    return shown if cold is None else f"{shown}; {cold:.0f}"


def read(names: dict[str, str]) -> dict[str, Report]:
    """Reports by key, from the files of these names."""
    return {key: json.loads((RESULTS / f"{name}.json").read_text()) for key, name in names.items()}


def sources(reports: Sequence[Report]) -> str:
    """On which machines and when reports were measured."""
    found = {f"{report['machine']}, torch {report['torch'].partition('+')[0]}, {report['date']}" for report in reports}
    return "; ".join(sorted(found))


def page() -> str:
    """The table with where it comes from, as in `docs/figures.md`."""
    ours = read({"bf16": "bf16", "fp8": "fp8"})
    vllm = read({"invariant": "vllm_bf16_invariant", "bf16": "vllm_bf16", "fp8": "vllm_fp8"})
    where = f"Ours: {sources(list(ours.values()))}. vLLM 0.25.1: {sources(list(vllm.values()))}."
    return f"{table(ours, vllm)}\n\n{where}"


if __name__ == "__main__":
    print(page())
