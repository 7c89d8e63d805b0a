"""Makes a replica's drafters, and measures at start what steps with drafts take on the runner that will run them."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

import structlog

from engine.execution.model_runner import ModelRunner, Sizes
from engine.options import DRAFT_MODEL
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
from engine.startup.self_test import verifies_exactly
from prompt_cache.kv.block_keys import BLOCK_TOKENS
from protocol.requests import Sampling

logger = structlog.get_logger("engine.startup.speculation")

_ROWS = (1, 8, 4, 2, 16, 64, 3, 6, 32, 5, 12, 128, 24, 48, 256)
"""In the order in which they are measured: those that decide most first. Others lie between them."""
_KV = (BLOCK_TOKENS, 16 * BLOCK_TOKENS)
_ROUNDS = 5
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
) -> Speculation:
    """Speculation by the drafters of these names, with its costs measured; or why there is none.

    `is_invariant`: whether a row has the same bits in any batch. Where it has not, drafts would change the output.
    Raises ModelError or StartError where what `load_draft` loads does not fit the served model.
    """
    if not names:
        return Speculation(off="setting")
    if not runner.most_drafts:
        return Speculation(off="device")
    if not (is_invariant and verifies_exactly(runner, sizes.context, 1 + MOST_DRAFTS)):
        return Speculation(off="self_test")
    # Measured before a head reads the runner's hidden states: those of the measurement are nobody's.
    costs = measure_verification(runner, sizes)
    return Speculation(make_drafters(names, load_draft), costs)


def measure_verification(
    runner: ModelRunner, sizes: Sizes, clock: Callable[[], float] = time.perf_counter
) -> VerifyCosts:
    """What steps take whose rows are of few requests. To be called before there are requests: it overwrites blocks."""
    began = clock()
    most = min(sizes.budget, sizes.running * (1 + MOST_DRAFTS))
    lengths = sorted({min(kv, max(1, sizes.context - 1 - MOST_DRAFTS)) for kv in _KV})
    best: dict[int, dict[int, float]] = {}
    shapes = [(kv, rows) for rows in _ROWS if rows <= most for kv in lengths]
    # All shapes once before any is measured again, so that a slow moment of the machine does not fall on one of them.
    for number in range(_ROUNDS):
        for at, (kv, rows) in enumerate(shapes):
            if clock() - began > _LIMIT_S and (number or at >= 2 * len(lengths)):
                break
            works = _works(runner, rows, kv)
            if not number:
                runner.run(works)  # a shape's first run allocates memory, which no later one does
            start = clock()
            runner.run(works)
            took = max(1.0, (clock() - start) * 1e6)
            of_length = best.setdefault(kv, {})
            of_length[rows] = min(took, of_length.get(rows, took))
    # A shape that was not reached with more KV is left out with less as well.
    known = set.intersection(*(set(of_length) for of_length in best.values()))
    costs = VerifyCosts({kv: {rows: of_length[rows] for rows in known} for kv, of_length in best.items()})
    logger.info(
        "steps with drafts are measured",
        us={kv: {rows: round(took) for rows, took in shown} for kv, shown in costs.shown().items()},
        s=round(clock() - began, 2),
    )
    return costs


def _works(runner: ModelRunner, rows: int, kv: int) -> Sequence[Decode]:
    """Decodes of so many rows in all, as many of each request as it may have."""
    requests, rest = divmod(rows, 1 + MOST_DRAFTS)
    counts = [1 + MOST_DRAFTS] * requests + ([rest] if rest else [])
    return [_decode(runner, number, count, kv) for number, count in enumerate(counts)]


def _decode(runner: ModelRunner, number: int, rows: int, kv: int) -> Decode:
    vocabulary = runner.model.config.vocabulary
    tokens = [(number + index * 7919) % vocabulary for index in range(kv + 1)]
    sampling = Sampling(MOST_DRAFTS + 1, temperature=0.0)
    request = Request(
        id=str(number),
        attempt=1,
        arrival=number,
        tokens=TokenSequence(tokens),
        prompt=len(tokens),
        segments=((len(tokens), b"", ""),),
        root=b"",
        sampling=sampling,
        max_output=MOST_DRAFTS + 1,
        credit=MOST_DRAFTS + 1,
        row=SamplingState(sampling, tokens),
    )
    blocks = min(memory.data.shape[0] for memory in runner.memories)
    block = (number % blocks,) * len(runner.memories)
    request.table = [block] * (-(-(len(tokens) + rows) // BLOCK_TOKENS))
    work = Decode(request)
    work.draft(tuple(tokens[: rows - 1]))
    return work
