"""gpt-oss (OpenAI 2025): mixtures of experts in MXFP4, attention sinks, every second layer with a sliding window.

    h = h + attention(norm(h)) with a learned sink for each head
    h = h + Σ over the best experts of softmax over the best(Wgate · norm(h)) · expert(norm(h))

An expert's gate and up projections are stored interleaved; both are clamped, and up is shifted by 1.
"""

from __future__ import annotations

import torch

from engine.layers.decoder_layer import DecoderLayer, llama_norms
from engine.layers.linear import Linear
from engine.layers.loader import Loader
from engine.layers.moe import MixtureOfExperts, StackedExperts, TopExperts
from engine.layers.self_attention import AttentionVariant, layer_attention
from engine.model_config.config_class import ConfigClass
from engine.models.decoder import Decoder

GPT_OSS = ConfigClass(
    "gpt_oss",
    {
        "vocab_size": 201088,
        "hidden_size": 2880,
        "intermediate_size": 2880,
        "num_hidden_layers": 36,
        "num_attention_heads": 64,
        "num_key_value_heads": 8,
        "head_dim": 64,
        "hidden_act": "silu",
        "max_position_embeddings": 131072,
        "rms_norm_eps": 1e-5,
        "tie_word_embeddings": False,
        "attention_bias": True,
        "sliding_window": 128,
        "layer_types": None,
        "num_local_experts": 128,
        "num_experts_per_tok": 4,
        "swiglu_alpha": 1.702,
        "swiglu_limit": 7.0,
    },
    rope={
        "rope_type": "yarn",
        "factor": 32.0,
        "beta_fast": 32.0,
        "beta_slow": 1.0,
        "truncate": False,
        "original_max_position_embeddings": 4096,
    },
    rope_theta=150_000.0,
    aliases={"num_experts": "num_local_experts", "experts_per_token": "num_experts_per_tok"},
    ignored=frozenset({"initial_context_length"}),
)


class GptOssExpert:
    """Wdown · ((clamp(Wup · x) + 1) ⊙ g · sigmoid(α · g)) with g = clamp(Wgate · x)."""

    def __init__(self, gate_up: Linear, down: Linear, alpha: float, limit: float) -> None:
        self.gate_up = gate_up
        self.down = down
        self.alpha = alpha
        self.limit = limit

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """[rows, hidden] → the same."""
        gate, up = self.gate_up(x).chunk(2, dim=-1)
        gate, up = gate.clamp(max=self.limit), up.clamp(-self.limit, self.limit)
        return self.down((up + 1).mul_(gate).div_((gate * -self.alpha).exp_().add_(1.0)))


def _experts(load: Loader, name: str, count: int) -> tuple[list[GptOssExpert], StackedExperts | None]:
    config, fields = load.config, load.config.fields
    hidden, inner = config.hidden, config.intermediate
    # Stored: even outputs are the gate's, odd ones up's. Here: first all of the gate, then all of up.
    order = torch.cat([torch.arange(0, 2 * inner, 2), torch.arange(1, 2 * inner, 2)])
    gate_up = load.experts(f"{name}.gate_up_proj", count, 2 * inner, hidden, order)
    gate_up_bias = load.tensor(f"{name}.gate_up_proj_bias", count, 2 * inner)[:, order]
    down = load.experts(f"{name}.down_proj", count, hidden, inner)
    down_bias = load.tensor(f"{name}.down_proj_bias", count, hidden)
    alpha, limit = fields.number("swiglu_alpha"), fields.number("swiglu_limit")
    experts = [
        GptOssExpert(
            load.product(f"{name}.gate_up_proj", gate_up[expert], gate_up_bias[expert]),
            load.product(f"{name}.down_proj", down[expert], down_bias[expert]),
            alpha,
            limit,
        )
        for expert in range(count)
    ]
    if load.stacks and isinstance(gate_up, torch.Tensor) and isinstance(down, torch.Tensor):
        return experts, StackedExperts.of(gate_up, down, (expert.gate_up for expert in experts))
    return experts, None


def gpt_oss_layer(load: Loader, index: int, window: int) -> DecoderLayer:
    """One decoder layer."""
    name, config, fields = f"model.layers.{index}.mlp", load.config, load.config.fields
    bias = config.attention_bias
    variant = AttentionVariant(window=window, sinks=True, qkv_bias=bias, output_bias=bias)
    attention = layer_attention(load, index, variant)
    count = fields.integer("num_local_experts")
    ranks = fields.integer("num_experts_per_tok", most=count)
    gate = load.gate(f"{name}.router", count, bias=True)
    moe = MixtureOfExperts(gate, TopExperts(ranks, normalize=True), *_experts(load, f"{name}.experts", count))
    return DecoderLayer(llama_norms(load, index), attention, moe)


def gpt_oss(load: Loader) -> Decoder:
    """gpt-oss of any size."""
    config = load.config
    windows = config.windows(config.fields.count("sliding_window"), lambda index: index % 2 == 0)
    return Decoder(load, (gpt_oss_layer(load, index, window) for index, window in enumerate(windows)))
