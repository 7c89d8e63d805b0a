"""A stand-in for a runner's model that takes no kernels, but to draw: what a test of the runner's bookkeeping needs.

The KV of a token is its number, and the next token is a sum over the KV of all tokens so far, as it is found through
the block tables on the device. Whoever reads another request's blocks, or blocks that were freed, gets another answer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch

from engine.execution.cuda.draws import Draws, StepRows
from engine.execution.cuda.runner import CudaRunner
from engine.execution.cuda.slots import Chunk
from engine.kernels.likeliest import NOT_FINITE
from engine.kernels.uploads import Ints, Uploads
from prompt_cache.kv.block_keys import BLOCK_TOKENS

CUT = 16
"""Weights of positions repeat after so many."""


class TallyModel:
    """Takes the place of `runner`'s model. `called` is called before each upload and each pass, and may raise."""

    def __init__(self, runner: CudaRunner) -> None:
        self.runner = runner
        self.called: Callable[[], None] = lambda: None
        self._data = runner.memories[0].data
        self._weights = torch.arange(runner.sizes.context, device=runner.device) % CUT + 1.0
        runner.prefill = self._prefill  # type: ignore[assignment]
        runner.steps.run = self._decode  # type: ignore[method-assign]
        runner.fused.head = self._logits  # type: ignore[assignment]
        _ToldUploads.tell(runner.upload, self)

    def expected(self, prompt: Sequence[int], count: int) -> list[int]:
        """The tokens that follow a prompt."""
        tokens = list(prompt)
        for _ in range(count):
            tokens.append(self.likeliest(tokens))
        return tokens[len(prompt) :]

    def likeliest(self, tokens: Sequence[int]) -> int:
        """The token whose logit is 1 behind these; all others' are 0."""
        total = sum(token * weight for token, weight in zip(tokens, self._weights.tolist(), strict=False))
        return int(total % self.runner.fused.vocabulary)

    def _append(self, blocks: Sequence[int], position: int, token: float) -> None:
        self._data[blocks[position // BLOCK_TOKENS], ..., position % BLOCK_TOKENS, :] = token

    def _next(self, blocks: Sequence[int], position: int) -> float:
        held = self._data[list(blocks[: position // BLOCK_TOKENS + 1]), 0, 0, 0, :, 0].flatten()[: position + 1]
        return float((held * self._weights[: position + 1]).sum().item()) % self.runner.fused.vocabulary

    def _prefill(self, chunks: Sequence[Chunk], adapted: Ints | None = None) -> torch.Tensor:
        assert adapted is None
        self.called()
        hidden = []
        for chunk in chunks:
            blocks = chunk.table[0].tolist()
            for at, token in enumerate(chunk.tokens.tolist(), chunk.start):
                self._append(blocks, at, token)
            hidden += [0.0] * (len(chunk.tokens) - 1) + [self._next(blocks, chunk.start + len(chunk.tokens) - 1)]
        return torch.tensor(hidden, device=self.runner.device)[:, None]

    def _decode(
        self,
        slots: Ints,
        positions: Ints,
        _order: Ints,
        sources: Ints | None = None,
        *,
        draws: Draws | None = None,
        counted: Ints | None = None,
        adapted: Ints | None = None,
    ) -> None:
        assert adapted is None
        self.called()
        steps, latest = self.runner.steps, self.runner.slots.latest
        sources = slots if sources is None else sources
        counted = np.zeros_like(slots) if counted is None else counted
        at, places, counting = self.runner.upload([positions, sources, counted])
        inputs = latest.index_select(0, places)
        for row, (slot, position, place) in enumerate(zip(slots, positions, sources, strict=True)):
            if position < 0:
                continue
            blocks = self.runner.slots.block_tables[0][slot].tolist()
            self._append(blocks, position, latest[place].item())
            token = self._next(blocks, position)
            steps.logits[row] = self._logits(torch.tensor([[token]]))[0].to(steps.logits)
            steps.tokens[row] = latest[place] = NOT_FINITE if np.isnan(token) else int(token)
        if draws is not None:
            rows = StepRows(inputs, counting, at, places, steps.tokens, latest)
            steps.drawer(steps.logits, draws, self.runner.slots.seen.counts, rows)

    def _logits(self, hidden: torch.Tensor) -> torch.Tensor:
        logits = torch.zeros(len(hidden), self.runner.steps.logits.shape[1], device=hidden.device)
        return logits.scatter_(1, hidden.nan_to_num().long(), 1.0) + 0 * hidden


class _ToldUploads(Uploads):
    _model: TallyModel

    @classmethod
    def tell(cls, uploads: Uploads, model: TallyModel) -> None:
        """Let the model be called; all parts of the runner have these very uploads."""
        uploads.__class__ = cls
        uploads._model = model  # type: ignore[attr-defined]

    def __call__(self, arrays: Sequence[Ints]) -> list[torch.Tensor]:
        self._model.called()
        return super().__call__(arrays)
