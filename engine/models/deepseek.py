"""DeepSeek-V2 and -V3 (DeepSeek-AI 2024): latent attention, and mixtures with experts that every token shares.

    h = h + latent_attention(norm(h))
    h = h + shared(norm(h)) + Σ over the chosen experts of weight · expert(norm(h))

Experts are in groups; a token may only use those of its best groups. V2 ranks by softmax, a group by its best expert.
V3 ranks by sigmoid plus a bias that balances the load and is not part of the weight, a group by its two best experts.
Routers compute in fp32.
"""

from __future__ import annotations

import torch

from engine.errors import ModelError
from engine.layers.feed_forward import FeedForward
from engine.layers.forward import Forward
from engine.layers.latent_attention import LatentAttention
from engine.layers.moe import MixtureOfExperts, Router, highest, normalized, softmax
from engine.models.decoder import Decoder
from engine.models.fields import Fields
from engine.weights.loader import Loader


class GroupRouting:
    """Keeps the scores of each row's best groups."""

    def __init__(self, fields: Fields, experts: int) -> None:
        self.groups, self.kept = fields.integer("n_group", 1), fields.integer("topk_group", 1)
        if experts % self.groups or self.kept > self.groups:
            raise ModelError(f"{fields.path}: {experts} experts do not make n_group {self.groups} groups")

    def __call__(self, scores: torch.Tensor, best: int, other: float) -> torch.Tensor:
        """[rows, experts] with `other` in all groups but the best by the sum of their `best` highest scores."""
        if self.kept == self.groups:
            return scores
        grouped = scores.view(len(scores), self.groups, -1)
        leading = grouped.sort(-1, descending=True).values[..., :best].cumsum(-1)[..., -1]
        allowed = torch.zeros_like(leading, dtype=torch.bool).scatter_(1, highest(leading, self.kept), True)
        return grouped.masked_fill(~allowed[..., None], other).view_as(scores)


def _v2_router(load: Loader, _: str, experts: int) -> Router:
    fields = load.config.fields
    ranks = fields.integer("num_experts_per_tok", most=experts)
    scale = fields.number("routed_scaling_factor", 1.0)
    method, normalize = fields.text("topk_method", "greedy"), fields.flag("norm_topk_prob")
    if method not in {"greedy", "group_limited_greedy"}:
        raise ModelError(f"{fields.path}: topk_method {method!r} is not supported for deepseek_v2")
    groups = GroupRouting(fields, experts) if method == "group_limited_greedy" else None

    def route(logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        scores = softmax(logits)
        if groups is not None:
            scores = groups(scores, 1, 0.0)
        chosen = highest(scores, ranks)
        weights = scores.gather(1, chosen)
        return chosen, normalized(weights) if normalize else weights * scale

    return route


def _v3_router(load: Loader, name: str, experts: int) -> Router:
    fields = load.config.fields
    ranks = fields.integer("num_experts_per_tok", most=experts)
    scale = fields.number("routed_scaling_factor", 1.0)
    groups, normalize = GroupRouting(fields, experts), fields.flag("norm_topk_prob", True)
    bias = load.exact(f"{name}.e_score_correction_bias", experts)

    def route(logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        scores = 1.0 / (1.0 + logits.neg().exp_())
        chosen = highest(groups(scores + bias, 2, -torch.inf), ranks)
        weights = scores.gather(1, chosen)
        return chosen, (normalized(weights) if normalize else weights) * scale

    return route


class DeepSeekLayer:
    """One decoder layer; the first ones are dense."""

    def __init__(self, load: Loader, index: int, *, third: bool) -> None:
        name, config, fields = f"model.layers.{index}", load.config, load.config.fields
        self.attention_norm = load.norm(f"{name}.input_layernorm")
        self.attention = LatentAttention(load, f"{name}.self_attn", index)
        self.mlp_norm = load.norm(f"{name}.post_attention_layernorm")
        self.shared: FeedForward | None = None
        self.mlp: FeedForward | MixtureOfExperts
        sparse = index >= fields.count("first_k_dense_replace") and index % fields.integer("moe_layer_freq", 1) == 0
        if not sparse:
            self.mlp = FeedForward(load, f"{name}.mlp", config.intermediate)
            return
        inner, count = fields.integer("moe_intermediate_size"), fields.integer("n_routed_experts")
        router = (_v3_router if third else _v2_router)(load, f"{name}.mlp.gate", count)
        experts = [FeedForward(load, f"{name}.mlp.experts.{expert}", inner) for expert in range(count)]
        self.mlp = MixtureOfExperts(load.gate(f"{name}.mlp.gate", count, exact=True), router, experts)
        if shared := fields.count("n_shared_experts"):
            self.shared = FeedForward(load, f"{name}.mlp.shared_experts", inner * shared)

    def __call__(self, h: torch.Tensor, forward: Forward) -> torch.Tensor:
        """[rows, hidden] → the same."""
        h = h + self.attention(self.attention_norm(h), forward)
        x = self.mlp_norm(h)
        return h + self.mlp(x) if self.shared is None else h + self.mlp(x) + self.shared(x)


def deepseek_v2(load: Loader) -> Decoder:
    """DeepSeek-V2, also Lite."""
    return Decoder(load, [DeepSeekLayer(load, index, third=False) for index in range(load.config.layers)])


def deepseek_v3(load: Loader) -> Decoder:
    """DeepSeek-V3 and R1. Layers for multi-token prediction, behind the last one, are not loaded."""
    return Decoder(load, [DeepSeekLayer(load, index, third=True) for index in range(load.config.layers)])
