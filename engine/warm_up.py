"""Runs each matrix product once at every count of rows that a step may have, so that no request waits for a kernel.

On the CPU the library compiles a kernel for each shape, count of rows and number of threads, and keeps it. Met one by
one they would make first requests slow, and a replica's memory would seem to grow for hours.
"""

from __future__ import annotations

import time

import structlog
import torch

from engine.runner import Runner

logger = structlog.get_logger("engine.warm_up")

_LIMIT_S = 3.0
"""A large model's products take longer than the compiling: what is left then is compiled when it is met."""


def warm_up(runner: Runner, budget: int) -> None:
    """Run the products of up to `budget` rows, small counts first. CPU only."""
    if runner.device.type != "cpu":
        return
    began = time.perf_counter()
    ran = 0
    counts = runner.tiling.counts(budget)
    for rows in counts:
        for threads in runner.threads.counts:
            runner.threads.set(threads)
            with torch.inference_mode():
                for product in runner.tiling.products.values():
                    product(runner.model.embedding.weight.new_zeros(rows, product.inputs, dtype=product.dtype))
        ran += 1
        if time.perf_counter() - began > _LIMIT_S:
            break
    took = time.perf_counter() - began
    logger.info(
        "kernels are warm", counts=f"{ran} of {len(counts)}", products=len(runner.tiling.products), s=round(took, 2)
    )
