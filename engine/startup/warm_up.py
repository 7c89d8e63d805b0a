"""Runs each matrix product once for every number of rows that a step may have, while the replica has nothing to do.

On a CPU the library compiles a kernel for each shape, number of rows and number of threads, and keeps it. Compiled one
by one as requests come, they would make first requests slow, and the replica's memory would grow for hours. Requests
do not wait for this: it runs in pieces of a few milliseconds, between which the engine looks for work.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

import structlog
import torch

from engine.execution.model_runner import ModelRunner

logger = structlog.get_logger("engine.startup.warm_up")

_MAX_WORK = 1 << 26
"""Rows times weight elements of the products that are run, some milliseconds each. A larger product takes longer to
run than to compile."""


def warm_up(runner: ModelRunner, budget: int) -> Iterator[None]:
    """Run the products of up to `budget` rows, few rows first, one at each step of the iterator. Does nothing on a
    GPU."""
    if runner.device.type != "cpu":
        return
    count, began, took = 0, time.perf_counter(), 0.0
    like = runner.model.embedding.weight
    for rows in runner.tiling.counts(budget):
        for product in runner.tiling.products.values():
            if rows * product.elements > _MAX_WORK:
                continue
            for threads in runner.threads.counts:
                started = time.perf_counter()
                runner.threads.set(threads)
                with torch.inference_mode():
                    product(like.new_zeros(rows, product.inputs, dtype=product.dtype))
                took += time.perf_counter() - started
                count += 1
                yield
    logger.info("kernels are warm", ran=count, s=round(took, 2), within_s=round(time.perf_counter() - began, 2))
