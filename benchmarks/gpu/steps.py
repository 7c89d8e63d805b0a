"""Decode steps with and without streamed products: `python -m benchmarks.gpu.steps --precision bf16|fp8 --json OUT`.

ms of a step of few rows, which read the same 1,152 tokens up to places of their own: products and small kernels count,
attention hardly. Of a model with experts also how many of a layer's are touched in a step, on average.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path

import numpy as np
import torch

from benchmarks.engine_gpu import PRECISIONS
from benchmarks.gpu.random_weights import load_random
from benchmarks.gpu.shapes import SHAPES, write_shape
from engine.execution.cuda.experts import experts_touched
from engine.execution.cuda.probe import Probe
from engine.execution.cuda.runner import CudaRunner
from engine.startup.assembly import assemble
from engine.startup.options import ReplicaOptions

COUNTS = (1, 8, 16, 32, 48, 64)
_STEPS, _ROUNDS = 20, 4


def step_ms(runner: CudaRunner, probe: Probe, rows: int) -> float:
    """The least of some rounds of steps that are queued one behind the other."""
    # Apart, so that each row has a token of its own, and chooses experts of its own.
    positions = probe.apart(rows)
    slots = np.arange(rows, dtype=np.int32)
    probe.decode(positions)
    took = []
    for _ in range(_ROUNDS):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        torch.cuda.synchronize()
        start.record()
        for _ in range(_STEPS):
            runner.steps.run(slots, positions, slots)
        end.record()
        end.synchronize()
        took.append(start.elapsed_time(end) / _STEPS)
    return round(float(min(took)), 3)


def measure(runner: CudaRunner) -> dict[str, dict[int, float]]:
    products = [*runner.fused.linears(), runner.fused.head]
    streamed = [product.streamed_rows for product in products]
    probe, found = Probe(runner, 1_152), {}
    for name in ("not streamed", "streamed"):
        for product, rows in zip(products, streamed, strict=True):
            product.streamed_rows = rows if name == "streamed" else 0
        runner.steps.forget()
        found[name] = {rows: step_ms(runner, probe, rows) for rows in COUNTS}
        print(name, found[name], flush=True)
    for rows in COUNTS[1:]:
        step_ms(runner, probe, rows)
        if (experts := experts_touched(runner.fused.mixtures())) is not None:
            found.setdefault("experts touched", {})[rows] = experts
    print("experts touched", found.get("experts touched"), flush=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shape", choices=sorted(SHAPES), default="llama-3.1-8b")
    parser.add_argument("--precision", choices=sorted(PRECISIONS), default="bf16")
    parser.add_argument("--json", type=Path, required=True)
    args = parser.parse_args()
    quantize, kv_dtype = PRECISIONS[args.precision]
    with tempfile.TemporaryDirectory() as folder:
        options = ReplicaOptions(
            write_shape(Path(folder) / "model", args.shape), "unix:unused", Path(folder), "gpu", b"", device="cuda",
            dtype="bfloat16", quantize=quantize, kv_dtype=kv_dtype, swap_share=0.0, context=8_192,
            max_running=max(COUNTS), kv_memory=20 << 30, served=args.shape,
        )  # fmt: skip
        runner = assemble(options, load_random).engine.executor.runner
        assert isinstance(runner, CudaRunner)
        with torch.inference_mode():
            report = {"machine": torch.cuda.get_device_name(), "step_ms": measure(runner)}
    args.json.write_text(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
