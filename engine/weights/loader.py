"""Makes layers of a checkpoint's tensors: what an architecture is given to build itself with."""

from __future__ import annotations

import torch

from engine.errors import ModelError
from engine.kv_memory import FP8, KvLayout
from engine.layers.embedding import Embedding, load_embedding
from engine.layers.linear import Linear, Tiling
from engine.layers.norm import RmsNorm, load_norm
from engine.layers.rotary import Rotary
from engine.models.config import ModelConfig
from engine.models.rope import RopeConfig
from engine.options import KvDtype, Quantize
from engine.quantization.on_load import quantized
from engine.weights.checkpoint import Checkpoint

_GATE_MULTIPLE = 16


class Loader:
    """The layers of one model. Every method raises ModelError naming a missing or mismatched tensor.

    `like` gives type and device; `context_tokens` how long the tables of positions are; `quantize` what linear layers
    are rounded to (not embeddings, heads, norms and routers). `kv` collects the layer groups, whose
    KV is stored as `kv_dtype`.
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
    ) -> None:
        self.checkpoint = checkpoint
        self.config = config
        self.like = like
        self.tiling = tiling
        self.context_tokens = context_tokens
        self.quantize: Quantize = quantize
        self.kv = KvLayout(FP8 if kv_dtype == "fp8" else like.dtype)
        self._rotaries: dict[tuple[RopeConfig, int], Rotary] = {}

    def linear(self, names: list[str], outputs: list[int], inputs: int, *, bias: bool = False) -> Linear:
        """The projections `names` (without `.weight`) with these output sizes as one product."""
        weight = self.like.new_empty(sum(outputs), inputs)
        for name, rows in zip(names, torch.split(weight, outputs), strict=True):
            self.checkpoint.load(f"{name}.weight", rows)
        biases = self.like.new_empty(sum(outputs)) if bias else None
        if biases is not None:
            for name, part in zip(names, torch.split(biases, outputs), strict=True):
                self.checkpoint.load(f"{name}.bias", part)
        return self.product(names[0], weight, biases)

    def product(self, name: str, weight: torch.Tensor, bias: torch.Tensor | None = None) -> Linear:
        """The layer `name` with this weight [outputs, inputs], quantized if that is asked for."""
        return Linear(self.rounded(name, weight), bias, self.tiling)

    def rounded(self, name: str, weight: torch.Tensor) -> torch.Tensor:
        """The weight [outputs, inputs] of the layer `name`, quantized if that is asked for."""
        try:
            return quantized(weight, self.quantize)
        except ValueError as error:
            raise ModelError(f"{self.checkpoint.folder}: {name} cannot become {self.quantize}: {error}") from error

    def fused(self, fused: str, names: list[str], outputs: list[int], inputs: int, *, bias: bool = False) -> Linear:
        """The same where a checkpoint may have the projections fused under the name `fused`, in the same order."""
        if self.checkpoint.has_part(fused):
            return self.linear([fused], [sum(outputs)], inputs, bias=bias)
        return self.linear(names, outputs, inputs, bias=bias)

    def gate(self, name: str, experts: int, *, bias: bool = False) -> Linear:
        """The router `name` of a mixture of experts. Its outputs are padded with zeros to a whole number of vectors."""
        padded = -(-experts // _GATE_MULTIPLE) * _GATE_MULTIPLE
        weight = self.like.new_zeros(padded, self.config.hidden)
        self.checkpoint.load(f"{name}.weight", weight[:experts])
        biases = None
        if bias:
            biases = self.like.new_zeros(padded)
            self.checkpoint.load(f"{name}.bias", biases[:experts])
        return Linear(weight, biases, self.tiling)

    def tensor(self, name: str, *shape: int) -> torch.Tensor:
        """The tensor of this full name and shape."""
        into = self.like.new_empty(shape)
        self.checkpoint.load(name, into)
        return into

    def exact(self, name: str, *shape: int) -> torch.Tensor:
        """The tensor of this full name and shape in fp32, whatever the model runs in."""
        into = self.like.new_empty(shape, dtype=torch.float32)
        self.checkpoint.load(name, into)
        return into

    def experts(self, name: str, count: int, outputs: int, inputs: int) -> torch.Tensor:
        """[count, outputs, inputs]: stacked weights, as MXFP4 blocks or, the other way round, plain."""
        if f"{name}_blocks" in self.checkpoint:
            return self.tensor(name, count, outputs, inputs)
        return self.tensor(name, count, inputs, outputs).transpose(1, 2).contiguous()

    def norm(self, name: str, size: int | None = None, *, plus_one: bool = False) -> RmsNorm:
        """The norm `name` of `size` elements, the hidden size if None; `plus_one` where it is stored as w − 1."""
        size = self.config.hidden if size is None else size
        return load_norm(self.checkpoint, name, size, self.config.norm_eps, self.like, plus_one=plus_one)

    def embedding(self, name: str) -> Embedding:
        """The embedding or head `name`."""
        return load_embedding(self.checkpoint, name, self.config.vocabulary, self.config.hidden, self.like)

    def rotary(self, rope: RopeConfig, head_dim: int) -> Rotary:
        """The rotary embedding of heads of this size; layers with the same one share it."""
        held = self._rotaries.get((rope, head_dim))
        if held is None:
            held = self._rotaries[rope, head_dim] = Rotary(rope, head_dim, self.context_tokens, self.like)
        return held
