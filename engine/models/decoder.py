"""The decoder that all architectures share: embedding, a stack of layers, a final norm, a head."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch

from engine.kv_cache.memory import KvMemory
from engine.layers.attention_plan import AttentionPlan
from engine.layers.decoder_layer import DecoderLayer
from engine.layers.embedding import Embedding, Head
from engine.layers.forward import Forward
from engine.layers.hidden_states import HiddenStates
from engine.layers.loader import Loader
from engine.layers.norm import Norm
from protocol.replicas import LayerGroup


class Decoder:
    """A model: maps tokens and positions to hidden states; `head` maps hidden states to logits.

    `groups`: its layer groups, each of which needs a KV memory and an attention plan. `weight_forms`: the formats of
    its weights of few bits. `layers` should be an iterator that makes layers: the embedding, which is held twice while
    the head is made, is then loaded before them.
    `embedding_scale` multiplies embeddings; `plus_one`: the final norm is stored as w − 1; `logit_cap`: the soft cap of
    logits. `logit_divisor`: logits are divided by it. `norm`: the final norm, if it is none of Llama's. `head_bias`:
    the head has one.
    """

    def __init__(
        self,
        load: Loader,
        layers: Iterable[DecoderLayer],
        *,
        embedding_scale: float | None = None,
        plus_one: bool = False,
        logit_cap: float | None = None,
        logit_divisor: float = 1.0,
        norm: Norm | None = None,
        head_bias: bool = False,
    ) -> None:
        self.config = load.config
        self.embedding, head = _embedding_and_head(load)
        self.norm: Norm = load.norm("model.norm", plus_one=plus_one) if norm is None else norm
        bias = load.tensor("lm_head.bias", load.config.vocabulary) if head_bias else None
        self.head = Head(head, load.tiling, logit_cap, bias, logit_divisor)
        if head is self.embedding:
            self.embedding.read_from(self.head.linear)
        self.layers = list(layers)
        self.weight_forms = tuple(sorted(load.forms))
        self.groups: tuple[LayerGroup, ...] = load.kv.groups()
        # Rounded to the model's type, as in training.
        scale = 1.0 if embedding_scale is None else torch.tensor(embedding_scale).to(load.like).item()
        self.embedding_scale = None if embedding_scale is None else float(scale)

    def __call__(
        self,
        tokens: torch.Tensor,
        positions: torch.Tensor,
        plans: Sequence[AttentionPlan],
        memories: Sequence[KvMemory],
        layers: Sequence[DecoderLayer] | None = None,
        *,
        states: HiddenStates | None = None,
    ) -> torch.Tensor:
        """[rows] token ids at [rows] positions → normalized hidden states [rows, hidden].

        `layers`: which of its layers to run; None for all. `states`: collects what goes into some of them.
        """
        h = self.embedding(tokens)
        if self.embedding_scale is not None:
            h = h * self.embedding_scale
        forward = Forward(positions, plans, memories)
        for index, layer in enumerate(self.layers if layers is None else layers):
            if states is not None:
                states.enter(index, h)
            h = layer(h, forward)
        h = self.norm(h)
        if states is not None:
            states.enter(len(self.layers), h)
        return h


def _embedding_and_head(load: Loader) -> tuple[Embedding, Embedding]:
    """The embedding and the head's weights: one object if the configuration ties them, stored under either name.

    If both are stored and differ, they are two nevertheless, as in transformers.
    """
    first, second = "model.embed_tokens", "lm_head"
    if not load.config.tied_embeddings:
        return load.embedding(first), load.embedding(second)
    has_second = load.checkpoint.has_part(second)
    if has_second and not load.checkpoint.has_part(first):
        first, has_second = second, False
    embedding = load.embedding(first)
    two = has_second and not load.checkpoint.same(f"{first}.weight", f"{second}.weight")
    return embedding, load.embedding(second) if two else embedding
