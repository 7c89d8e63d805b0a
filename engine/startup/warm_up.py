"""Runs each matrix product once at every count of rows that a step may have, while the replica has nothing to do.

On the CPU the library compiles a kernel for each shape, count of rows and number of threads, and keeps it. Met one by
one they would make first requests slow, and a replica's memory would seem to grow for hours. Requests do not wait for
this: it goes on in pieces of a few milliseconds, between which the engine looks for work.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

import structlog
import torch

from engine.execution.model_runner import ModelRunner

logger = structlog.get_logger("engine.startup.warm_up")

_MOST_WORK = 1 << 26
"""Rows times elements of a product that is run: milliseconds. What multiplies more takes longer than the compiling."""


def warm_up(runner: ModelRunner, budget: int) -> Iterator[None]:
    """Run the products of up to `budget` rows, small counts first, one at each step of the iterator. CPU only."""
    if runner.device.type != "cpu":
        return
    ran, began, took = 0, time.perf_counter(), 0.0
    like = runner.model.embedding.weight
    for rows in runner.tiling.counts(budget):
        for product in runner.tiling.products.values():
            if rows * product.elements > _MOST_WORK:
                continue
            for threads in runner.threads.counts:
                started = time.perf_counter()
                runner.threads.set(threads)
                with torch.inference_mode():
                    product(like.new_zeros(rows, product.inputs, dtype=product.dtype))
                took += time.perf_counter() - started
                ran += 1
                yield
    whole = time.perf_counter() - began
    logger.info("kernels are warm", ran=ran, s=round(took, 2), within_s=round(whole, 2))
