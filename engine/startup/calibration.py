"""Measures at start what steps cost, so that the first requests are budgeted and charged as later ones are.

What a decoded token costs depends on how many requests decode together. If costs were learnt from requests alone, only
one batch size would be known when the first crowd arrives. That crowd would be charged several times too much here, and
not on another replica that has seen a crowd before.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import structlog
import torch

from engine.execution.model_runner import ModelRunner
from engine.scheduling.step_costs import MeasuredCosts
from engine.startup.dummy_batch import DummyBatch, DummyChunk

logger = structlog.get_logger("engine.startup.calibration")

_ROUNDS = 2
_LIMIT_S = 0.5
"""After so long, only the smallest and the largest batch are measured, and once: steps of a large model would hold up
the start. Batches between them are estimated, and learnt when they come."""
_PREFILL_TOKENS = 256
_TIMED_LAYERS = 3


def calibrate(costs: MeasuredCosts, runner: ModelRunner, budget: int, max_running: int) -> None:
    """Measure decode steps of 1 up to `max_running` requests, and a prefill step of up to `budget` tokens.

    To be called before there are requests: it overwrites blocks.
    """
    began = time.perf_counter()
    dummy_batch = DummyBatch(runner)
    between = [1 << exponent for exponent in range(1, (max_running - 1).bit_length())]
    decodes: dict[int, float] = {}
    chunks = dummy_batch.chunks(min(budget, _PREFILL_TOKENS))
    until = began + _LIMIT_S
    prefill_token = _fastest_step(dummy_batch, chunks, until) / sum(len(chunk.tokens) for chunk in chunks)
    # The largest batch first: its cost is what a decoded token costs on a full replica.
    for size in dict.fromkeys([max_running, 1, *between]):
        if size in between and time.perf_counter() > until:
            break
        decodes[size] = _fastest_step(dummy_batch, dummy_batch.decodes(size), until)
    # A step takes no longer than a larger one: where it did, something else held it up.
    decodes = {size: min(took for larger, took in decodes.items() if larger >= size) for size in sorted(decodes)}
    costs.calibrate(decodes, prefill_token)
    logger.info(
        "steps are measured",
        decode_us={size: round(took) for size, took in decodes.items()},
        prefill_token_us=round(prefill_token, 1),
        s=round(time.perf_counter() - began, 2),
    )


def _fastest_step(dummy_batch: DummyBatch, chunks: Sequence[DummyChunk], until: float) -> float:
    """µs of a step that nothing else on the machine held up: the fastest of a few, while there is time."""
    took = _time_step(dummy_batch, chunks)
    for _ in range(_ROUNDS - 1):
        if time.perf_counter() < until:
            took = min(took, _time_step(dummy_batch, chunks))
    return took


def _time_step(dummy_batch: DummyBatch, chunks: Sequence[DummyChunk]) -> float:
    """µs of a step: all layers, and the head for each chunk's last row. Chunks of one token come first.

    Of a deep model only a few layers are run, and the others are taken to be as fast.
    """
    layers = len(dummy_batch.runner.model.layers)
    if layers <= _TIMED_LAYERS:
        return _time_layers(dummy_batch, chunks, layers)
    one_layer, few_layers = _time_layers(dummy_batch, chunks, 1), _time_layers(dummy_batch, chunks, _TIMED_LAYERS)
    return few_layers + max(0.0, few_layers - one_layer) / (_TIMED_LAYERS - 1) * (layers - _TIMED_LAYERS)


def _time_layers(dummy_batch: DummyBatch, chunks: Sequence[DummyChunk], layers: int) -> float:
    runner, rows = dummy_batch.runner, sum(len(chunk.tokens) for chunk in chunks)
    if runner.device.type == "cpu":
        runner.threads.use(rows)
    began = time.perf_counter()
    with torch.inference_mode():
        hidden = dummy_batch.hidden(chunks, layers)
        if rows > len(chunks):
            hidden = hidden[[rows - 1] * (len(chunks) + runner.tiling.padding(len(chunks)))]
        # Copied to the host, as sampled tokens are: a GPU may not have computed anything before that.
        runner.model.head(hidden).argmax(-1).tolist()
    return (time.perf_counter() - began) * 1e6
