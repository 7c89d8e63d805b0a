"""A decoder of the Llama family computed by fused kernels, from the weights that its layers hold.

Each layer is: norm, Q K V, rotary positions with the KV append, attention, output projection, norm with the residual
sum, gate and up, activation, down; or in place of the last three, a mixture of experts. All of it is row-wise but the
attention, and a row has the same bits at every count of rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields
from typing import TypeAlias

import torch

from engine.execution.cuda.adapters import AdaptedRows
from engine.execution.cuda.experts import FusedExperts, Mixed, unsupported_experts
from engine.execution.cuda.linears import ExactLinear, exact_linear, fp8_weight
from engine.kernels.expert_routing import combine_and_norm
from engine.kernels.paged_kv import PagedKv, Scores
from engine.kernels.rows import quantize_rows, rms_norm, rotate_and_append, silu_mul
from engine.kv_cache.memory import KvMemory
from engine.layers.activation import silu_times
from engine.layers.decoder_layer import DecoderLayer
from engine.layers.feed_forward import FeedForward
from engine.layers.linear import Linear, TiledLinear
from engine.layers.moe import MixtureOfExperts
from engine.layers.norm import RmsNorm
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
    ("window", "scale", "soft_cap", "qkv_bias", "output_bias", "qk_norm", "plus_one", "sinks", "turned")
)
"""The options of `AttentionVariant` that the kernels compute. They would pass over any other."""

_WITH_E4M3 = (8, 9)
"""The first GPUs that compute in e4m3: Ada."""
_NO_E4M3 = "the device does not compute in e4m3"

Attend: TypeAlias = Callable[["FusedLayer", torch.Tensor, torch.Tensor], None]
"""Writes the attention of a layer's queries [rows, heads, head dim] to the second tensor of the same shape."""


@dataclass(frozen=True)
class Input:
    """What a linear layer takes: rows, and their scales where they are e4m3. `plain`: what adapters take, the same rows
    in the model's type."""

    values: torch.Tensor
    scales: torch.Tensor | None
    plain: torch.Tensor


@dataclass(frozen=True)
class Pass:
    """How a pass computes its products. `streamed`: see `FusedDecoder`; `adapted`: which of its rows have adapters."""

    streamed: bool
    adapted: AdaptedRows | None

    def product(self, linear: ExactLinear, name: str, x: Input) -> torch.Tensor:
        """The result of a linear layer, with what adapters add to their `name`."""
        if self.adapted is None:
            return linear(x.values, x.scales, streamed=self.streamed)
        self.adapted.shrink(name, x.plain, ahead=self.streamed)
        y = linear(x.values, x.scales, streamed=self.streamed)
        self.adapted.expand(name, y, ahead=self.streamed)
        return y

    def memory(self, like: torch.Tensor, size: int, *, in_fp8: bool) -> Input:
        """Memory for the rows of an input that is still to be computed."""
        rows, device = len(like), like.device
        if not in_fp8:
            plain = torch.empty(rows, size, dtype=like.dtype, device=device)
            return Input(plain, None, plain)
        values = torch.empty(rows, size, dtype=torch.float8_e4m3fn, device=device)
        plain = values if self.adapted is None else torch.empty(rows, size, dtype=like.dtype, device=device)
        return Input(values, torch.empty(rows, dtype=torch.float32, device=device), plain)


class FusedFeedForward:
    """The feed-forward part of a layer that is dense."""

    def __init__(self, mlp: FeedForward) -> None:
        self.gate_up, self.down = exact_linear(mlp.gate_up), exact_linear(mlp.down)
        self.in_fp8 = self.gate_up.in_fp8

    def __call__(self, x: Input, how: Pass, layer: int) -> torch.Tensor:
        """[rows, hidden] → the same, in the layer of this number."""
        gate_up = how.product(self.gate_up, f"{layer}.gate_up", x)
        acted = how.memory(gate_up, self.down.inputs, in_fp8=self.down.in_fp8)
        silu_mul(gate_up, acted.values, scales=acted.scales, ahead=how.streamed, plain=acted.plain)
        return how.product(self.down, f"{layer}.down", acted)


