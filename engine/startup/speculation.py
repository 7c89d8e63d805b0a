"""Makes a replica's drafters, and measures at start what steps with drafts take on the runner that will run them."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

import structlog
import torch

from engine.execution.model_runner import ModelRunner, Sizes
from engine.execution.verification import draw_runs
from engine.layers.decoder_layer import DecoderLayer
from engine.options import DRAFT_MODEL
from engine.sampling.grammar_allowance import StepAllowance
from engine.sampling.request_state import SamplingState
from engine.scheduling.request import Request
from engine.scheduling.step_work import Decode
from engine.scheduling.token_sequence import TokenSequence
from engine.speculation.drafter import Drafter
from engine.speculation.grammar_drafter import GrammarDrafter
from engine.speculation.ngram_drafter import NgramDrafter
from engine.speculation.speculator import MOST_DRAFTS, Speculation
from engine.speculation.suffix_drafter import SuffixDrafter
from engine.speculation.verify_costs import VerifyCosts
from engine.startup.dummy_batch import DummyBatch, DummyChunk, TimedLayers, fastest
from engine.startup.self_test import verifies_exactly
from prompt_cache.kv.block_keys import BLOCK_TOKENS
from protocol.requests import Sampling

logger = structlog.get_logger("engine.startup.speculation")

_ROWS = (1, 8, 4, 2, 16, 64, 3, 6, 32, 5, 12, 128, 24, 48, 256)
"""In the order in which they are measured: those that decide most first. Others lie between them."""
_KV = (BLOCK_TOKENS, 16 * BLOCK_TOKENS)
_MOST_ROWS = 1 + MOST_DRAFTS
"""Of a request."""
_ROUNDS, _DRAWING_ROUNDS = 5, 2
_LIMIT_S = 0.7
"""After so long nothing more is measured; a row that was not lies between those that were. Two rows are in any case."""

_MAKERS: Mapping[str, Callable[[], Drafter]] = {
    "grammar": GrammarDrafter,
    "ngram": NgramDrafter,
    "suffix": SuffixDrafter,
}


def make_drafters(names: Sequence[str], load_draft: Callable[[], Drafter] | None = None) -> Sequence[Drafter]:
    """The drafters of these names, in order. `load_draft`: loads the one with weights, if there is one."""
    makers = _MAKERS if load_draft is None else {**_MAKERS, DRAFT_MODEL: load_draft}
    return [makers[name]() for name in names]


def make_speculation(
    names: Sequence[str],
    runner: ModelRunner,
    sizes: Sizes,
    load_draft: Callable[[], Drafter] | None = None,
    *,
    is_invariant: bool,
    exact: bool = True,
) -> Speculation:
    """Speculation by the drafters of these names, with its costs measured; or why there is none.

    `is_invariant`: whether a row has the same bits in any batch. Where it has not, drafts would change the output.
    `exact`: whether attention is to have them, which no library promises.
    Raises ModelError or StartError where what `load_draft` loads does not fit the served model.
    """
    if not names:
        return Speculation(off="setting")
    if not exact:
        return Speculation(off="attention")
    if not runner.most_drafts:
        return Speculation(off="device")
    costs = _tested_costs(runner, sizes) if is_invariant else None
    if costs is None:
        return Speculation(off="self_test")
    return Speculation(make_drafters(names, load_draft), costs)


def _tested_costs(runner: ModelRunner, sizes: Sizes) -> VerifyCosts | None:
    """What steps with drafts take, None if their rows depend on each other. Measured before a head reads the runner's
    hidden states: those of the measurement are nobody's."""
    if runner.device.type == "cuda":
        from engine.execution.cuda.draft_trials import drafts_keep_their_bits, time_verification  # noqa: PLC0415
        from engine.execution.cuda.runner import CudaRunner  # noqa: PLC0415  # Triton, which a CPU does without

        if isinstance(runner, CudaRunner):
            held = drafts_keep_their_bits(runner)
            return VerifyCosts(time_verification(runner), in_graphs=True) if held else None
    return measure_verification(runner, sizes) if verifies_exactly(runner, sizes.context, _MOST_ROWS) else None


