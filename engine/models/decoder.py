"""The frame that all architectures share: embedding, a stack of layers, a last norm, a head."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TypeAlias

import torch

from engine.kv_cache.memory import KvMemory
from engine.layers.attention_plan import AttentionPlan
from engine.layers.embedding import Embedding, Head
from engine.layers.forward import Forward
from protocol.replicas import LayerGroup
from engine.layers.loader import Loader

Layer: TypeAlias = Callable[[torch.Tensor, Forward], torch.Tensor]
"""[rows, hidden] → the same."""


class Decoder:
    """A model: tokens and positions in, hidden states out; `head` makes logits of the rows that need them.

    `groups` are its layer groups, each of which needs a memory and a plan. `embedding_scale` multiplies embeddings,
    `plus_one` says that the last norm is stored as w − 1, `logit_cap` is the soft cap of the logits.
    Layers are best made while they are iterated over: then the embedding, which is held twice while its head is made,
    is loaded before them.
    """

    def __init__(
        self,
        load: Loader,
        layers: Iterable[Layer],
        *,
        embedding_scale: float | None = None,
        plus_one: bool = False,
        logit_cap: float | None = None,
    ) -> None:
        self.config = load.config
        self.embedding, head = _embedding_and_head(load)
        self.norm = load.norm("model.norm", plus_one=plus_one)
        self.head = Head(head, load.tiling, logit_cap)
        if head is self.embedding:
            self.embedding.read_from(self.head.linear)
        self.layers = list(layers)
        self.groups: tuple[LayerGroup, ...] = load.kv.groups()
        # Rounded to the type that the model runs in, as it was when the model was trained.
        scale = 1.0 if embedding_scale is None else torch.tensor(embedding_scale).to(load.like).item()
        self.embedding_scale = None if embedding_scale is None else float(scale)

    def __call__(
        self,
        tokens: torch.Tensor,
        positions: torch.Tensor,
        plans: Sequence[AttentionPlan],
        memories: Sequence[KvMemory],
        depth: int | None = None,
    ) -> torch.Tensor:
        """[rows] token ids at [rows] positions → normalized hidden states [rows, hidden], after `depth` layers or all."""
        h = self.embedding(tokens)
        if self.embedding_scale is not None:
            h = h * self.embedding_scale
        forward = Forward(positions, plans, memories)
        for layer in self.layers[:depth]:
            h = layer(h, forward)
        return self.norm(h)


def _embedding_and_head(load: Loader) -> tuple[Embedding, Embedding]:
    """They are one where the configuration ties them, under either name; where both are stored and differ, they are
    two all the same, as in transformers."""
    first, second = "model.embed_tokens", "lm_head"
    if not load.config.tied_embeddings:
        return load.embedding(first), load.embedding(second)
    has_second = load.checkpoint.has_part(second)
    if has_second and not load.checkpoint.has_part(first):
        first, has_second = second, False
    embedding = load.embedding(first)
    two = has_second and not load.checkpoint.same(f"{first}.weight", f"{second}.weight")
    return embedding, load.embedding(second) if two else embedding
