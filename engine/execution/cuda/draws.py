"""How the rows of a step get their tokens, where it is not the likeliest one of the logits as they are.

What the device has to know of it is sent once, and kept while the same rows are computed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from engine.kernels.grammar_masks import apply_masks
from engine.kernels.likeliest import Likeliest
from engine.kernels.logit_shaper import BIASED, STOP, Edits, LogitShaper, ShapedRows, send
from engine.kernels.logit_shaper import WORDS as SHAPING_WORDS
from engine.kernels.sampler import DeviceSampler, DrawnRows, Parameters, parameters_of
from engine.kernels.uploads import Ints, Uploads
from engine.sampling.request_state import SamplingState
from engine.scheduling.request import Request
from protocol.requests import Sampling

NO_PLACE = -1
_NOTHING = Edits(np.zeros(0, np.int32), np.zeros(0, np.int32), np.zeros(0, np.float64))


@dataclass(frozen=True)
class Drawing:
    """How a request's tokens are drawn, whatever its position. `shaping` int64 [SHAPING_WORDS]: how its logits change.

    `penalized`: whether that depends on the tokens that it has seen.
    """

    parameters: Parameters
    shaping: Parameters
    edits: Edits
    penalized: bool


def drawing_of(sampling: Sampling, row: SamplingState | None) -> Drawing:
    """How a request's tokens are drawn."""
    words = np.zeros(SHAPING_WORDS.value, np.int64)
    words[:3] = np.array(
        [sampling.repetition_penalty, sampling.frequency_penalty, sampling.presence_penalty], np.float64
    ).view(np.int64)
    stops: tuple[int, ...] = ()
    if row is not None and sampling.min_tokens:
        stops, words[3] = sampling.stop_tokens, row.position - row.drawn + sampling.min_tokens
    edits = _edits(sampling.logit_bias, stops) if stops or sampling.logit_bias else _NOTHING
    return Drawing(parameters_of(sampling), words, edits, row is not None and row.counts is not None)


def _edits(bias: dict[int, float], stops: tuple[int, ...]) -> Edits:
    kinds = dict.fromkeys(bias, BIASED)
    for token in stops:
        kinds[token] = kinds.get(token, 0) | STOP
    biases = [bias.get(token, 0.0) for token in kinds]
    return Edits(np.array(list(kinds), np.int32), np.array(list(kinds.values()), np.int32), np.array(biases))


def is_guided(request: Request) -> bool:
    """Whether the host has a say in the request's tokens, once it knows those before."""
    return request.row is not None and request.row.guide is not None


def changed_rows(requests: Sequence[Request]) -> list[int]:
    """The rows whose logits are changed before the draw."""
    return [at for at, request in enumerate(requests) if request.row is not None and request.row.changes_logits]


@dataclass(frozen=True)
class Draws:
    """What the device knows of rows that are drawn: of those with logits as they are, and of those with changed ones.

    `changed` are the latter's indices, drawn or not, and `places` where their tokens are counted.
    """

    plain: DrawnRows | None
    shaped: ShapedRows[torch.Tensor] | None
    shaped_draws: DrawnRows | None
    changed: Ints
    places: Ints

    def penalized(self, skipped: NDArray[np.bool_] | None = None) -> tuple[Ints, Ints]:
        """The rows with penalties but those that are skipped, and where their tokens are counted."""
        held = self.places >= 0
        if skipped is not None:
            held &= ~skipped[self.changed]
        return self.changed[held], self.places[held]


def compose(
    given: Parameters,
    changed: Sequence[int],
    drawings: Sequence[Drawing],
    places: Ints,
    upload: Uploads,
    *,
    left_out: NDArray[np.bool_] | None = None,
) -> Draws | None:
    """How rows with these parameters get their tokens; None if all of them take the likeliest one.

    `drawings` and `places` are those of the rows `changed`; rows without penalties need no place. `left_out`: rows,
    none of them changed, that are not drawn.
    """
    drawn = given[:, 1].view(np.float64) != 0
    if left_out is not None:
        drawn &= ~left_out
    if not changed and not drawn.any():
        return None
    rows = np.array(changed, np.int32)
    drawn[rows] = False
    plain = np.nonzero(drawn)[0].astype(np.int32)
    places = np.where([drawing.penalized for drawing in drawings], places, NO_PLACE).astype(np.int32)
    return Draws(
        _drawn(given[plain], plain, upload),
        _shaped(drawings, rows, places, upload) if changed else None,
        # The changed rows stand behind each other, whether they are drawn or not.
        _drawn(given[rows], rows, upload),
        rows,
        places,
    )


def _drawn(given: Parameters, rows: Ints, upload: Uploads) -> DrawnRows | None:
    if not (given[:, 1].view(np.float64) != 0).any():
        return None
    at, words = upload([rows, given.view(np.int32)])
    return DrawnRows(given, at, words.view(torch.int64))


def _shaped(rows: Sequence[Drawing], at: Ints, places: Ints, upload: Uploads) -> ShapedRows[torch.Tensor]:
    counts = [len(row.edits.tokens) for row in rows]
    here: ShapedRows[NDArray[Any]] = ShapedRows(
        at,
        places,
        np.stack([row.shaping for row in rows]),
        np.concatenate([[0], np.cumsum(counts)]).astype(np.int32),
        np.concatenate([row.edits.tokens for row in rows]),
        np.concatenate([row.edits.kinds for row in rows]),
        np.concatenate([row.edits.biases for row in rows]),
        max(counts),
    )
    return send(here, upload)


@dataclass(frozen=True)
class StepRows:
    """The rows of a step, int32: their input tokens, and whether these are counted; their positions, −1 for padding.

    What is drawn goes to `tokens`, where the likeliest tokens are, and by the rows' `slots` to `latest`.
    """

    inputs: torch.Tensor
    counting: torch.Tensor
    positions: torch.Tensor
    slots: torch.Tensor
    tokens: torch.Tensor
    latest: torch.Tensor


@dataclass(frozen=True)
class RowMasks:
    """Masks of some changed rows on the device: row `rows[i]` of these is under `masks[which[i]]`; all int32."""

    masks: torch.Tensor
    rows: torch.Tensor
    which: torch.Tensor


class Drawer:
    """Draws the tokens of up to `rows` rows of logits of `vocabulary` tokens, by kernels."""

    def __init__(self, rows: int, vocabulary: int, device: torch.device) -> None:
        self.likeliest = Likeliest(rows, vocabulary, device)
        self.shaper = LogitShaper(vocabulary, device)
        self._sampler = DeviceSampler(rows, vocabulary, device)

    def __call__(
        self,
        logits: torch.Tensor,
        draws: Draws,
        counts: torch.Tensor,
        rows: StepRows,
        masks: RowMasks | None = None,
    ) -> None:
        """Replace the likeliest tokens of the logits as they are by those that are drawn.

        `counts`: how often tokens were sampled, by place; see `LogitShaper`. `masks`: what grammars allow.
        """
        whither = rows.positions, rows.slots, rows.tokens, rows.latest
        if draws.plain is not None:
            self._sampler(logits, draws.plain, *whither)
        if draws.shaped is not None:
            shaped = self.shaper(logits, draws.shaped, counts, rows.inputs, rows.counting, rows.positions, rows.tokens)
            if masks is not None:
                apply_masks(shaped, masks.masks, masks.rows, masks.which)
            self.likeliest(shaped, *whither, draws.shaped.at)
            if draws.shaped_draws is not None:
                self._sampler(shaped, draws.shaped_draws, *whither, changed=True)
