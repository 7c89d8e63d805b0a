"""Cost of scheduling and block accounting for a step, in µs, with many requests decoding and others waiting.

Counted is everything in `schedule` and `commit`: the order of requests, the step's work, handing tokens to requests,
keys of full blocks and their index, new blocks, and charges to flows and lanes. The model is not counted.

Each round has a scheduler of its own and is measured by the median of its steps. The figure is the median round. Where
rounds differ much, other load disturbed them: the least one says what the code costs.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from pathlib import Path

from engine.scheduling.fairness.fair_share import FairShare
from engine.scheduling.request import Request
from engine.scheduling.scheduler import Scheduler
from engine.scheduling.token_sequence import TokenSequence
from prompt_cache.kv.grouped_pool import GroupedPool
from protocol.requests import LANES, Sampling

TARGET_US = 100.0
STEP_S = 0.02
"""How long a step takes, for what depends on time."""


def measure(running: int, steps: int) -> float:
    """µs a step, the median of `steps`: choosing the work, and counting what it did."""
    scheduler = Scheduler(GroupedPool([(running * 64, 0)]), 8192, running, FairShare())
    for number in range(running + running // 4):
        prompt = 100 + number % 64
        scheduler.add(
            Request(
                id=str(number),
                attempt=1,
                arrival=number,
                tokens=TokenSequence([number] * prompt),
                prompt=prompt,
                segments=((prompt, b"scope", "scope"),),
                root=b"model",
                sampling=Sampling(3000),
                max_output=3000,
                credit=1 << 40,
                flow=str(number % 40),
                lane=LANES[number % 3],
            )
        )
    took = []
    for step_number in range(steps + 50):
        began = time.perf_counter()
        step = scheduler.schedule(1.0 + step_number * STEP_S)
        chosen = time.perf_counter()
        tokens = [0 if work.samples else None for work in step.work]
        began += time.perf_counter() - chosen  # the model's part
        scheduler.commit(step.work, tokens)
        if step_number >= 50:  # by then all slots are taken and all prompts computed
            took.append((time.perf_counter() - began) * 1e6)
    return sorted(took)[len(took) // 2]


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.scheduling", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--running", type=int, default=256)
    parser.add_argument("--steps", type=int, default=500, help="steps a round")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--json", type=Path, help="write the figures here too")
    options = parser.parse_args()
    rounds = [measure(options.running, options.steps) for _ in range(options.rounds)]
    took = statistics.median(rounds)
    figures = {
        "benchmark": "scheduling",
        "running": options.running,
        "step_us": round(took, 1),
        "rounds_us": [round(each, 1) for each in rounds],
        "target_us": TARGET_US,
        "met": took <= TARGET_US,
    }
    print(json.dumps(figures, indent=2))
    if options.json:
        options.json.write_text(json.dumps(figures, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
