"""Llama (Touvron et al. 2023, Grattafiori et al. 2024): pre-norm decoder, rotary positions, grouped queries, SwiGLU.

    h = h + Wo · attention(rope(Wq · norm(h)), rope(Wk · norm(h)), Wv · norm(h))
    h = h + Wdown · (silu(Wgate · norm(h)) ⊙ Wup · norm(h))

Q, K, V are one product, gate and up another.
"""

from __future__ import annotations

import torch

from engine.errors import ModelError
from engine.kv_memory import KvMemory
from engine.layers.activation import silu_times
from engine.layers.attention import attend
from engine.layers.attention_plan import AttentionPlan
from engine.layers.embedding import Embedding, Head, load_embedding
from engine.layers.linear import Linear, Tiling, load_linear
from engine.layers.norm import RmsNorm, load_norm
from engine.layers.rotary import Rotary
from engine.models.config import ModelConfig
from engine.weights.checkpoint import Checkpoint


class LlamaLayer:
    """One decoder layer."""

    def __init__(
        self, index: int, config: ModelConfig, rotary: Rotary, checkpoint: Checkpoint, like: torch.Tensor, tiling: Tiling
    ) -> None:
        name = f"model.layers.{index}"
        q, kv = config.heads * config.head_dim, config.kv_heads * config.head_dim
        self.index = index
        self.config = config
        self.rotary = rotary

        def linear(names: list[str], outputs: list[int], inputs: int, *, bias: bool) -> Linear:
            paths = [f"{name}.{path}" for path in names]
            return load_linear(checkpoint, paths, outputs, inputs, bias=bias, like=like, tiling=tiling)

        def norm(part: str) -> RmsNorm:
            return load_norm(checkpoint, f"{name}.{part}", config.hidden, config.norm_eps, like)

        attention = [f"self_attn.{part}_proj" for part in "qkv"]
        self.attention_norm = norm("input_layernorm")
        self.qkv = linear(attention, [q, kv, kv], config.hidden, bias=config.attention_bias)
        self.output = linear(["self_attn.o_proj"], [config.hidden], q, bias=config.attention_bias)
        self.mlp_norm = norm("post_attention_layernorm")
        self.gate_up = linear(
            ["mlp.gate_proj", "mlp.up_proj"], [config.intermediate] * 2, config.hidden, bias=config.mlp_bias
        )
        self.down = linear(["mlp.down_proj"], [config.hidden], config.intermediate, bias=config.mlp_bias)

    def __call__(
        self, h: torch.Tensor, turn: tuple[torch.Tensor, torch.Tensor], plan: AttentionPlan, memory: KvMemory
    ) -> torch.Tensor:
        """[rows, hidden] → the same."""
        heads, kv_heads = self.config.heads, self.config.kv_heads
        qkv = self.qkv(self.attention_norm(h)).view(h.shape[0], heads + 2 * kv_heads, self.config.head_dim)
        qkv[:, : heads + kv_heads] = self.rotary.turn(qkv[:, : heads + kv_heads], turn)
        h = h + self.output(attend(qkv, plan, memory, self.index, heads))
        return h + self.down(silu_times(self.gate_up(self.mlp_norm(h))))


class Llama:
    """The model: tokens and positions in, hidden states out; `head` makes logits of the rows that need them."""

    def __init__(
        self, config: ModelConfig, checkpoint: Checkpoint, like: torch.Tensor, tiling: Tiling, context_tokens: int
    ) -> None:
        if config.activation != "silu":
            raise ModelError(f"{checkpoint.folder}: hidden_act {config.activation!r} is not supported for llama")
        self.config = config
        self.rotary = Rotary(config.rope, config.head_dim, context_tokens, like)
        self.embedding: Embedding = load_embedding(
            checkpoint, "model.embed_tokens", config.vocabulary, config.hidden, like
        )
        self.layers = [
            LlamaLayer(index, config, self.rotary, checkpoint, like, tiling) for index in range(config.layers)
        ]
        self.norm = load_norm(checkpoint, "model.norm", config.hidden, config.norm_eps, like)
        tied = config.tied_embeddings
        self.head = Head(
            self.embedding
            if tied
            else load_embedding(checkpoint, "lm_head", config.vocabulary, config.hidden, like),
            tiling,
        )

    def __call__(
        self,
        tokens: torch.Tensor,
        positions: torch.Tensor,
        plan: AttentionPlan,
        memory: KvMemory,
        depth: int | None = None,
    ) -> torch.Tensor:
        """[rows] token ids at [rows] positions → normalized hidden states [rows, hidden], after `depth` layers or all."""
        h = self.embedding(tokens)
        turn = self.rotary.at(positions)
        for layer in self.layers[:depth]:
            h = layer(h, turn, plan, memory)
        return self.norm(h)
