"""Which tile of our linear kernel is quickest? `python -m benchmarks.gpu.tune_linears --json OUT`

Tiles are compiled in several processes first, then timed one by one on weights that rotate through memory.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
from pathlib import Path

import torch

from benchmarks.gpu.kernels import SHAPES, graph_us
from engine.kernels.linear import LinearTile, linear, tile_for

DEVICE = torch.device("cuda")


def candidates(rows: int, outputs: int, inputs: int) -> list[LinearTile]:
    """Tiles worth trying."""
    tall = 16 if rows <= 16 else 32 if rows <= 32 else 64 if rows <= 64 else 128
    found = [tile_for(rows, outputs, inputs)]
    if rows <= 64:
        for out, step, warps, stages in (
            (64, 256, 4, 3), (64, 256, 4, 2), (64, 128, 4, 4), (64, 128, 4, 5), (64, 64, 4, 8), (128, 128, 8, 4),
            (128, 128, 4, 4), (128, 64, 4, 6),
        ):  # fmt: skip
            found.append(LinearTile(out, tall, step, warps, stages))
        for out, step, warps, stages in ((32, 256, 4, 4), (32, 128, 4, 6), (16, 256, 2, 5), (64, 128, 4, 5)):
            found.append(LinearTile(out, tall, step, warps, stages, swapped=False))
    else:
        for out, high, step, warps, stages, swapped in (
            (64, 128, 64, 4, 5, True), (64, 128, 128, 4, 3, True), (128, 128, 64, 8, 4, False),
            (64, 64, 128, 4, 4, True), (128, 64, 128, 8, 3, True), (64, 128, 64, 4, 5, False),
        ):  # fmt: skip
            found.append(LinearTile(out, high, step, warps, stages, swapped=swapped))
    return list(dict.fromkeys(found))


def compile_all(task: tuple[str, int]) -> None:
    name, rows = task
    outputs, inputs = SHAPES[name]
    weight = torch.zeros(outputs, inputs, device=DEVICE, dtype=torch.bfloat16)
    x = torch.zeros(rows, inputs, device=DEVICE, dtype=torch.bfloat16)
    for tile in candidates(rows, outputs, inputs):
        try:
            linear(x, weight, tile=tile)
        except Exception as error:
            print(name, rows, tile, type(error).__name__, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", default="1,32,64,128")
    parser.add_argument("--json", type=Path, required=True)
    args = parser.parse_args()
    counts = [int(rows) for rows in args.rows.split(",")]
    tasks = [(name, rows) for name in SHAPES for rows in counts]
    with multiprocessing.get_context("spawn").Pool(15) as pool:
        pool.map(compile_all, tasks, chunksize=1)
    report: dict[str, object] = {}
    for name, (outputs, inputs) in SHAPES.items():
        copies = max(2, int(400e6 // (outputs * inputs * 2)) + 1)
        weights = [torch.randn(outputs, inputs, device=DEVICE, dtype=torch.bfloat16) * 0.02 for _ in range(copies)]
        for rows in counts:
            x = torch.randn(rows, inputs, device=DEVICE, dtype=torch.bfloat16)
            out = torch.empty(rows, outputs, device=DEVICE, dtype=torch.bfloat16)
            times = []
            for tile in candidates(rows, outputs, inputs):
                try:
                    took = graph_us(
                        lambda i, t=tile, y=out, w=weights, v=x: linear(v, w[i], y, tile=t),
                        copies,
                        5,  # type: ignore[misc]
                    )
                except Exception:  # too large for shared memory
                    continue
                times.append((round(took, 2), str(tile)))
            library = graph_us(lambda i, y=out, w=weights, v=x: torch.mm(v, w[i].t(), out=y), copies, 5)  # type: ignore[misc]
            now = str(tile_for(rows, outputs, inputs))
            report[f"{name} {rows}"] = {
                "now": next((took for took, tile in times if tile == now), None),
                "best": sorted(times)[:4], "library": round(library, 2),
            }  # fmt: skip
            print(name, rows, json.dumps(report[f"{name} {rows}"]).replace("LinearTile", ""), flush=True)
            args.json.write_text(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
