"""A decoder of the Llama family computed by fused kernels, from the weights that its layers hold.

Each layer is: norm, Q K V, rotary positions with the KV append, attention, output projection, norm with the residual
sum, gate and up, activation, down; or in place of the last three, a mixture of experts. The residual sum takes in norms
behind the parts of a layer, and factors (`layer_sums`). All of it is row-wise but the attention, and a row has the same
bits at every count of rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields
from typing import TypeAlias

import torch

from engine.execution.cuda.adapters import AdaptedRows
from engine.execution.cuda.experts import FusedExperts, Mixed, unsupported_experts
from engine.execution.cuda.fused_pass import Input, Pass
from engine.execution.cuda.latents import FusedLatents, latent_products, unsupported_latents
from engine.execution.cuda.layer_sums import FusedHead, Part, normalized
from engine.execution.cuda.linears import ExactLinear, exact_linear, fp8_weight
from engine.kernels.paged_kv import LatentKv, PagedKv, Scores
from engine.kernels.rows import quantize_rows, rms_norm, rotate_and_append, silu_mul
from engine.kv_cache.memory import KvMemory
from engine.layers.activation import PLAIN, gelu_tanh_times, silu_times
from engine.layers.decoder_layer import DecoderLayer
from engine.layers.feed_forward import FeedForward, PlainFeedForward
from engine.layers.latent_attention import LatentAttention
from engine.layers.linear import Linear, TiledLinear
from engine.layers.moe import MixtureOfExperts
from engine.layers.norm import Norm, RmsNorm
from engine.layers.rotary import Rotary
from engine.layers.self_attention import AttentionVariant, SelfAttention
from engine.models.decoder import Decoder

_LEAST_INPUTS, _LEAST_FP8_INPUTS = 16, 128
"""So many inputs are multiplied at a time, at least."""

_MOST_GROUPED = 64
"""Query heads of a KV head, at most: one tile of attention has them all."""

_FP8, _FP8_HEADS = "float8_e4m3fn", (64, 128, 256)
"""KV in 8 bits, and the sizes of heads that may be stored so."""

_OPTIONS = frozenset(
    ("window", "scale", "soft_cap", "qkv_bias", "output_bias", "qk_norm", "plus_one", "sinks", "interleaved", "turned",
     "wide_norms")
)  # fmt: skip
"""The options of `AttentionVariant` that the kernels compute. They would pass over any other."""

_WITH_E4M3 = (8, 9)
"""The first GPUs that compute in e4m3: Ada."""
_NO_E4M3 = "the device does not compute in e4m3"

_GELU = frozenset((gelu_tanh_times, PLAIN["gelu_pytorch_tanh"], PLAIN["gelu_new"]))
_ACTIVATIONS = _GELU | {silu_times, PLAIN["silu"]}
"""Those that the kernels compute."""

Attend: TypeAlias = Callable[["FusedLayer", torch.Tensor, torch.Tensor], None]
"""Writes the attention of a layer's queries [rows, heads, head dim] to the second tensor of the same shape."""


class FusedFeedForward:
    """The feed-forward part of a layer that is dense; without gates up stands for gate and up."""

    def __init__(self, mlp: FeedForward | PlainFeedForward) -> None:
        self.gate_up = exact_linear(mlp.gate_up if isinstance(mlp, FeedForward) else mlp.up)
        self.down = exact_linear(mlp.down)
        self.in_fp8 = self.gate_up.in_fp8
        self._gelu = mlp.activation in _GELU

    def __call__(self, x: Input, how: Pass, layer: int) -> torch.Tensor:
        """[rows, hidden] → the same, in the layer of this number."""
        gate_up = how.product(self.gate_up, f"{layer}.gate_up", x)
        acted = how.memory(gate_up, self.down.inputs, in_fp8=self.down.in_fp8)
        silu_mul(gate_up, acted.values, scales=acted.scales, ahead=how.streamed, gelu=self._gelu, plain=acted.plain)
        return how.product(self.down, f"{layer}.down", acted)


@dataclass(frozen=True)
class FusedLayer:
    """One layer's weights, and where its KV lies. What is not said here is as `DecoderLayer` has it."""

    attention_norm: Norm | None
    qkv: ExactLinear
    qk_norms: tuple[RmsNorm, RmsNorm] | None
    cosines: torch.Tensor
    sines: torch.Tensor
    group: int
    kv: PagedKv
    scores: Scores
    output: ExactLinear
    mlp_norm: Norm | None
    mlp: FusedFeedForward | FusedExperts
    variant: AttentionVariant
    out_norms: tuple[RmsNorm | None, RmsNorm | None]
    factor: float
    parallel: bool
    latents: FusedLatents | None
    """Of latent attention, whose first product is `qkv`."""


@dataclass(frozen=True)
class Rows:
    """The rows of one pass, on the device: `tokens`, `positions` (−1 for padding), and `tables`, the row of the block
    tables of each; int32 [rows]. `block_tables` int32 [sequences, blocks], one for each layer group. `adapted`: those
    with adapters, None for none."""

    tokens: torch.Tensor
    positions: torch.Tensor
    tables: torch.Tensor
    block_tables: Sequence[torch.Tensor]
    adapted: AdaptedRows | None = None