def measure_verification(
    runner: ModelRunner, sizes: Sizes, clock: Callable[[], float] = time.perf_counter
) -> VerifyCosts:
    """What steps take whose rows are of few requests. To be called before there are requests: it overwrites blocks."""
    began = clock()
    steps = _VerifyingSteps(runner, clock)
    most = min(sizes.budget, sizes.running * _MOST_ROWS)
    lengths = sorted({min(kv, sizes.context - _MOST_ROWS) // BLOCK_TOKENS * BLOCK_TOKENS for kv in _KV})
    shapes = [(kv, rows) for rows in _ROWS if rows <= most for kv in lengths]
    layers: dict[tuple[int, int], Sequence[float]] = {}
    draws: dict[int, float] = {}
    # All shapes once before any is measured again, so that a slow moment of the machine does not fall on one of them.
    for number in range(_ROUNDS):
        for at, (kv, rows) in enumerate(shapes):
            if clock() - began > _LIMIT_S and (number or at >= 2 * len(lengths)):
                break
            took = steps.time_layers(rows, kv)
            layers[kv, rows] = fastest(took, layers.get((kv, rows), took))
            if kv == lengths[0] and number < _DRAWING_ROUNDS:
                drawing = steps.time_drawing(rows)
                draws[rows] = min(drawing, draws.get(rows, drawing))
    # A shape that was not reached with more KV is left out with less as well.
    known = [rows for rows in draws if all((kv, rows) in layers for kv in lengths)]
    costs = VerifyCosts(
        {
            kv: {rows: max(1.0, (steps.of_all_layers(layers[kv, rows]) + draws[rows]) * 1e6) for rows in known}
            for kv in lengths
        }
    )
    logger.info(
        "steps with drafts are measured",
        us={kv: {rows: round(took) for rows, took in shown} for kv, shown in costs.shown().items()},
        s=round(clock() - began, 2),
    )
    return costs


class _VerifyingSteps:
    """Times steps that verify drafts, as many rows of each request as it may have: a few of the model's layers, which
    tell how long all of them take, and apart from them the head and the drawing, which no KV changes."""

    def __init__(self, runner: ModelRunner, clock: Callable[[], float]) -> None:
        self._runner = runner
        self._clock = clock
        self._dummy_batch = DummyBatch(runner)
        self._layers = TimedLayers(runner.model.layers, clock)
        self._known: set[object] = set()
        """What was run before: the first run of a shape allocates memory, which no later one does."""

    def time_layers(self, rows: int, kv: int) -> Sequence[float]:
        """Seconds that a few layers take, for `of_all_layers`."""
        # Chunks of one token come first.
        chunks = [
            DummyChunk(self._dummy_batch.tokens(count), kv, self._dummy_batch.OTHER) for count in sorted(_split(rows))
        ]

        def run(layers: Sequence[DecoderLayer]) -> None:
            self._use_threads(rows)
            with torch.inference_mode():
                self._dummy_batch.hidden(chunks, layers).sum().item()

        if (rows, kv) not in self._known:
            self._known.add((rows, kv))
            run(self._layers.one_of_each)
        return self._layers.time(run)

    def of_all_layers(self, took: Sequence[float]) -> float:
        """Seconds that all layers take."""
        return self._layers.of_all(took)

    def time_drawing(self, rows: int) -> float:
        """Seconds that logits take, and what is drawn from them."""
        works = [_decode(number, count) for number, count in enumerate(_split(rows))]
        embeddings, padding = self._runner.model.embedding.weight, self._runner.tiling.padding(rows)
        hidden = torch.zeros(rows + padding, embeddings.shape[1]).to(embeddings)

        def draw() -> None:
            self._use_threads(rows)
            with torch.inference_mode():
                draw_runs(works, self._runner.model.head(hidden), StepAllowance())

        if rows not in self._known:
            self._known.add(rows)
            draw()
        began = self._clock()
        draw()
        return self._clock() - began

    def _use_threads(self, rows: int) -> None:
        if self._runner.device.type == "cpu":
            self._runner.threads.use(rows)


def _split(rows: int) -> Sequence[int]:
    """The rows of each request of a step with so many in all."""
    requests, rest = divmod(rows, _MOST_ROWS)
    return [_MOST_ROWS] * requests + ([rest] if rest else [])


def _decode(number: int, rows: int) -> Decode:
    sampling = Sampling(_MOST_ROWS, temperature=0.0)
    request = Request(
        id=str(number),
        attempt=1,
        arrival=number,
        tokens=TokenSequence([0]),
        prompt=1,
        segments=((1, b"", ""),),
        root=b"",
        sampling=sampling,
        max_output=_MOST_ROWS,
        credit=_MOST_ROWS,
        row=SamplingState(sampling, [0]),
    )
    work = Decode(request)
    work.draft([0] * (rows - 1))
    return work
