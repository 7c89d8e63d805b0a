"""Multi-head latent attention (MLA, DeepSeek-AI 2024): a token's KV is one latent vector and one rotary key.

All heads' keys and values are linear in the latent, k = W_uk · c and v = W_uv · c. So W_uk is absorbed into the query
and W_uv is applied after the attention, which runs over the latents as if they were one KV head:

    q·k = (W_ukᵀ · q_nope) · c + rope(q_rope) · rope(k_rope)        output = Wo · W_uv · Σ weight · c
"""

from __future__ import annotations

import torch

from engine.layers.attention import Scoring, attend
from engine.layers.forward import Forward
from engine.layers.linear import Linear
from engine.layers.loader import Loader
from engine.layers.matmul_kernels import ROW_MULTIPLE
from engine.layers.norm import RmsNorm

_NORM_EPS = 1e-6
"""Epsilon of the norms inside the attention, as in training, whatever `rms_norm_eps` is."""


def _halves(x: torch.Tensor) -> torch.Tensor:
    """Reorder interleaved rotary pairs into two halves."""
    return torch.cat([x[..., ::2], x[..., 1::2]], -1)


class LatentAttention:
    """The attention `name` of the layer `index`. Queries have a low-rank projection if `q_lora_rank` is set."""

    def __init__(self, load: Loader, name: str, index: int) -> None:
        config, fields = load.config, load.config.fields
        self.heads = config.heads
        self.rank = fields.integer("kv_lora_rank")
        self.nope, self.rope = fields.integer("qk_nope_head_dim"), fields.integer("qk_rope_head_dim")
        value = fields.integer("v_head_dim")
        bias = config.attention_bias
        self.interleaved = fields.flag("rope_interleave", "rope_interleave" not in fields.fields)
        self.rotary = load.rotary(config.rope, self.rope)
        self.slot = load.kv.place(index, 1, self.rank + self.rope, latent=True)
        query = self.heads * (self.nope + self.rope)
        self.query_up: tuple[RmsNorm, Linear] | None = None
        """Of a low-rank projection: its norm and its second product."""
        first, size = "q_proj", query
        if "q_lora_rank" in fields:
            first, size = "q_a_proj", fields.integer("q_lora_rank")
            norm = load.norm(f"{name}.q_a_layernorm", size, eps=_NORM_EPS)
            self.query_up = norm, load.linear([f"{name}.q_b_proj"], [query], size)
        names, sizes = [f"{name}.{first}", f"{name}.kv_a_proj_with_mqa"], [size, self.rank + self.rope]
        self.query_size = size
        self.inputs: list[Linear] = (
            # Without a low rank the query has no bias.
            [load.linear([part], [outputs], config.hidden, bias=part != f"{name}.q_proj")
             for part, outputs in zip(names, sizes, strict=True)]
            if bias and self.query_up is None
            else [load.linear(names, sizes, config.hidden, bias=bias)]
        )  # fmt: skip
        """What queries, and latents with keys, are made by: one product, or one for each."""
        self.latent_norm = load.norm(f"{name}.kv_a_layernorm", self.rank, eps=_NORM_EPS)
        up = load.tensor(f"{name}.kv_b_proj.weight", self.heads * (self.nope + value), self.rank)
        up = load.rounded(f"{name}.kv_b_proj", up).view(self.heads, self.nope + value, self.rank)
        self.absorb = HeadLinear(up[:, : self.nope].transpose(1, 2))
        self.value = HeadLinear(up[:, self.nope :])
        self.output = load.linear([f"{name}.o_proj"], [config.hidden], self.heads * value, bias=bias)
        scale = (self.nope + self.rope) ** -0.5 * config.rope.score_magnitude**2
        self.scoring = Scoring(scale, self.rank)

    def __call__(self, x: torch.Tensor, forward: Forward) -> torch.Tensor:
        """[rows, hidden] → the same; the rows' latents are stored."""
        rows = x.shape[0]
        made = self.inputs[0](x) if len(self.inputs) == 1 else torch.cat([product(x) for product in self.inputs], 1)
        q, latent = made[:, : self.query_size], made[:, None, self.query_size :]
        if self.query_up is not None:
            norm, up = self.query_up
            q = up(norm(q.contiguous()))
        q = q.reshape(rows, self.heads, self.nope + self.rope)
        turned = torch.cat([q[..., self.nope :], latent[..., self.rank :]], dim=1)
        turned = forward.apply_rotary_(self.rotary, _halves(turned) if self.interleaved else turned)
        query = torch.cat([self.absorb(q[..., : self.nope]), turned[:, : self.heads]], -1)
        entries = torch.cat([self.latent_norm(latent[..., : self.rank]), turned[:, self.heads :]], -1)
        plan, memory = forward.group(self.slot)
        mixed = attend(query, entries, plan, memory, layer=self.slot.layer, scoring=self.scoring)
        return self.output(self.value(mixed.view(rows, self.heads, self.rank)).reshape(rows, -1))


class HeadLinear:
    """A product for each head: y[head] = x[head] · W[head]ᵀ; W is [heads, outputs, inputs].

    Computed in tiles of exactly ROW_MULTIPLE rows, so that a row's bits do not depend on how many rows there are.
    """

    def __init__(self, weight: torch.Tensor) -> None:
        self.weight = weight.transpose(1, 2).contiguous()
        """[heads, inputs, outputs]."""

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """[rows, heads, inputs] → [rows, heads, outputs]."""
        rows, heads, inputs = x.shape
        padded = x.new_zeros(rows + -rows % ROW_MULTIPLE, heads, inputs)
        padded[:rows] = x
        tiles = [torch.bmm(tile.transpose(0, 1), self.weight) for tile in torch.split(padded, ROW_MULTIPLE)]
        return torch.cat(tiles, dim=1).transpose(0, 1)[:rows]