@dataclass(frozen=True)
class FusedLayer:
    """One layer's weights, and where its KV lies."""

    attention_norm: RmsNorm
    qkv: ExactLinear
    qk_norms: tuple[RmsNorm, RmsNorm] | None
    cosines: torch.Tensor
    sines: torch.Tensor
    group: int
    kv: PagedKv
    scores: Scores
    output: ExactLinear
    mlp_norm: RmsNorm
    mlp: FusedFeedForward | FusedExperts


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
    if decoder.embedding_scale is not None or decoder.head.cap is not None or decoder.head.divisor != 1.0:
        return "embeddings or logits are scaled"
    e4m3 = device.type != "cuda" or torch.cuda.get_device_capability(device) >= _WITH_E4M3
    computed = str(decoder.norm.weight.dtype).removeprefix("torch.")
    for group in decoder.groups:
        in_fp8 = group.dtype == _FP8 and computed == "bfloat16" and group.head_dim in _FP8_HEADS
        if group.kind == "latent" or not (group.dtype == computed or in_fp8):
            return f"KV is kept as {group.kind} {group.dtype}"
        if in_fp8 and not e4m3:
            return _NO_E4M3
        if group.head_dim < _LEAST_INPUTS or decoder.config.heads // group.kv_heads > _MOST_GROUPED:
            return f"there are {decoder.config.heads} heads of {group.head_dim} for {group.kv_heads} of KV"
    return next((reason for layer in decoder.layers if (reason := _unsupported_layer(layer, e4m3)) is not None), None)


def _unsupported_layer(layer: DecoderLayer, e4m3: bool) -> str | None:
    attention, mlp = layer.attention, layer.mlp
    if not isinstance(attention, SelfAttention) or not isinstance(mlp, FeedForward | MixtureOfExperts):
        return f"layers have {type(attention).__name__} and {type(mlp).__name__}"
    # A mixture of experts adds nothing to h itself, with us neither.
    if layer.out_norms is not None or layer.shared is not None or layer.fused_sums is isinstance(mlp, MixtureOfExperts):
        return "layers add up their parts otherwise"
    unknown = _options(attention.variant) - _OPTIONS
    if unknown:
        return f"attention has the option {min(unknown)}"
    products = [attention.qkv, attention.output]
    if isinstance(mlp, MixtureOfExperts):
        reason = unsupported_experts(mlp, lambda product: _unsupported_product(product, e4m3))
        if reason is not None:
            return reason
    elif mlp.activation is not silu_times:
        return "the activation is not SiLU"
    else:
        products += [mlp.gate_up, mlp.down]
    return next((reason for product in products if (reason := _unsupported_product(product, e4m3)) is not None), None)


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


