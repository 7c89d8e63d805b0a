"""DeepSeek-V2 and -V3 (DeepSeek-AI 2024): latent attention, and mixtures of experts with shared experts.

    h = h + latent_attention(norm(h))
    h = h + shared(norm(h)) + Σ over the chosen experts of weight · expert(norm(h))

Experts are in groups; a token uses only experts of its best groups. V2 ranks experts by softmax and groups by their
best expert. V3 ranks experts by sigmoid plus a bias for load balancing, which is not part of the weight, and groups by
the sum of their two best experts. Routers compute in fp32.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from engine.errors import ModelError
from engine.layers.decoder_layer import DecoderLayer, llama_norms
from engine.layers.feed_forward import FeedForward, load_experts
from engine.layers.latent_attention import LatentAttention
from engine.layers.loader import Loader
from engine.layers.moe import MixtureOfExperts, Router, highest, normalized, softmax
from engine.model_config.config_class import ONE, ConfigClass
from engine.model_config.fields import Fields
from engine.models.decoder import Decoder

_IGNORED = frozenset(
    {
        # Of the published models' own code: training, and how experts are spread over devices.
        "aux_loss_alpha",
        "ep_size",
        "num_nextn_predict_layers",
        "seq_aux",
        # Other names of `qk_rope_head_dim` and `qk_nope_head_dim`.
        "head_dim",
        "qk_head_dim",
    }
)
DEEPSEEK_V2 = ConfigClass(
    "deepseek_v2",
    {
        "vocab_size": 102400,
        "hidden_size": 4096,
        "intermediate_size": 11008,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": None,
        "hidden_act": "silu",
        "max_position_embeddings": 2048,
        "rms_norm_eps": 1e-6,
        "tie_word_embeddings": False,
        "attention_bias": False,
        "q_lora_rank": 1536,
        "kv_lora_rank": 512,
        "qk_nope_head_dim": 128,
        "qk_rope_head_dim": 64,
        "v_head_dim": 128,
        "first_k_dense_replace": 0,
        "moe_intermediate_size": 1407,
        "n_routed_experts": 64,
        "n_shared_experts": 2,
        "num_experts_per_tok": None,
        "n_group": None,
        "topk_group": None,
        "routed_scaling_factor": 1.0,
        "topk_method": "greedy",
        "mlp_bias": False,
    },
    aliases={"num_experts": "n_routed_experts"},
    # Its published code divides by the sum of the weights where `norm_topk_prob` is true, transformers does not.
    fixed={
        "moe_layer_freq": ONE,
        "norm_topk_prob": (None, False),
        "rope_interleave": (None, True),
        "scoring_func": (None, "softmax"),
    },
    ignored=_IGNORED,
    head_dim="qk_rope_head_dim",
)
DEEPSEEK_V3 = ConfigClass(
    "deepseek_v3",
    {
        "vocab_size": 129280,
        "hidden_size": 7168,
        "intermediate_size": 18432,
        "num_hidden_layers": 61,
        "num_attention_heads": 128,
        "num_key_value_heads": 128,
        "hidden_act": "silu",
        "max_position_embeddings": 4096,
        "rms_norm_eps": 1e-6,
        "tie_word_embeddings": False,
        "attention_bias": False,
        "q_lora_rank": 1536,
        "kv_lora_rank": 512,
        "qk_nope_head_dim": 128,
        "qk_rope_head_dim": 64,
        "v_head_dim": 128,
        "first_k_dense_replace": 3,
        "moe_intermediate_size": 2048,
        "n_routed_experts": 256,
        "n_shared_experts": 1,
        "num_experts_per_tok": 8,
        "n_group": 8,
        "topk_group": 4,
        "routed_scaling_factor": 2.5,
        "norm_topk_prob": True,
        "rope_interleave": True,
        "num_nextn_predict_layers": 1,
    },
    aliases={"num_local_experts": "n_routed_experts", "num_mtp_layers": "num_nextn_predict_layers"},
    fixed={"moe_layer_freq": ONE, "scoring_func": (None, "sigmoid"), "topk_method": (None, "noaux_tc")},
    ignored=_IGNORED,
    head_dim="qk_rope_head_dim",
)


# Kimi K2 (Moonshot AI 2025) is DeepSeek-V3 of another size, with one group of experts.
KIMI_K2 = replace(DEEPSEEK_V3, model_type="kimi_k2")


class GroupRouting:
    """Keeps the scores of each row's best groups, ranked by the sum of their `best` highest scores."""

    def __init__(self, fields: Fields, experts: int, best: int) -> None:
        self.best = best
        self.groups, self.kept = fields.integer("n_group"), fields.integer("topk_group")
        if experts % self.groups or experts // self.groups < best:
            raise ModelError(
                f"{fields.path}: field n_group: {experts} experts do not make {self.groups} groups of at least {best}"
            )
        if self.kept > self.groups:
            raise ModelError(f"{fields.path}: field topk_group must be at most {self.groups}, is {self.kept}")

    @property
    def numbers(self) -> tuple[int, int, int]:
        """How many groups there are, how many are kept, and by how many scores a group is ranked."""
        return self.groups, self.kept, self.best

    def __call__(self, scores: torch.Tensor, other: float) -> torch.Tensor:
        """[rows, experts] scores, with `other` in all groups but the best."""
        if self.kept == self.groups:
            return scores
        grouped = scores.view(len(scores), self.groups, -1)
        leading = grouped.sort(-1, descending=True).values[..., : self.best].cumsum(-1)[..., -1]
        allowed = torch.zeros_like(leading, dtype=torch.bool).scatter_(1, highest(leading, self.kept), True)
        return grouped.masked_fill(~allowed[..., None], other).view_as(scores)


