"""Token embedding, and the head that turns hidden states into logits."""

from __future__ import annotations

import torch

from engine.layers.linear import Linear, Tiling
from engine.weights.checkpoint import Checkpoint

VOCABULARY_MULTIPLE = 64


class Embedding:
    """[vocabulary, hidden], padded below with zero rows to a multiple of `VOCABULARY_MULTIPLE`.

    The padding keeps the element counts of logits even for vectorized kernels, on any device; the padding's logits are
    set to -inf and so never drawn.
    """

    def __init__(self, weight: torch.Tensor, vocabulary: int) -> None:
        self.weight = weight
        self.vocabulary = vocabulary

    def __call__(self, tokens: torch.Tensor) -> torch.Tensor:
        """[rows] token ids → [rows, hidden]."""
        return self.weight.index_select(0, tokens)


class Head:
    """Hidden states → logits in fp32, softly capped at `cap` if given; its weight may be the embedding's (tied)."""

    def __init__(self, embedding: Embedding, tiling: Tiling, cap: float | None = None) -> None:
        self.linear = Linear(embedding.weight, None, tiling)
        self.vocabulary = embedding.vocabulary
        self.cap = cap

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """[rows, hidden] → [rows, padded vocabulary]."""
        logits = self.linear(x).float()
        if self.cap is not None:
            logits = logits.div_(self.cap).tanh_().mul_(self.cap)
        if logits.shape[1] > self.vocabulary:
            logits[:, self.vocabulary :] = -torch.inf
        return logits


def load_embedding(checkpoint: Checkpoint, name: str, vocabulary: int, hidden: int, like: torch.Tensor) -> Embedding:
    """The tensor `name`.weight of [vocabulary, hidden], as an Embedding."""
    padded = -(-vocabulary // VOCABULARY_MULTIPLE) * VOCABULARY_MULTIPLE
    weight = like.new_zeros(padded, hidden)
    checkpoint.load(f"{name}.weight", weight[:vocabulary])
    return Embedding(weight, vocabulary)