class FusedDecoder:
    """`decoder` with its KV in `memories`; see `unsupported`."""

    def __init__(self, decoder: Decoder, memories: Sequence[KvMemory]) -> None:
        config = decoder.config
        self.heads, self.head_dim, self.vocabulary = config.heads, config.head_dim, config.vocabulary
        self.embedding = decoder.embedding.weight
        self.device = self.embedding.device
        assert isinstance(decoder.norm, RmsNorm)
        self.norm = decoder.norm
        self.head = ExactLinear(decoder.head.linear)
        tables: dict[Rotary, tuple[torch.Tensor, torch.Tensor]] = {}
        self.layers = []
        for layer in decoder.layers:
            attention, mlp = layer.attention, layer.mlp
            assert isinstance(attention, SelfAttention)
            assert isinstance(mlp, FeedForward | MixtureOfExperts)
            assert isinstance(layer.attention_norm, RmsNorm)
            assert isinstance(layer.mlp_norm, RmsNorm)
            if attention.rotary not in tables:
                cosines, sines = attention.rotary.exact_tables()
                tables[attention.rotary] = cosines.to(self.device), sines.to(self.device)
            slot, scoring = attention.slot, attention.scoring
            memory = memories[slot.group]
            scores = Scores(scoring.scale, memory.group.window, scoring.soft_cap, scoring.sinks)
            self.layers.append(
                FusedLayer(
                    layer.attention_norm, exact_linear(attention.qkv), attention.norms, *tables[attention.rotary],
                    slot.group, PagedKv(memory.data, slot.layer), scores, exact_linear(attention.output),
                    layer.mlp_norm, FusedExperts(mlp) if isinstance(mlp, MixtureOfExperts) else FusedFeedForward(mlp),
                )
            )  # fmt: skip

    def linears(self) -> Iterator[ExactLinear]:
        """The linear layers but the head, and those of experts."""
        for layer in self.layers:
            yield from (layer.qkv, layer.output)
            if isinstance(layer.mlp, FusedFeedForward):
                yield from (layer.mlp.gate_up, layer.mlp.down)

    def mixtures(self) -> Iterator[FusedExperts]:
        """The mixtures of experts."""
        yield from (layer.mlp for layer in self.layers if isinstance(layer.mlp, FusedExperts))

    def streams(self, count: int) -> bool:
        """Whether all products of so many rows may be streamed, those of the head and of experts apart."""
        return all(product.streamed_rows >= count for product in self.linears())

    def __call__(self, rows: Rows, attend: Attend, *, streamed: bool = False) -> torch.Tensor:
        """The normalized hidden states [rows, hidden]; the rows' keys and values are stored.

        `streamed`: products begin before their inputs are there; that of the head as well, where it can.
        """
        h = self.embedding.index_select(0, rows.tokens)
        count, how = len(h), Pass(streamed, rows.adapted)
        plus: torch.Tensor | Mixed | None = None
        for index, layer in enumerate(self.layers):
            normal = _normalized(h, layer.attention_norm, plus, layer.qkv.in_fp8, how)
            qkv = how.product(layer.qkv, f"{index}.qkv", normal)
            query = torch.empty(count, self.heads, self.head_dim, dtype=h.dtype, device=h.device)
            norms = None if layer.qk_norms is None else (layer.qk_norms[0].weight, layer.qk_norms[1].weight)
            rotate_and_append(
                qkv, query, layer.kv, layer.cosines, layer.sines, rows.positions, rows.tables,
                rows.block_tables[layer.group], norms=norms,
                eps=0.0 if layer.qk_norms is None else layer.qk_norms[0].eps,
            )  # fmt: skip
            mixed = torch.empty_like(query)
            attend(layer, query, mixed)
            output = _as_input(mixed.view(count, -1), layer.output.in_fp8, how)
            plus = how.product(layer.output, f"{index}.output", output)
            mlp = layer.mlp
            if isinstance(mlp, FusedExperts):
                plus = mlp(_normalized(h, layer.mlp_norm, plus, False, Pass(False, None)).values, rows.positions)
            else:
                plus = mlp(_normalized(h, layer.mlp_norm, plus, mlp.in_fp8, how), how, index)
        return _normalized(h, self.norm, plus, False, Pass(streamed and self.head.streamed_rows >= count, None)).values


def _normalized(h: torch.Tensor, norm: RmsNorm, plus: torch.Tensor | Mixed | None, in_fp8: bool, how: Pass) -> Input:
    out = how.memory(h, h.shape[1], in_fp8=in_fp8)
    values, scales, ahead = out.values, out.scales, how.streamed
    if isinstance(plus, Mixed):
        combine_and_norm(h, plus.results, plus.routes, norm.weight, norm.eps, values, scales=scales, ahead=ahead)
        if scales is not None and how.adapted is not None:
            rms_norm(h, norm.weight, norm.eps, out.plain)  # the sum is in h already
        return out
    rms_norm(h, norm.weight, norm.eps, values, plus=plus, scales=scales, ahead=ahead, plain=out.plain)
    return out


def _as_input(x: torch.Tensor, in_fp8: bool, how: Pass) -> Input:
    if not in_fp8:
        return Input(x, None, x)
    out = Pass(how.streamed, None).memory(x, x.shape[1], in_fp8=True)
    assert out.scales is not None
    quantize_rows(x, out.values, out.scales, ahead=how.streamed)
    return Input(out.values, out.scales, x)
