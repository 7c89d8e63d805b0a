"""Self-attention with grouped query heads and rotary positions.

    Wo · attention(rope(norm(Wq · x)), rope(norm(Wk · x)), Wv · x)

The norms, a window, a soft cap and sinks are optional (`AttentionVariant`).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from engine.layers.attention import Scoring, attend
from engine.layers.forward import Forward
from engine.layers.loader import Loader
from engine.layers.norm import RmsNorm
from engine.layers.rotary import Rotary, interleaved_as_halves_


@dataclass(frozen=True)
class AttentionVariant:
    """The options of an architecture's attention. The fused kernels compute those that
    `engine.execution.cuda.model` lists; a model that sets another is computed by stock operations.

    `window`: in tokens, 0 for none. `scale`: of scores, 1/√head dim if None. `qk_norm`: queries and keys are normalized
    per head; `plus_one`: those norms are stored as w − 1. `interleaved`: rotary pairs are neighbours.
    `turned`: whether positions turn queries and keys at all. `wide_norms`:
    all queries of a row are normalized as one vector, and so are all keys.
    """

    window: int = 0
    scale: float | None = None
    soft_cap: float | None = None
    qkv_bias: bool = False
    output_bias: bool = False
    qk_norm: bool = False
    plus_one: bool = False
    sinks: bool = False
    interleaved: bool = False
    turned: bool = True
    wide_norms: bool = False


class SelfAttention:
    """The attention `name` of the layer `index`; Q, K and V are one product.

    `inputs`: of that product; None for the hidden size. `output`: the name of the last product.
    """

    def __init__(
        self,
        load: Loader,
        name: str,
        index: int,
        rotary: Rotary,
        variant: AttentionVariant,
        *,
        inputs: int | None = None,
        output: str = "o_proj",
    ) -> None:
        self.variant, config = variant, load.config
        self.heads, self.kv_heads, self.dim = config.heads, config.kv_heads, config.head_dim
        q, kv = self.heads * self.dim, self.kv_heads * self.dim
        self.rotary = rotary
        self.slot = load.kv.place(index, self.kv_heads, self.dim, window=variant.window)
        self.qkv = load.fused(
            f"{name}.qkv_proj",
            [f"{name}.{part}_proj" for part in "qkv"],
            [q, kv, kv],
            config.hidden if inputs is None else inputs,
            bias=variant.qkv_bias,
        )
        self.output = load.linear([f"{name}.{output}"], [config.hidden], q, bias=variant.output_bias)
        self.norms: tuple[RmsNorm, RmsNorm] | None = None
        if variant.qk_norm:
            first, second = (load.norm(f"{name}.{part}_norm", self.dim, plus_one=variant.plus_one) for part in "qk")
            self.norms = first, second
        if variant.wide_norms:
            self.norms = load.norm(f"{name}.q_norm", q), load.norm(f"{name}.k_norm", kv)
        self.scoring = Scoring(
            self.dim**-0.5 if variant.scale is None else variant.scale,
            self.dim,
            variant.soft_cap,
            load.tensor(f"{name}.sinks", self.heads).float() if variant.sinks else None,
        )

    def __call__(self, x: torch.Tensor, forward: Forward, plus: torch.Tensor | None = None) -> torch.Tensor:
        """[rows, inputs] → [rows, hidden], to which `plus` is added if given; the rows' keys and values are stored."""
        turned = self.heads + self.kv_heads
        qkv = self.qkv(x).view(x.shape[0], turned + self.kv_heads, self.dim)
        if self.norms is not None:
            for norm, part in zip(self.norms, (qkv[:, : self.heads], qkv[:, self.heads : turned]), strict=True):
                vectors = part.reshape(len(part), -1) if self.variant.wide_norms else part
                part.copy_(norm(vectors).view(part.shape))
        if self.variant.interleaved:
            interleaved_as_halves_(qkv.narrow(1, 0, turned), self.rotary.dim)
        forward.apply_rotary_(self.rotary, qkv.narrow(1, 0, turned))
        query, entries = qkv.narrow(1, 0, self.heads), qkv.narrow(1, self.heads, 2 * self.kv_heads)
        plan, memory = forward.group(self.slot)
        mixed = attend(query, entries, plan, memory, layer=self.slot.layer, scoring=self.scoring)
        return self.output(mixed, plus)


def layer_attention(load: Loader, index: int, variant: AttentionVariant) -> SelfAttention:
    """The attention of the layer `index`, with the positions of the whole model."""
    config = load.config
    rotary = load.rotary(config.rope, config.head_dim) if variant.turned else load.no_rotary()
    return SelfAttention(load, f"model.layers.{index}.self_attn", index, rotary, variant)
