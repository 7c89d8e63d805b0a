"""What it takes to draw tokens on the device: `python -m benchmarks.gpu.sampler --json OUT`.

µs for a step of so many rows of 128,256 bf16 logits, by kernels (`engine.kernels.sampler`) and by PyTorch operations
(`engine.sampling.sampler`), which the host waits for; and how many of the tokens are the same.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from engine.kernels.likeliest import Likeliest
from engine.kernels.sampler import DeviceSampler, parameters_of
from engine.sampling.request_state import SamplingState
from engine.sampling.sampler import sample
from protocol.requests import Sampling

VOCABULARY, REPEATS = 128_256, 20
KINDS: dict[str, dict[str, Any]] = {
    "temperature": {},
    "top-p": {"top_p": 0.95},
    "top-k": {"top_k": 40},
    "top-k, top-p, min-p": {"top_k": 200, "top_p": 0.9, "min_p": 0.02},
}


def microseconds(work: Callable[[], object]) -> float:
    """The middle of some repeats, the device's work included."""
    took = []
    for _ in range(REPEATS):
        torch.cuda.synchronize()
        began = time.perf_counter()
        work()
        torch.cuda.synchronize()
        took.append(1e6 * (time.perf_counter() - began))
    return round(float(np.median(took[REPEATS // 4 :])), 1)


def measure(rows: int, kind: dict[str, Any], scale: float) -> dict[str, Any]:
    device = torch.device("cuda")
    logits = (scale * torch.randn(rows, VOCABULARY, device=device)).bfloat16()
    samplings = [Sampling(8, temperature=0.8, seed=seed, **kind) for seed in range(rows)]
    at = torch.arange(rows, dtype=torch.int32, device=device)
    tokens, latest = torch.empty_like(at), torch.empty_like(at)
    likeliest, sampler = Likeliest(rows, VOCABULARY, device), DeviceSampler(rows, VOCABULARY, device)
    given = np.stack([parameters_of(sampling) for sampling in samplings])
    there = torch.from_numpy(given.view(np.int32)).to(device)

    def by_kernels() -> None:
        likeliest(logits, at, at, tokens, latest)
        sampler(logits, given, there, at, at, tokens, latest)

    states = [SamplingState(sampling, range(position + 1)) for position, sampling in enumerate(samplings)]
    found: list[int] = []

    def by_operations() -> None:
        found[:] = sample(logits.float(), states)

    ours, general = microseconds(by_kernels), microseconds(by_operations)
    same = sum(a == b for a, b in zip(tokens.tolist(), found, strict=True))
    return {"rows": rows, "scale": scale, "kernels_us": ours, "operations_us": general, "same": f"{same} of {rows}"}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--json", type=Path, required=True)
    args = parser.parse_args()
    report: dict[str, list[dict[str, Any]]] = {}
    for name, kind in KINDS.items():
        for rows in (1, 32, 256):
            for scale in (1.0, 4.0):
                report.setdefault(name, []).append(measure(rows, kind, scale))
                print(name, json.dumps(report[name][-1]), flush=True)
    args.json.write_text(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
