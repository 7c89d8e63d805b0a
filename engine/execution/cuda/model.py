"""A decoder of the Llama family computed by fused kernels, from the weights that its layers hold.

Each layer is: norm, Q K V, rotary positions with the KV append, attention, output projection, norm with the residual
sum, gate and up, activation, down. All of it is row-wise but the attention, and a row has the same bits at every count
of rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields
from typing import TypeAlias

import torch

from engine.execution.cuda.linears import ExactLinear, exact_linear, fp8_weight
from engine.kernels.paged_kv import PagedKv, Scores
from engine.kernels.rows import quantize_rows, rms_norm, rotate_and_append, silu_mul
from engine.kv_cache.memory import KvMemory
from engine.layers.activation import silu_times
from engine.layers.decoder_layer import DecoderLayer
from engine.layers.feed_forward import FeedForward
from engine.layers.linear import Linear, TiledLinear
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

_OPTIONS = frozenset(("window", "scale", "soft_cap", "qkv_bias", "output_bias", "qk_norm", "plus_one", "sinks"))
"""The options of `AttentionVariant` that the kernels compute. They would pass over any other."""

_WITH_E4M3 = (8, 9)
"""The first GPUs that compute in e4m3: Ada."""
_NO_E4M3 = "the device does not compute in e4m3"

Attend: TypeAlias = Callable[["FusedLayer", torch.Tensor, torch.Tensor], None]
"""Writes the attention of a layer's queries [rows, heads, head dim] to the second tensor of the same shape."""


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
    gate_up: ExactLinear
    down: ExactLinear


@dataclass(frozen=True)
class Rows:
    """The rows of one pass, on the device: `tokens`, `positions` (−1 for padding), and `tables`, the row of the block
    tables of each; int32 [rows]. `block_tables` int32 [sequences, blocks], one for each layer group."""

    tokens: torch.Tensor
    positions: torch.Tensor
    tables: torch.Tensor
    block_tables: Sequence[torch.Tensor]


def unsupported(decoder: Decoder, device: torch.device) -> str | None:
    """Why a model cannot be computed by these kernels on this device; None if it can."""
    if decoder.embedding_scale is not None or decoder.head.cap is not None:
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
    if not isinstance(attention, SelfAttention) or not isinstance(mlp, FeedForward):
        return f"layers have {type(attention).__name__} and {type(mlp).__name__}"
    if layer.out_norms is not None or layer.shared is not None or not layer.fused_sums:
        return "layers add up their parts otherwise"
    unknown = _options(attention.variant) - _OPTIONS
    if unknown or mlp.activation is not silu_times:
        return f"attention has the option {min(unknown)}" if unknown else "the activation is not SiLU"
    products = (attention.qkv, attention.output, mlp.gate_up, mlp.down)
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
        self.norm = decoder.norm
        self.head = ExactLinear(decoder.head.linear)
        tables: dict[Rotary, tuple[torch.Tensor, torch.Tensor]] = {}
        self.layers = []
        for layer in decoder.layers:
            attention, mlp = layer.attention, layer.mlp
            assert isinstance(attention, SelfAttention)
            assert isinstance(mlp, FeedForward)
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
                    layer.mlp_norm, exact_linear(mlp.gate_up), exact_linear(mlp.down),
                )
            )  # fmt: skip

    def linears(self) -> Iterator[ExactLinear]:
        """The linear layers but the head."""
        for layer in self.layers:
            yield from (layer.qkv, layer.output, layer.gate_up, layer.down)

    def streams(self, count: int) -> bool:
        """Whether all products of so many rows may be streamed, that of the head apart."""
        return all(product.streamed_rows >= count for product in self.linears())

    def __call__(self, rows: Rows, attend: Attend, *, streamed: bool = False) -> torch.Tensor:
        """The normalized hidden states [rows, hidden]; the rows' keys and values are stored.

        `streamed`: products begin before their inputs are there; that of the head as well, where it can.
        """
        h = self.embedding.index_select(0, rows.tokens)
        count, ahead = len(h), streamed
        plus: torch.Tensor | None = None
        for layer in self.layers:
            normal = _normalized(h, layer.attention_norm, plus, layer.qkv.in_fp8, ahead)
            qkv = layer.qkv(*normal, streamed=streamed)
            query = torch.empty(count, self.heads, self.head_dim, dtype=h.dtype, device=h.device)
            norms = None if layer.qk_norms is None else (layer.qk_norms[0].weight, layer.qk_norms[1].weight)
            rotate_and_append(
                qkv, query, layer.kv, layer.cosines, layer.sines, rows.positions, rows.tables,
                rows.block_tables[layer.group], norms=norms,
                eps=0.0 if layer.qk_norms is None else layer.qk_norms[0].eps,
            )  # fmt: skip
            mixed = torch.empty_like(query)
            attend(layer, query, mixed)
            plus = layer.output(*_as_input(mixed.view(count, -1), layer.output.in_fp8, ahead), streamed=streamed)
            normal = _normalized(h, layer.mlp_norm, plus, layer.gate_up.in_fp8, ahead)
            gate_up = layer.gate_up(*normal, streamed=streamed)
            acted, scales = _input_memory(h, layer.down.inputs, layer.down.in_fp8)
            silu_mul(gate_up, acted, scales=scales, ahead=ahead)
            plus = layer.down(acted, scales, streamed=streamed)
        return _normalized(h, self.norm, plus, False, ahead and self.head.streamed_rows >= count)[0]


Input: TypeAlias = tuple[torch.Tensor, torch.Tensor | None]
"""What a linear layer takes: rows, and their scales where they are e4m3."""


def _input_memory(like: torch.Tensor, size: int, in_fp8: bool) -> Input:
    rows, device = len(like), like.device
    if not in_fp8:
        return torch.empty(rows, size, dtype=like.dtype, device=device), None
    values = torch.empty(rows, size, dtype=torch.float8_e4m3fn, device=device)
    return values, torch.empty(rows, dtype=torch.float32, device=device)


def _normalized(h: torch.Tensor, norm: RmsNorm, plus: torch.Tensor | None, in_fp8: bool, ahead: bool) -> Input:
    out, scales = _input_memory(h, h.shape[1], in_fp8)
    rms_norm(h, norm.weight, norm.eps, out, plus=plus, scales=scales, ahead=ahead)
    return out, scales


def _as_input(x: torch.Tensor, in_fp8: bool, ahead: bool) -> Input:
    if not in_fp8:
        return x, None
    out, scales = _input_memory(x, x.shape[1], in_fp8)
    assert scales is not None
    quantize_rows(x, out, scales, ahead=ahead)
    return out, scales
