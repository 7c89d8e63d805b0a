"""Where the time of a mixture of experts goes: `python -m benchmarks.gpu.experts [--json OUT]`, by numbers of rows.

µs of each kernel, of both products in each way that computes them, and of the whole layer; experts are drawn at random
for each row. Weights of a layer are larger than the L2 cache, and each call has another routing.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import torch

from benchmarks.gpu.kernels import DEVICE, Report, graph_us
from engine.execution.cuda.experts import GroupedLinear
from engine.kernels.expert_routing import Routes, combine_and_norm, place_rows, route_rows, router_logits
from engine.kernels.grouped_linear import grouped_linear
from engine.kernels.grouped_linear_hopper import grouped_linear_streamed
from engine.kernels.rows import silu_mul

SHAPES = {"qwen3-30b-a3b": (128, 2_048, 768, 8), "mixtral": (8, 4_096, 14_336, 2)}
"""Experts, hidden and inner size, experts of a token."""
ROWS = (1, 8, 32, 128, 512, 2_048, 4_096)
_TIMES = 6


def trial(name: str, rows: int) -> Report:
    """µs of the parts of one layer with so many rows."""
    experts, hidden, inner, ranks = SHAPES[name]
    pairs = rows * ranks

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, device=DEVICE, dtype=torch.bfloat16) * 0.03

    gate_up = GroupedLinear(random(experts, 2 * inner, hidden), None, placed=False)
    down = GroupedLinear(random(experts, hidden, inner), None, placed=True)
    gate, h, x, norm = (
        random(-(-experts // 16) * 16, hidden),
        random(rows, hidden),
        random(rows, hidden),
        random(hidden),
    )
    logits = [torch.randn(rows, experts, device=DEVICE) for _ in range(_TIMES)]
    positions = torch.zeros(rows, dtype=torch.int32, device=DEVICE)
    ends = torch.zeros(_TIMES, experts, dtype=torch.int32, device=DEVICE)
    placed = random(pairs, hidden) if rows > 1 else x
    both, acted, results, out = (
        random(pairs, 2 * inner),
        random(pairs, inner),
        random(pairs, hidden),
        random(rows, hidden),
    )

    def route(index: int, high: int) -> Routes:
        return route_rows(
            logits[index], positions, experts=experts, ranks=ranks, normalize=True, high=high, ends=ends[index]
        )

    found: Report = {"router": graph_us(lambda _: router_logits(x, gate, None), _TIMES)}
    found["route"] = graph_us(lambda index: route(index, 16), _TIMES)
    routes = [route(index, 16) for index in range(_TIMES)]
    if rows > 1:
        found["place"] = graph_us(lambda index: place_rows(x, routes[index].places, placed), _TIMES)
    found["silu"] = graph_us(lambda _: silu_mul(both, acted), _TIMES)
    found["combine"] = graph_us(lambda index: combine_and_norm(h, results, routes[index], norm, 1e-6, out), _TIMES)
    for high in (8, 16, 32, 64, 128):
        if not pairs // experts // 8 <= high <= max(16, 8 * pairs // experts):
            continue
        at = [route(index, high) for index in range(_TIMES)]
        for what, product, source, into in (("gate_up", gate_up, placed, both), ("down", down, acted, results)):
            if high >= 16:
                found[f"{what} plain {high}"] = graph_us(
                    lambda index: grouped_linear(source, product.weight, into, at[index].tiles, placed=product.placed),
                    _TIMES,
                )
            if high <= 64:
                found[f"{what} hopper {high}"] = graph_us(
                    lambda index: grouped_linear_streamed(
                        source, product.weight, into, at[index].tiles, placed=product.placed
                    ),
                    _TIMES,
                )
        if high <= 64:
            found[f"gate_up gated {high}"] = graph_us(
                lambda index: grouped_linear_streamed(placed, gate_up.weight, acted, at[index].tiles, gated=True),
                _TIMES,
            )
    if rows > 1:
        routes = [route(index, 16) for index in range(_TIMES)]
        found["gate_up library"] = graph_us(lambda index: gate_up.by_library(placed, None, routes[index].tiles), _TIMES)
        found["down library"] = graph_us(lambda index: down.by_library(acted, None, routes[index].tiles), _TIMES)
    return {key: round(value, 1) for key, value in found.items()}


def main() -> None:
    """Print, and write with `--json`, each trial."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--shape", choices=sorted(SHAPES), default="qwen3-30b-a3b")
    arguments = parser.parse_args()
    torch.manual_seed(1)
    report: Report = {}
    for rows in ROWS:
        report[f"{rows} rows"] = trial(arguments.shape, rows)
        print(rows, report[f"{rows} rows"], flush=True)
    if arguments.json:
        arguments.json.write_text(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
