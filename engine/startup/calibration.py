"""Measures at start what steps cost, so that the first requests are budgeted and charged as later ones are.

What a decoded token costs depends on how many requests decode together. If costs were learnt from requests alone, only
one batch size would be known when the first crowd arrives. That crowd would be charged several times too much here, and
not on another replica that has seen a crowd before.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import structlog
import torch

from engine.execution.model_runner import ModelRunner
from engine.layers.decoder_layer import DecoderLayer
from engine.scheduling.step_costs import MeasuredCosts
from engine.startup.dummy_batch import DummyBatch, DummyChunk, TimedLayers, fastest

logger = structlog.get_logger("engine.startup.calibration")

_ROUNDS = 2
_LIMIT_S = 0.5
"""After so long, only the smallest and the largest batch are measured, and once: steps of a large model would hold up
the start. Batches between them are estimated, and learnt when they come."""
_PREFILL_TOKENS = 256


def calibrate(
    costs: MeasuredCosts,
    runner: ModelRunner,
    budget: int,
    max_running: int,
    clock: Callable[[], float] = time.perf_counter,
) -> None:
    """Measure decode steps of 1 up to `max_running` requests, and a prefill step of up to `budget` tokens.

    To be called before there are requests: it overwrites blocks. `clock` gives seconds.
    """
    began = clock()
    timed_steps = _TimedSteps(DummyBatch(runner), clock)
    dummy_batch = timed_steps.dummy_batch
    between = [1 << exponent for exponent in range(1, (max_running - 1).bit_length())]
    decodes: dict[int, float] = {}
    chunks = dummy_batch.chunks(min(budget, _PREFILL_TOKENS))
    prefill_token = timed_steps.fastest(chunks) / sum(len(chunk.tokens) for chunk in chunks)
    # The largest batch first: its cost is what a decoded token costs on a full replica.
    for size in dict.fromkeys([max_running, 1, *between]):
        if size in between and timed_steps.are_long:
            break
        decodes[size] = timed_steps.fastest(dummy_batch.decodes(size))
    # A step takes no longer than a larger one: where it did, something else held it up.
    decodes = {size: min(took for larger, took in decodes.items() if larger >= size) for size in sorted(decodes)}
    costs.calibrate(decodes, prefill_token)
    logger.info(
        "steps are measured",
        decode_us={size: round(took) for size, took in decodes.items()},
        prefill_token_us=round(prefill_token, 1),
        s=round(clock() - began, 2),
    )


class _TimedSteps:
    """Times steps of all layers, and of the head for each chunk's last row."""

    def __init__(self, dummy_batch: DummyBatch, clock: Callable[[], float]) -> None:
        self.dummy_batch = dummy_batch
        self._layers = TimedLayers(dummy_batch.runner.model.layers, clock)

    @property
    def are_long(self) -> bool:
        """Whether the steps have taken the time that a start has for them."""
        return self._layers.spent_s > _LIMIT_S

    def fastest(self, chunks: Sequence[DummyChunk]) -> float:
        """µs of a step that nothing else on the machine held up: of each part the fastest run of a few, while there is
        time. Chunks of one token come first."""

        def run(layers: Sequence[DecoderLayer]) -> None:
            self._run(chunks, layers)

        # The first run of a shape compiles kernels and allocates memory, which no later one does.
        run(self._layers.one_of_each)
        took = self._layers.time(run)
        for _ in range(_ROUNDS - 1):
            if not self.are_long:
                took = fastest(took, self._layers.time(run))
        return self._layers.of_all(took) * 1e6

    def _run(self, chunks: Sequence[DummyChunk], layers: Sequence[DecoderLayer]) -> None:
        runner, rows = self.dummy_batch.runner, sum(len(chunk.tokens) for chunk in chunks)
        if runner.device.type == "cpu":
            runner.threads.use(rows)
        with torch.inference_mode():
            hidden = self.dummy_batch.hidden(chunks, layers)
            if rows > len(chunks):
                hidden = hidden[[rows - 1] * (len(chunks) + runner.tiling.padding(len(chunks)))]
            # Copied to the host, as sampled tokens are: a GPU may not have computed anything before that.
            runner.model.head(hidden).argmax(-1).tolist()
