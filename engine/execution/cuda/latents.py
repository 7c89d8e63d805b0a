"""Latent attention by our kernels: what a layer computes between its first product and its attention.

All rows take the absorbed form (`engine.layers.latent_attention`), prompts as well: so a block of KV has the same bits
whoever made it.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from engine.execution.cuda.linears import ExactLinear, exact_linear, input_memory
from engine.kernels.attention_splits import split_bounds
from engine.kernels.latent_attention import STEPS
from engine.kernels.latent_rows import absorb_and_append
from engine.kernels.paged_kv import LatentKv
from engine.kernels.rows import rms_norm
from engine.layers.latent_attention import LatentAttention
from engine.layers.linear import Linear
from engine.models.decoder import Decoder

_MULTIPLE = 16
"""Of the sizes of heads and latents, which are inputs of products."""


def unsupported_latents(attention: LatentAttention) -> str | None:
    """Why latent attention cannot be computed by these kernels; None if it can."""
    if len(attention.inputs) > 1:
        return "latents have a bias, and queries have none"
    value_inputs, nope_inputs = attention.value.weight.shape[1], attention.absorb.weight.shape[1]
    if value_inputs % _MULTIPLE or nope_inputs % _MULTIPLE:
        return f"latents have {value_inputs} elements, heads {nope_inputs}"
    return None


def latent_products(attention: LatentAttention) -> list[Linear]:
    """The linear layers of latent attention."""
    query_up = [] if attention.query_up is None else [attention.query_up[1]]
    return [*attention.inputs, *query_up, attention.output]


def bounds_of(model: Decoder, context: int) -> list[int]:
    """Where keys are cut, for contexts of so many tokens."""
    latent = any(group.kind == "latent" for group in model.groups)
    return split_bounds(context, STEPS) if latent else split_bounds(context)


class FusedLatents:
    """Makes queries for latents, and keeps the rows' entries. `tables`: cosines and sines."""

    def __init__(self, attention: LatentAttention, tables: tuple[torch.Tensor, torch.Tensor]) -> None:
        self._attention = attention
        self._tables = tables
        self.query_up = None if attention.query_up is None else exact_linear(attention.query_up[1])

    def linears(self) -> Iterator[ExactLinear]:
        """Its products but the first and the last one."""
        if self.query_up is not None:
            yield self.query_up

    def __call__(
        self,
        made: torch.Tensor,
        kv: LatentKv,
        positions: torch.Tensor,
        table_rows: torch.Tensor,
        block_tables: torch.Tensor,
        *,
        streamed: bool,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """What the first product made → the queries [rows, heads, rank + rope], and memory for the values they see."""
        attention, rows = self._attention, len(made)
        query, entry = made[:, : attention.query_size], made[:, attention.query_size :]
        if self.query_up is not None:
            assert attention.query_up is not None
            norm = attention.query_up[0]
            normal, scales = input_memory(made, self.query_up.inputs, self.query_up.in_fp8)
            rms_norm(query, norm.weight, norm.eps, normal, scales=scales, ahead=streamed)
            query = self.query_up(normal, scales, streamed=streamed)
        out = made.new_empty(rows, attention.heads, kv.head_dim)
        norm = attention.latent_norm
        absorb_and_append(
            query, entry, attention.absorb.weight, out, kv, norm.weight, norm.eps, *self._tables, positions, table_rows,
            block_tables, interleaved=attention.interleaved,
        )  # fmt: skip
        return out, made.new_empty(rows, attention.heads, kv.value_dim)
