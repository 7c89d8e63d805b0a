"""Multi-token prediction (DeepSeek-AI 2024): a layer behind a checkpoint's last one, used as a head that drafts.

    h = layer(Weh · [norm(embedding), norm(state)])     state: what the last norm gave for the token before
    logits = Whead · norm(h)                            norm(h) is the state of the next draft, until it is known

It lies in the served model's own folder, as the layer `num_hidden_layers`, with the names `enorm`, `hnorm`, `eh_proj`,
`shared_head.norm`, and its own `embed_tokens` and `shared_head.head`, where they differ from the model's.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from engine.errors import ModelError
from engine.kv_cache.memory import KvMemory
from engine.layers.attention_plan import AttentionPlan
from engine.layers.embedding import Head
from engine.layers.forward import Forward
from engine.layers.loader import Loader
from engine.model_config.config import ModelConfig
from engine.models.decoder import Decoder
from engine.models.deepseek import deepseek_layer

MTP_FAMILIES = frozenset({"deepseek_v3"})
"""Families whose published checkpoints have such a layer."""


class MtpHead:
    """The first layer for multi-token prediction of the served `model` as a `DraftingModel`."""

    def __init__(self, load: Loader, model: Decoder) -> None:
        config, checkpoint = load.config, load.checkpoint
        check_has_mtp(config, load)
        name = f"model.layers.{config.layers}"
        self.state_layers: tuple[int, ...] = (config.layers,)
        self.state_size = config.hidden
        self.heads, self.like, self.tiling = config.heads, load.like, load.tiling
        self.embedding = model.embedding
        if checkpoint.has_part(f"{name}.embed_tokens"):
            self.embedding = load.embedding(f"{name}.embed_tokens")
        self.vocabulary = self.embedding.vocabulary
        self.embedding_norm = load.norm(f"{name}.enorm")
        self.state_norm = load.norm(f"{name}.hnorm")
        self.fuse = load.linear([f"{name}.eh_proj"], [config.hidden], 2 * config.hidden)
        self.layer = deepseek_layer(load, config.layers, third=True)
        self.norm = load.norm(f"{name}.shared_head.norm")
        self.head = model.head
        if checkpoint.has_part(f"{name}.shared_head.head"):
            self.head = Head(load.embedding(f"{name}.shared_head.head"), load.tiling)
        self.groups = load.kv.groups()

    def features(self, states: torch.Tensor) -> torch.Tensor:
        """[rows, state size] of the served model → the same."""
        return states

    def compute(
        self,
        tokens: torch.Tensor,
        positions: torch.Tensor,
        features: torch.Tensor | None,
        plans: Sequence[AttentionPlan],
        memories: Sequence[KvMemory],
    ) -> torch.Tensor:
        """See `DraftingModel`; `features` are of the tokens before."""
        assert features is not None
        x = torch.cat([self.embedding_norm(self.embedding(tokens)), self.state_norm(features)], -1)
        return self.norm(self.layer(self.fuse(x), Forward(positions, plans, memories)))

    def likeliest(self, hidden: torch.Tensor) -> torch.Tensor:
        """See `DraftingModel`."""
        return self.head(hidden).argmax(-1)


def check_has_mtp(config: ModelConfig, load: Loader) -> None:
    """Raise ModelError unless the model's family and folder have a layer for multi-token prediction."""
    if config.model_type not in MTP_FAMILIES:
        raise ModelError(
            f"{config.fields.path}: model_type {config.model_type!r} has no head for multi-token prediction that is"
            f" supported ({', '.join(sorted(MTP_FAMILIES))} have)"
        )
    if not load.checkpoint.has_part(f"model.layers.{config.layers}.eh_proj"):
        raise ModelError(
            f"{load.checkpoint.folder}: tensor model.layers.{config.layers}.eh_proj.weight is missing: the folder has"
            " no layer for multi-token prediction"
        )
