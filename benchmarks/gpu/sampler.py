"""What it takes to draw tokens on the device: `python -m benchmarks.gpu.sampler --json OUT`.

µs for a step of so many rows of 128,256 bf16 logits, by kernels (`engine.execution.cuda.draws`) and by PyTorch
operations (`engine.sampling.sampler`), which the host waits for; and how many of the tokens are the same. `queue_us` is
how long the host takes to queue the kernels. Rows with penalties have seen 1,000 tokens and sampled 200.
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

from engine.execution.cuda.draws import Drawer, StepRows, compose, drawing_of
from engine.execution.cuda.seen_tokens import SeenTokens
from engine.kernels.uploads import Uploads
from engine.sampling.request_state import SamplingState
from engine.sampling.sampler import sample
from protocol.requests import Sampling

VOCABULARY, REPEATS = 128_256, 20
_PENALTIES: dict[str, Any] = {"presence_penalty": 0.3, "frequency_penalty": 0.2, "repetition_penalty": 1.1}
KINDS: dict[str, dict[str, Any]] = {
    "temperature": {},
    "top-p": {"top_p": 0.95},
    "top-k": {"top_k": 40},
    "top-k, top-p, min-p": {"top_k": 200, "top_p": 0.9, "min_p": 0.02},
    "greedy, penalties": {"temperature": 0.0, **_PENALTIES},
    "penalties": _PENALTIES,
    "top-p, penalties": {"top_p": 0.95, **_PENALTIES},
    "bias": {"logit_bias": dict.fromkeys(range(0, 128000, 500), 0.5), "min_tokens": 999, "stop_tokens": (7, 9)},
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


def to_queue(work: Callable[[], object]) -> float:
    """µs that the host takes for it, the middle of some repeats."""
    took = []
    for _ in range(REPEATS):
        torch.cuda.synchronize()
        began = time.perf_counter()
        work()
        took.append(1e6 * (time.perf_counter() - began))
    return round(float(np.median(took[REPEATS // 4 :])), 1)


def measure(rows: int, kind: dict[str, Any], scale: float) -> dict[str, Any]:
    device = torch.device("cuda")
    logits = (scale * torch.randn(rows, VOCABULARY, device=device)).bfloat16()
    chance = np.random.default_rng(rows)
    states = [
        SamplingState(Sampling(8, **{"temperature": 0.8, "seed": seed, **kind}), *_some_tokens(chance))
        for seed in range(rows)
    ]
    upload = Uploads(device)
    drawer, seen = Drawer(rows, VOCABULARY, device), SeenTokens(rows, VOCABULARY, upload)
    drawings = [drawing_of(state.sampling, state) for state in states]
    changed = [at for at, state in enumerate(states) if state.changes_logits]
    places = np.arange(rows, dtype=np.int32)
    given = np.stack([drawing.parameters for drawing in drawings])
    draws = compose(given, changed, [drawings[at] for at in changed], places[changed], upload)
    assert draws is not None
    counting = draws.places[draws.places >= 0]
    positions = np.array([state.position - 1 for state in states])
    seen.follow(counting, positions[counting], [states[at] for at in counting])
    at, there, nothing = upload([positions.astype(np.int32), places, np.zeros_like(places)])
    tokens, latest = torch.empty_like(at), torch.empty_like(at)

    def by_kernels() -> None:
        drawer.likeliest(logits, at, there, tokens, latest)
        drawer(logits, draws, seen.counts, StepRows(nothing, nothing, at, there, tokens, latest))

    found: list[int] = []

    def by_operations() -> None:
        found[:] = sample(logits.float(), states)

    ours, general = microseconds(by_kernels), microseconds(by_operations)
    same = sum(a == b for a, b in zip(tokens.tolist(), found, strict=True))
    return {
        "rows": rows, "scale": scale, "kernels_us": ours, "queue_us": to_queue(by_kernels), "operations_us": general,
        "same": f"{same} of {rows}",
    }  # fmt: skip


def _some_tokens(chance: np.random.Generator) -> tuple[list[int], list[int]]:
    """A prompt and an output."""
    return chance.integers(0, VOCABULARY, 1_000).tolist(), chance.integers(0, 300, 200).tolist()


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
