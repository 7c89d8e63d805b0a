"""The decoder layer of all architectures, as its parts: what it computes follows from what it is made of.

    h = h + attention_out_norm(attention(attention_norm(h)))
    h = h + mlp_out_norm(mlp(mlp_norm(h))) + shared(mlp_norm(h))

Most have no norms behind their parts, and no experts beside those that are chosen; some have none before their parts, a
factor for what is added, or both parts beside each other. Kernels that compute a whole layer ask for its parts whether
they can.
"""

from __future__ import annotations

from typing import final

import torch

from engine.layers.feed_forward import FeedForward, PlainFeedForward, SigmoidGated
from engine.layers.forward import Forward
from engine.layers.latent_attention import LatentAttention
from engine.layers.loader import Loader
from engine.layers.moe import MixtureOfExperts
from engine.layers.norm import Norm, RmsNorm
from engine.layers.self_attention import SelfAttention


@final
class DecoderLayer:
    """One decoder layer. `out_norms`: those behind the attention and the feed-forward layer. `shared`: experts that all
    tokens have. `fused_sums`: the last products of self-attention and a dense feed-forward layer add to h themselves.
    `factor`: of what is added to h. `parallel`: the feed-forward layer takes what the attention does, and has no norm
    of its own.
    """

    def __init__(
        self,
        norms: tuple[Norm | None, Norm | None],
        attention: SelfAttention | LatentAttention,
        mlp: FeedForward | PlainFeedForward | MixtureOfExperts,
        *,
        out_norms: tuple[RmsNorm, RmsNorm] | None = None,
        shared: FeedForward | SigmoidGated | None = None,
        fused_sums: bool = False,
        factor: float = 1.0,
        parallel: bool = False,
    ) -> None:
        self.attention_norm, self.mlp_norm = norms
        self.attention = attention
        self.mlp = mlp
        self.out_norms = out_norms
        self.shared = shared
        self.fused_sums = fused_sums
        self.factor = factor
        self.parallel = parallel

    def __call__(self, h: torch.Tensor, forward: Forward) -> torch.Tensor:
        """[rows, hidden] → the same."""
        if self.fused_sums:
            assert self.attention_norm is not None
            assert self.mlp_norm is not None
            h = self.attention(self.attention_norm(h), forward, plus=h)  # type: ignore[call-arg]  # self-attention
            return self.mlp(self.mlp_norm(h), plus=h)  # type: ignore[call-arg]  # a dense layer
        x = h if self.attention_norm is None else self.attention_norm(h)
        mixed = self.attention(x, forward)
        if self.parallel:
            return mixed + self.mlp(x) + h
        h = h + self._to_add(mixed, 0)
        x = h if self.mlp_norm is None else self.mlp_norm(h)
        h = h + self._to_add(self.mlp(x), 1)
        return h if self.shared is None else h + self.shared(x)

    def _to_add(self, part: torch.Tensor, place: int) -> torch.Tensor:
        if self.out_norms is not None:
            part = self.out_norms[place](part)
        return part if self.factor == 1.0 else part * self.factor


def llama_norms(load: Loader, index: int) -> tuple[RmsNorm, RmsNorm]:
    """The norms before the attention and before the feed-forward layer, by the names that Llama gave them."""
    name = f"model.layers.{index}"
    return load.norm(f"{name}.input_layernorm"), load.norm(f"{name}.post_attention_layernorm")