def unsupported(decoder: Decoder, device: torch.device) -> str | None:
    """Why a model cannot be computed by these kernels on this device; None if it can."""
    e4m3 = device.type != "cuda" or torch.cuda.get_device_capability(device) >= _WITH_E4M3
    computed = str(decoder.embedding.weight.dtype).removeprefix("torch.")
    for group in decoder.groups:
        latent = group.kind == "latent"
        in_fp8 = group.dtype == _FP8 and computed == "bfloat16" and group.head_dim in _FP8_HEADS and not latent
        if not (group.dtype == computed or in_fp8):
            return f"KV is kept as {group.kind} {group.dtype}"
        if in_fp8 and not e4m3:
            return _NO_E4M3
        grouped = 1 if latent else decoder.config.heads // group.kv_heads
        if group.head_dim < _LEAST_INPUTS or grouped > _MOST_GROUPED:
            return f"there are {decoder.config.heads} heads of {group.head_dim} for {group.kv_heads} of KV"
    return next((reason for layer in decoder.layers if (reason := _unsupported_layer(layer, e4m3)) is not None), None)


def _unsupported_layer(layer: DecoderLayer, e4m3: bool) -> str | None:
    attention, mlp = layer.attention, layer.mlp
    if isinstance(mlp, MixtureOfExperts):
        # What experts add to h is summed up in one kernel, which knows neither norms nor factors.
        norms = isinstance(layer.attention_norm, RmsNorm) and isinstance(layer.mlp_norm, RmsNorm)
        apart = bool(layer.out_norms) or layer.parallel or layer.factor != 1.0 or layer.fused_sums or not norms
    else:
        apart = layer.shared is not None
    if apart:
        return "layers add up their parts otherwise"
    if (reason := _unsupported_attention(attention)) is not None:
        return reason
    if isinstance(attention, LatentAttention):
        products = latent_products(attention)
    else:
        products = [attention.qkv, attention.output]
    if isinstance(mlp, MixtureOfExperts):
        reason = unsupported_experts(mlp, layer.shared, lambda product: _unsupported_product(product, e4m3))
        if reason is not None:
            return reason
    elif mlp.activation not in _ACTIVATIONS:
        return "the activation is neither SiLU nor GELU by tanh"
    else:
        products += [mlp.gate_up if isinstance(mlp, FeedForward) else mlp.up, mlp.down]
    return next((reason for product in products if (reason := _unsupported_product(product, e4m3)) is not None), None)


def _unsupported_attention(attention: SelfAttention | LatentAttention) -> str | None:
    if isinstance(attention, LatentAttention):
        return unsupported_latents(attention)
    unknown = _options(attention.variant) - _OPTIONS
    return f"attention has the option {min(unknown)}" if unknown else None


def _options(variant: AttentionVariant) -> set[str]:
    """The names of those that differ from Llama's."""
    return {each.name for each in fields(variant) if getattr(variant, each.name) != each.default}


def _unsupported_product(product: Linear, e4m3: bool) -> str | None:
    if isinstance(product, TiledLinear):
        return None
    in_fp8 = fp8_weight(product) is not None
    if not in_fp8 and (type(product) is not Linear or not product.is_plain):
        return "weights are kept in few bits, or in another order"
    if in_fp8 and not e4m3:
        return _NO_E4M3
    if product.inputs % (_LEAST_FP8_INPUTS if in_fp8 else _LEAST_INPUTS):
        return f"a projection has {product.inputs} inputs"
    return None


def _fused_attention(
    attention: SelfAttention | LatentAttention, tables: tuple[torch.Tensor, torch.Tensor], memory: KvMemory
) -> tuple[Linear, tuple[RmsNorm, RmsNorm] | None, FusedLatents | None, PagedKv]:
    """Its first product, its norms of queries and keys, and where its KV lies."""
    layer = attention.slot.layer
    if isinstance(attention, SelfAttention):
        return attention.qkv, attention.norms, None, PagedKv(memory.data, layer)
    kv = LatentKv(memory.data, layer, attention.value.weight)
    return attention.inputs[0], None, FusedLatents(attention, tables), kv


