"""Changes logits by each request's parameters before sampling: bias, penalties, forbidden tokens, grammar masks.

Bias is added (OpenAI's `logit_bias`). The repetition penalty divides positive logits of tokens in the prompt or output
and multiplies negative ones (CTRL, Keskar et al. 2019). A token that was sampled c times then loses
c · frequency_penalty, and presence_penalty if c > 0 (OpenAI's API reference).

Bias is one stage, the penalties are another: each is computed in float64 and rounded to fp32, so that every device has
the same bits (`engine.kernels.logit_shaper`).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from engine.sampling.grammar_allowance import MASKS_S, StepAllowance
from engine.sampling.request_state import SamplingState

_WORD = 32
LARGEST = 2.0**126
"""The largest changed logit. Tiny or repeated penalties would make logits infinite, and differences of infinities are
NaN."""


def shape_logits(
    values: torch.Tensor, rows: Sequence[SamplingState], allowance: StepAllowance | None = None
) -> torch.Tensor:
    """Change fp32 logits [rows, padded vocabulary] in place, and return them.

    `allowance`: the step's grammar time; rows for whose mask none is left are marked `put_off`.
    """
    _bias(values, rows)
    _penalize(values, [(at, row) for at, row in enumerate(rows) if row.counts is not None])
    _forbid_stops(values, rows)
    _constrain(values, rows, allowance or StepAllowance())
    return values


def _bias(values: torch.Tensor, rows: Sequence[SamplingState]) -> None:
    entries = [(at, token, bias) for at, row in enumerate(rows) for token, bias in row.sampling.logit_bias.items()]
    if entries:
        ats, tokens, biases = zip(*entries, strict=True)
        device = values.device
        place = (torch.tensor(ats, device=device), torch.tensor(tokens, device=device))
        biased = values[place].double() + torch.tensor(biases, dtype=torch.float64, device=device)
        values[place] = biased.clamp_(-LARGEST, LARGEST).float()


def _penalize(values: torch.Tensor, rows: Sequence[tuple[int, SamplingState]]) -> None:
    """Apply penalties with one gather and one scatter over the tokens in the rows' prompts and outputs."""
    tables = [(at, row.sampling, row.counts) for at, row in rows if row.counts is not None]
    if not tables:
        return
    device = values.device
    sizes = torch.tensor([len(counts.ids) for _, _, counts in tables])

    def spread(numbers: list[float], dtype: torch.dtype) -> torch.Tensor:
        return torch.tensor(numbers, dtype=dtype).repeat_interleave(sizes).to(device)

    places = (
        spread([at for at, _, _ in tables], torch.int64),
        torch.from_numpy(np.concatenate([counts.ids for _, _, counts in tables])).to(device),
    )
    drawn = torch.from_numpy(np.concatenate([counts.counts for _, _, counts in tables])).to(device)
    repetition = spread([sampling.repetition_penalty for _, sampling, _ in tables], torch.float64)
    frequency = spread([sampling.frequency_penalty for _, sampling, _ in tables], torch.float64)
    presence = spread([sampling.presence_penalty for _, sampling, _ in tables], torch.float64)
    seen = values[places].double()
    seen = torch.where(seen > 0, seen / repetition, seen * repetition).clamp_(-LARGEST, LARGEST)
    seen = (seen - drawn * frequency - (drawn > 0) * presence).clamp_(-LARGEST, LARGEST)
    values[places] = seen.float()


def _forbid_stops(values: torch.Tensor, rows: Sequence[SamplingState]) -> None:
    for at, row in enumerate(rows):
        if row.stops_forbidden:
            values[at, list(row.sampling.stop_tokens)] = -torch.inf


def fill_masks(masks: torch.Tensor, rows: Sequence[SamplingState], allowance: StepAllowance) -> None:
    """Write what each row's grammar allows next to `masks`, int32 [rows, words] on the host, a bit for each token.

    Rows for whose mask the step has no time left are marked `put_off`; anything is allowed there.
    """
    order = allowance.begin(rows)
    allowance.grant(MASKS_S)
    for at in order:
        row = rows[at]
        row.put_off = not allowance.has_time()
        if row.guide is None or row.put_off:
            masks[at].fill_(-1)
        else:
            row.guide.fill_mask(masks[at])


def _constrain(values: torch.Tensor, rows: Sequence[SamplingState], allowance: StepAllowance) -> None:
    """Forbid the tokens that the rows' grammars do not allow. All masks are applied at once."""
    guided = [at for at, row in enumerate(rows) if row.guide is not None]
    if not guided:
        return
    masks = torch.empty((len(guided), -(-values.shape[-1] // _WORD)), dtype=torch.int32)
    fill_masks(masks, [rows[at] for at in guided], allowance)
    bits = torch.arange(_WORD, dtype=torch.int32)
    allowed = ((masks[:, :, None] >> bits) & 1).bool().view(len(guided), -1)[:, : values.shape[-1]]
    allowed = allowed.to(values.device)
    chosen = values[guided].masked_fill_(~allowed, -torch.inf)
    # If all that the grammar allows was forbidden before (the end token by min_tokens, say), the grammar decides.
    empty = chosen.isinf().all(-1, keepdim=True)
    values[guided] = torch.where(empty & allowed, 0.0, chosen)
