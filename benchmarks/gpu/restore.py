"""Blocks brought back from host memory beside decoding: `python -m benchmarks.gpu.restore --json OUT`.

Whole blocks of the 8B shape (8 MiB in bf16) are copied from pinned memory on a stream of their own while 32 rows are
decoded; and the sums of blocks on the device, which say whether they came back as they went.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.gpu.random_weights import load_random
from benchmarks.gpu.shapes import write_shape
from engine.execution.cuda.probe import Probe
from engine.execution.cuda.runner import CudaRunner
from engine.kernels.block_sums import block_sums
from engine.startup.assembly import assemble
from engine.startup.options import ReplicaOptions

ROWS, STEPS, BLOCKS = 32, 400, 256


def steps_ms(runner: CudaRunner, probe: Probe) -> list[float]:
    """ms of decode steps, one after another."""
    positions = np.full(ROWS, probe.length - 1, np.int32)
    slots = np.arange(ROWS, dtype=np.int32)
    took = []
    for _ in range(STEPS):
        began = time.perf_counter()
        runner.steps.run(slots, positions, slots)
        torch.cuda.current_stream().synchronize()
        took.append((time.perf_counter() - began) * 1e3)
    return took


def quantiles(took: list[float]) -> dict[str, float]:
    return {
        "p50": round(float(np.quantile(took, 0.5)), 3),
        "p99": round(float(np.quantile(took, 0.99)), 3),
        "max": round(max(took), 3),
    }


def measure(runner: CudaRunner) -> dict[str, Any]:
    data = runner.memories[0].data
    size = data[0].numel() * data.itemsize
    host = torch.empty(BLOCKS, *data.shape[1:], dtype=data.dtype, pin_memory=True)
    targets = torch.arange(1_000, 1_000 + BLOCKS, device=data.device)
    weights = torch.randint(1 << 62, (size // 8,), device=data.device)
    host.copy_(data[1_000 : 1_000 + BLOCKS])
    side = torch.cuda.Stream()
    report: dict[str, Any] = {"block_mib": size / 2**20}

    def restore(rounds: int) -> tuple[torch.cuda.Event, torch.cuda.Event]:
        first, last = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        with torch.cuda.stream(side):
            first.record()
            for _ in range(rounds):
                for index in range(BLOCKS):
                    data[1_000 + index].copy_(host[index], non_blocking=True)
            last.record()
        return first, last

    def rate(events: tuple[torch.cuda.Event, torch.cuda.Event], rounds: int) -> float:
        events[1].synchronize()
        return round(size * BLOCKS * rounds / events[0].elapsed_time(events[1]) / 1e6, 1)

    probe = Probe(runner, 1_152)
    probe.decode(np.full(ROWS, probe.length - 1, np.int32))
    report["restore alone, GB/s"] = rate(restore(2), 2)
    report["decode alone, ms"] = quantiles(steps_ms(runner, probe))
    rounds = max(1, int(STEPS * 0.0055 * 55e9 / (size * BLOCKS)))
    events = restore(rounds)
    report["decode beside restore, ms"] = quantiles(steps_ms(runner, probe))
    still = not events[1].query()
    report["restore beside decode, GB/s"] = rate(events, rounds)
    report["restore outlasted the steps"] = still
    sums = block_sums(data, targets, weights)
    data[1_000 : 1_000 + BLOCKS].zero_()
    rate(restore(1), 1)
    report["sums agree"] = torch.equal(block_sums(data, targets, weights), sums)
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    for _ in range(20):
        block_sums(data, targets, weights)
    end.record()
    end.synchronize()
    report["sums, GB/s"] = round(20 * size * BLOCKS / start.elapsed_time(end) / 1e6, 1)
    return report


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, required=True)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        model = write_shape(Path(folder) / "model", "llama-3.1-8b")
        options = ReplicaOptions(
            model, "unix:unused", Path(folder), "gpu", b"", device="cuda", dtype="bfloat16", swap_share=0.0,
            context=8_192, max_running=32, kv_memory=20 << 30, served="8b",
        )  # fmt: skip
        runner = assemble(options, load_random).engine.executor.runner
        assert isinstance(runner, CudaRunner)
        with torch.inference_mode():
            report = {"machine": torch.cuda.get_device_name(), **measure(runner)}
    print(json.dumps(report))
    args.json.write_text(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
