"""Makes layers from a checkpoint's tensors: architectures build themselves with a `Loader`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch

from engine.errors import ModelError
from engine.kernels.packed_linear import Scratch
from engine.kv_cache.memory import FP8, KvLayout
from engine.layers.embedding import Embedding, load_embedding
from engine.layers.linear import Linear, PackedLinear, TiledLinear, Tiling
from engine.layers.matmul_kernels import has_onednn
from engine.layers.norm import LayerNorm, RmsNorm, load_norm
from engine.layers.rotary import NoRotary, Rotary
from engine.model_config.config import ModelConfig
from engine.model_config.rope import RopeConfig
from engine.options import KvDtype, Quantize, Tiles
from engine.quantization import fp4
from engine.quantization.encoding import encoded, quantized
from engine.quantization.packed import PackedWeight, decode_into, output_scales
from engine.quantization.tiles import tiled
from engine.weights.checkpoint import Checkpoint

_GATE_MULTIPLE = 16


class Loader:
    """Makes the layers of one model. Every method raises ModelError that names a missing or mismatched tensor.

    `like`: type and device. `context_tokens`: rows of rotary tables. `quantize`: the format of linear layers (not of
    embeddings, heads, norms and routers). `packed`: quantized weights stay packed. `tiles`: those that fit into tiles
    are kept in them, for the GPU's kernel. `kv`: collects the layer groups, whose KV is stored as `kv_dtype`.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        config: ModelConfig,
        like: torch.Tensor,
        tiling: Tiling,
        context_tokens: int,
        *,
        quantize: Quantize = "none",
        kv_dtype: KvDtype = "auto",
        packed: bool = False,
        tiles: Tiles = "none",
    ) -> None:
        self.checkpoint = checkpoint
        self.config = config
        self.like = like
        self.tiling = tiling
        self.context_tokens = context_tokens
        self.quantize: Quantize = quantize
        self.packed = packed
        self._tiles = tiles
        self._scratch = Scratch(like) if tiles == "scratch" else None
        self._few_bits = quantize != "none" or checkpoint.is_quantized()
        # There is no kernel there that multiplies its sums: a weight is then decoded with that factor.
        self._folds_output_scales = like.device.type == "cuda" and not packed
        self.forms: set[str] = set()
        """The formats of few bits that weights have been read or encoded in."""
        self.kv = KvLayout(FP8 if kv_dtype == "fp8" else like.dtype)
        self._no_rotary: Rotary | None = None
        self._rotaries: dict[tuple[RopeConfig, int], Rotary] = {}

    def linear(
        self,
        names: list[str],
        outputs: list[int],
        inputs: int,
        *,
        bias: bool = False,
        into: torch.Tensor | None = None,
    ) -> Linear:
        """The projections `names` (without `.weight`) with these output sizes as one product.

        `into`: memory for the weight, of a `stack`.
        """
        biases = self.like.new_empty(sum(outputs)) if bias else None
        if biases is not None:
            for name, part in zip(names, torch.split(biases, outputs), strict=True):
                self.checkpoint.load(f"{name}.bias", part)
        pieces = [self._piece(name, size, inputs) for name, size in zip(names, outputs, strict=True)]
        packed = [piece for piece in pieces if piece is not None]
        if packed and len(packed) == len(pieces):
            kept = self._kept_packed(packed, biases)
            if kept is not None:
                return kept
        weight = self.like.new_empty(sum(outputs), inputs) if into is None else into
        for name, piece, rows in zip(names, pieces, torch.split(weight, outputs), strict=True):
            if piece is None:
                self.checkpoint.load(f"{name}.weight", rows)
            else:
                decode_into(piece, rows, folded=self._folds_output_scales)
        scales = None if self._folds_output_scales else output_scales(pieces, outputs)
        return self.product(names[0], weight, biases, scales)

    def _kept_packed(self, pieces: Sequence[PackedWeight], bias: torch.Tensor | None) -> PackedLinear | None:
        """The layer with these weights kept packed; None if they are to be decoded."""
        weight = None if self._tiles == "none" else tiled(pieces)
        if weight is not None:
            return TiledLinear(weight, bias, self.tiling, self.like, self._scratch)
        return PackedLinear(pieces, bias, self.tiling, self.like) if self.packed else None

    def _piece(self, name: str, outputs: int, inputs: int) -> PackedWeight | None:
        """The weight `name` as it is stored in few bits, on the device; None if it is plain, or to be encoded anew."""
        if self.quantize != "none" or not self._few_bits:
            return None
        device = self.like.device
        piece = self.checkpoint.packed(f"{name}.weight", (outputs, inputs), device)
        if piece is None:
            return None
        self.forms.add(piece.form)
        # On a CPU it may still be the file's memory.
        return piece if device.type == piece.codes.device.type != "cpu" else piece.to(device)

    def product(
        self,
        name: str,
        weight: torch.Tensor | PackedWeight,
        bias: torch.Tensor | None = None,
        scales: torch.Tensor | None = None,
    ) -> Linear:
        """The layer `name` with this weight [outputs, inputs], which is quantized in place if `quantize` says so.
        `scales`: factors of its outputs."""
        if isinstance(weight, torch.Tensor) and self.quantize != "none":
            with self._naming(name):
                packed = encoded(weight, self.quantize)
            self.forms.add(packed.form)
            kept = self._kept_packed([packed], bias)
            if kept is not None:
                return kept
            decode_into(packed, weight, folded=self._folds_output_scales)
            scales = None if self._folds_output_scales else packed.output_scales
        if isinstance(weight, torch.Tensor):
            return Linear(weight, bias, self.tiling, few_bits=self._few_bits, output_scales=scales)
        return self._kept_packed([weight], bias) or PackedLinear([weight], bias, self.tiling, self.like)

    def rounded(self, name: str, weight: torch.Tensor) -> torch.Tensor:
        """The weight [outputs, inputs] of the layer `name`, rounded to the format `quantize`."""
        with self._naming(name):
            return quantized(weight, self.quantize)

    @contextmanager
    def _naming(self, name: str) -> Iterator[None]:
        what = "" if self.quantize == "none" else f" cannot become {self.quantize}"
        try:
            yield
        except ValueError as error:
            raise ModelError(f"{self.checkpoint.folder}: {name}{what}: {error}") from error

    def fused(
        self,
        fused: str,
        names: list[str],
        outputs: list[int],
        inputs: int,
        *,
        bias: bool = False,
        into: torch.Tensor | None = None,
    ) -> Linear:
        """`linear`, where a checkpoint may have the projections fused under the name `fused`, in the same order."""
        if self.checkpoint.has_part(fused):
            names, outputs = [fused], [sum(outputs)]
        return self.linear(names, outputs, inputs, bias=bias, into=into)

    @property
    def stacks(self) -> bool:
        """Whether weights are kept as they are loaded, neither packed nor arranged for a kernel: so those of all
        experts can be slices of one tensor."""
        return not has_onednn(self.like) and not (self.packed and self._few_bits)

    def stack(self, experts: int, outputs: int, inputs: int) -> torch.Tensor | None:
        """Memory for a weight [outputs, inputs] of each expert; None where they are no slices of one tensor."""
        return self.like.new_empty(experts, outputs, inputs) if self.stacks else None

    def gate(self, name: str, experts: int, *, bias: bool = False, exact: bool = False) -> Linear:
        """The router `name` of a mixture of experts, its outputs padded with zeros to a multiple of the vector length.

        `exact`: in fp32, whatever the model's type.
        """
        padded = -(-experts // _GATE_MULTIPLE) * _GATE_MULTIPLE
        dtype = torch.float32 if exact else self.like.dtype
        weight = self.like.new_zeros(padded, self.config.hidden, dtype=dtype)
        self.checkpoint.load(f"{name}.weight", weight[:experts])
        biases = None
        if bias:
            biases = self.like.new_zeros(padded, dtype=dtype)
            self.checkpoint.load(f"{name}.bias", biases[:experts])
        return Linear(weight, biases, self.tiling)

    def tensor(self, name: str, *shape: int) -> torch.Tensor:
        """The tensor of this full name and shape."""
        into = self.like.new_empty(shape)
        self.checkpoint.load(name, into)
        return into

    def exact(self, name: str, *shape: int) -> torch.Tensor:
        """The tensor of this full name and shape in fp32, whatever the model's type."""
        into = self.like.new_empty(shape, dtype=torch.float32)
        self.checkpoint.load(name, into)
        return into

    def experts(
        self, name: str, count: int, outputs: int, inputs: int, order: torch.Tensor | None = None
    ) -> torch.Tensor | Sequence[PackedWeight]:
        """The weight of each expert, [outputs, inputs] with outputs in `order`, from stacked weights.

        The checkpoint has them as MXFP4 blocks [experts, outputs, …], or plain as [experts, inputs, outputs].
        """
        rows = torch.arange(outputs) if order is None else order
        if f"{name}_blocks" not in self.checkpoint:
            stored = self.tensor(name, count, inputs, outputs)
            stacked = self.like.new_empty(count, outputs, inputs)
            for expert, weight in enumerate(stored.transpose(1, 2)):
                stacked[expert] = weight[rows]
            return stacked
        packed = self._packed_experts(name, count, outputs, inputs, rows)
        if self.packed and self.quantize == "none":
            return packed
        stacked = self.like.new_empty(count, outputs, inputs)
        for weight, into in zip(packed, stacked, strict=True):
            decode_into(weight, into, folded=True)
        return stacked

    def _packed_experts(
        self, name: str, count: int, outputs: int, inputs: int, rows: torch.Tensor
    ) -> Sequence[PackedWeight]:
        """The weight of each expert, its outputs in the order `rows`, from stacked MXFP4 blocks."""
        groups = inputs // fp4.MX_GROUP
        blocks = self.checkpoint.stored(f"{name}_blocks", (count, outputs, groups, fp4.MX_GROUP // 2))
        scales = self.checkpoint.stored(f"{name}_scales", (count, outputs, groups))
        with self._naming(name):
            packed = [
                fp4.stored_mxfp4(blocks[expert][rows].flatten(1), scales[expert][rows]) for expert in range(count)
            ]
        self.forms.update(weight.form for weight in packed)
        return [weight.to(self.like.device) for weight in packed]

    def norm(self, name: str, size: int | None = None, *, plus_one: bool = False, eps: float | None = None) -> RmsNorm:
        """The norm `name` of `size` elements, the hidden size if None.

        `plus_one`: it is stored as w − 1. `eps`: the configuration's if None.
        """
        size = self.config.hidden if size is None else size
        eps = self.config.norm_eps if eps is None else eps
        return load_norm(self.checkpoint, name, size, eps, self.like, plus_one=plus_one)

    def layer_norm(self, name: str) -> LayerNorm:
        """The norm `name` of the hidden size, with a bias."""
        size = self.config.hidden
        return LayerNorm(self.tensor(f"{name}.weight", size), self.tensor(f"{name}.bias", size), self.config.norm_eps)

    def embedding(self, name: str) -> Embedding:
        """The embedding or head `name`."""
        return load_embedding(self.checkpoint, name, self.config.vocabulary, self.config.hidden, self.like)

    def rotary(self, rope: RopeConfig, head_dim: int) -> Rotary:
        """The rotary embedding for heads of this size, shared by layers with the same one."""
        rotary = self._rotaries.get((rope, head_dim))
        if rotary is None:
            rotary = self._rotaries[rope, head_dim] = Rotary(rope, head_dim, self.context_tokens, self.like)
        return rotary

    def no_rotary(self) -> Rotary:
        """For layers of this model that do not turn heads."""
        if self._no_rotary is None:
            config = self.config
            self._no_rotary = NoRotary(config.rope, config.head_dim, self.context_tokens, self.like)
        return self._no_rotary