@dataclass(frozen=True)
class ScoredExperts:
    """The `ranks` experts of the highest scores, or with `groups` of those in the best groups; among equals the first.

    Scores are the softmax of logits, or with `sigmoid` that of each by itself. `bias` [experts] fp32 counts for the
    choice alone. Weights are scores, with `normalize` divided by their sum, times `scale`.
    """

    ranks: int
    scale: float
    sigmoid: bool = False
    normalize: bool = False
    groups: GroupRouting | None = None
    bias: torch.Tensor | None = None

    def __call__(self, logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """See `Router`."""
        scores = 1.0 / (1.0 + logits.neg().exp_()) if self.sigmoid else softmax(logits)
        if self.groups is not None and not self.sigmoid:
            scores = self.groups(scores, 0.0)
        keys = scores if self.bias is None else scores + self.bias
        if self.groups is not None and self.sigmoid:
            keys = self.groups(keys, -torch.inf)
        chosen = highest(keys, self.ranks)
        weights = scores.gather(1, chosen)
        return chosen, (normalized(weights) if self.normalize else weights) * self.scale


def _v2_router(load: Loader, _: str, experts: int) -> Router:
    fields = load.config.fields
    ranks = fields.integer("num_experts_per_tok", most=experts)
    scale = fields.number("routed_scaling_factor")
    method = fields.text("topk_method", "greedy")
    if method not in {"greedy", "group_limited_greedy"}:
        raise ModelError(f"{fields.path}: topk_method {method!r} is not supported for deepseek_v2")
    groups = GroupRouting(fields, experts, 1) if method == "group_limited_greedy" else None
    return ScoredExperts(ranks, scale, groups=groups)


def _v3_router(load: Loader, name: str, experts: int) -> Router:
    fields = load.config.fields
    scale = fields.number("routed_scaling_factor")
    groups, normalize = GroupRouting(fields, experts, 2), fields.flag("norm_topk_prob")
    ranks, reached = fields.integer("num_experts_per_tok", most=experts), experts // groups.groups * groups.kept
    if reached < ranks < experts:  # the choice among the remaining experts would be arbitrary
        raise ModelError(f"{fields.path}: field num_experts_per_tok must be at most {reached} (topk_group), is {ranks}")
    bias = load.exact(f"{name}.e_score_correction_bias", experts)
    return ScoredExperts(ranks, scale, sigmoid=True, normalize=normalize, groups=groups, bias=bias)


def deepseek_layer(load: Loader, index: int, *, third: bool) -> DecoderLayer:
    """One decoder layer; the first ones are dense."""
    name, fields = f"model.layers.{index}", load.config.fields
    attention = LatentAttention(load, f"{name}.self_attn", index)
    norms = llama_norms(load, index)
    if index < fields.count("first_k_dense_replace"):
        return DecoderLayer(norms, attention, FeedForward(load, f"{name}.mlp", load.config.intermediate))
    moe, beside = _mixture(load, f"{name}.mlp", third=third)
    return DecoderLayer(norms, attention, moe, shared=beside)


def _mixture(load: Loader, name: str, *, third: bool) -> tuple[MixtureOfExperts, FeedForward | None]:
    """The chosen experts, and those that all tokens have."""
    fields = load.config.fields
    inner, count = fields.integer("moe_intermediate_size"), fields.integer("n_routed_experts")
    router = (_v3_router if third else _v2_router)(load, f"{name}.gate", count)
    shared = fields.count("n_shared_experts")
    experts = load_experts(load, f"{name}.experts", count, inner, beside=shared)
    moe = MixtureOfExperts(load.gate(f"{name}.gate", count, exact=True), router, *experts)
    return moe, FeedForward(load, f"{name}.shared_experts", inner * shared) if shared else None


def v3_feed_forward(load: Loader, index: int) -> tuple[FeedForward | MixtureOfExperts, FeedForward | None]:
    """The feed-forward layer of this index, and the experts that all tokens have beside it, as DeepSeek-V3 has them."""
    name = f"model.layers.{index}.mlp"
    if index < load.config.fields.count("first_k_dense_replace"):
        return FeedForward(load, name, load.config.intermediate), None
    return _mixture(load, name, third=True)


def deepseek_v2(load: Loader) -> Decoder:
    """DeepSeek-V2, also Lite."""
    return Decoder(load, (deepseek_layer(load, index, third=False) for index in range(load.config.layers)))


def deepseek_v3(load: Loader) -> Decoder:
    """DeepSeek-V3 and R1. Layers for multi-token prediction, behind the last one, are not loaded."""
    return Decoder(load, (deepseek_layer(load, index, third=True) for index in range(load.config.layers)))