class FusedDecoder:
    """`decoder` with its KV in `memories`; see `unsupported`."""

    def __init__(self, decoder: Decoder, memories: Sequence[KvMemory]) -> None:
        config = decoder.config
        self.heads, self.head_dim, self.vocabulary = config.heads, config.head_dim, config.vocabulary
        self.embedding = decoder.embedding.weight
        self.device = self.embedding.device
        self.embedding_scale = decoder.embedding_scale
        self.norm = decoder.norm
        self.head = FusedHead(decoder.head)
        tables: dict[Rotary, tuple[torch.Tensor, torch.Tensor]] = {}
        self.layers = []
        for layer in decoder.layers:
            attention, mlp = layer.attention, layer.mlp
            assert isinstance(mlp, FeedForward | PlainFeedForward | MixtureOfExperts)
            if attention.rotary not in tables:
                cosines, sines = attention.rotary.exact_tables()
                tables[attention.rotary] = cosines.to(self.device), sines.to(self.device)
            slot, scoring = attention.slot, attention.scoring
            memory = memories[slot.group]
            scores = Scores(scoring.scale, memory.group.window, scoring.soft_cap, scoring.sinks)
            first, norms, latents, kv = _fused_attention(attention, tables[attention.rotary], memory)
            self.layers.append(
                FusedLayer(
                    layer.attention_norm, exact_linear(first), norms, *tables[attention.rotary],
                    slot.group, kv, scores, exact_linear(attention.output), layer.mlp_norm,
                    FusedExperts(mlp, layer.shared) if isinstance(mlp, MixtureOfExperts) else FusedFeedForward(mlp),
                    attention.variant if isinstance(attention, SelfAttention) else AttentionVariant(),
                    layer.out_norms or (None, None), layer.factor, layer.parallel, latents,
                )
            )  # fmt: skip

    def linears(self) -> Iterator[ExactLinear]:
        """The linear layers but the head, and those of experts."""
        for layer in self.layers:
            yield from (layer.qkv, layer.output)
            if layer.latents is not None:
                yield from layer.latents.linears()
            if isinstance(layer.mlp, FusedFeedForward):
                yield from (layer.mlp.gate_up, layer.mlp.down)

    def mixtures(self) -> Iterator[FusedExperts]:
        """The mixtures of experts."""
        yield from (layer.mlp for layer in self.layers if isinstance(layer.mlp, FusedExperts))

    def streams(self, count: int) -> bool:
        """Whether all products of so many rows may be streamed, those of the head and of experts apart."""
        some = [product.streamed_rows for product in self.linears() if product.streamed_rows]
        return bool(some) and min(some) >= count

    def __call__(self, rows: Rows, attend: Attend, *, streamed: bool = False) -> torch.Tensor:
        """The normalized hidden states [rows, hidden]; the rows' keys and values are stored.

        `streamed`: products begin before their inputs are there; that of the head as well, where it can.
        """
        h = self.embedding.index_select(0, rows.tokens)
        if self.embedding_scale is not None:
            h = h * self.embedding_scale
        count, how = len(h), Pass(streamed, rows.adapted)
        plus: Part | Mixed | None = None
        for index, layer in enumerate(self.layers):
            normal = normalized(h, layer.attention_norm, plus, layer.qkv.in_fp8, how)
            qkv = how.product(layer.qkv, f"{index}.qkv", normal)
            mixed = self._attention(layer, qkv, rows, attend, streamed=streamed).view(count, -1)
            part = how.product(layer.output, f"{index}.output", _as_input(mixed, layer.output.in_fp8, how))
            mlp = layer.mlp
            if layer.parallel:
                assert isinstance(mlp, FusedFeedForward)
                plus = Part(part.add_(mlp(normal, how, index)), None, 1.0)
                continue
            plus = Part(part, layer.out_norms[0], layer.factor)
            if isinstance(mlp, FusedExperts):
                plus = mlp(normalized(h, layer.mlp_norm, plus, False, Pass(False, None)).values, rows.positions)
            else:
                normal = normalized(h, layer.mlp_norm, plus, mlp.in_fp8, how)
                plus = Part(mlp(normal, how, index), layer.out_norms[1], layer.factor)
        last = Pass(streamed and self.head.streamed_rows >= count, None)
        return normalized(h, self.norm, plus, False, last).values

    def _attention(
        self, layer: FusedLayer, qkv: torch.Tensor, rows: Rows, attend: Attend, *, streamed: bool
    ) -> torch.Tensor:
        """The attention of these queries, keys and values, which are stored: [rows, heads, head dim]."""
        table = rows.block_tables[layer.group]
        if layer.latents is not None:
            assert isinstance(layer.kv, LatentKv)
            query, mixed = layer.latents(qkv, layer.kv, rows.positions, rows.tables, table, streamed=streamed)
            attend(layer, query, mixed)
            return mixed
        query = torch.empty(len(qkv), self.heads, self.head_dim, dtype=qkv.dtype, device=qkv.device)
        norms = layer.qk_norms
        if norms is not None and layer.variant.wide_norms:
            first = self.heads * self.head_dim
            for norm, part in zip(norms, (qkv[:, :first], qkv[:, first : first + norms[1].shape[0]]), strict=True):
                rms_norm(part, norm.weight, norm.eps, part)
            norms = None
        rotate_and_append(
            qkv, query, layer.kv, layer.cosines, layer.sines, rows.positions, rows.tables, table,
            norms=None if norms is None else (norms[0].weight, norms[1].weight),
            eps=0.0 if norms is None else norms[0].eps, interleaved=layer.variant.interleaved,
        )  # fmt: skip
        mixed = torch.empty_like(query)
        attend(layer, query, mixed)
        return mixed


def _as_input(x: torch.Tensor, in_fp8: bool, how: Pass) -> Input:
    if not in_fp8:
        return Input(x, None, x)
    out = Pass(how.streamed, None).memory(x, x.shape[1], in_fp8=True)
    assert out.scales is not None
    quantize_rows(x, out.values, out.scales, ahead=how.streamed)
    return Input(out.values, out.scales, x)
