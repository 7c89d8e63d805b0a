"""The token embedding, and the head that maps hidden states to logits."""

from __future__ import annotations

import structlog
import torch

from engine.layers.linear import Linear, Tiling
from engine.layers.packed_rows import PackedRows, packed_rows
from engine.weights.checkpoint import Checkpoint

logger = structlog.get_logger("engine.layers.embedding")

VOCABULARY_MULTIPLE = 64
_LARGE = 1 << 22
"""Elements from which on a tied weight is held once. A smaller one takes at most 16 MiB, and two copies are faster."""


class Embedding:
    """[vocabulary, hidden], padded with zero rows to a multiple of `VOCABULARY_MULTIPLE`.

    The padding gives vectorized kernels whole vectors on any device. Its logits are set to -inf and never sampled.
    """

    def __init__(self, weight: torch.Tensor, vocabulary: int) -> None:
        self.weight = weight
        self.vocabulary = vocabulary
        self._elsewhere: PackedRows | None = None

    def __call__(self, tokens: torch.Tensor) -> torch.Tensor:
        """[rows] token ids → [rows, hidden]."""
        return self.weight.index_select(0, tokens) if self._elsewhere is None else self._elsewhere(tokens)

    def read_from(self, product: Linear) -> None:
        """Let go of the weight where its rows can be read from what `product`, made of the same one, keeps of it."""
        kept = product.weight
        if self.weight.numel() <= _LARGE or kept is self.weight:
            return
        self._elsewhere = packed_rows(kept, self.weight) if kept.is_mkldnn else None
        if self._elsewhere is None:
            logger.info("the embedding is held beside the head that is tied to it", bytes=self.weight.nbytes)
        else:
            self.weight = self.weight.new_empty(0, self.weight.shape[1])


class Head:
    """Hidden states → logits in fp32, softly capped at `cap` if given; its weight may be the embedding's (tied).

    `bias` [vocabulary]: added to them; `divisor`: they are divided by it.
    """

    def __init__(
        self,
        embedding: Embedding,
        tiling: Tiling,
        cap: float | None = None,
        bias: torch.Tensor | None = None,
        divisor: float = 1.0,
    ) -> None:
        if bias is not None:
            bias = torch.nn.functional.pad(bias, (0, len(embedding.weight) - len(bias)))
        self.linear = Linear(embedding.weight, bias, tiling)
        self.vocabulary = embedding.vocabulary
        self.cap = cap
        self.divisor = divisor

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """[rows, hidden] → [rows, padded vocabulary]."""
        logits = self.linear(x).float()
        if self.divisor != 1.0:
            logits = logits.div_(self.divisor)
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
