"""The tensors of a GGUF file under the names that Hugging Face's model has for them.

llama.cpp's converter changes some weights on its way, which is undone here: it permutes the rows of Llama's queries and
keys for another form of rotary embedding, stacks experts, and adds 1 to Gemma's norms (`norms_are_whole`).
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import torch

from engine.errors import ModelError
from engine.quantization.gguf import stored_blocks
from engine.quantization.packed import PackedWeight
from model_files.gguf_file import GgufModel, StoredTensor
from model_files.gguf_values import GgufError

_BLOCK = re.compile(r"blk\.(0|[1-9]\d{0,5})\.(\w+)\.(weight|bias)", re.ASCII)
_GLOBAL = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
_ROTARY = {"rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight"}
"""Part of the configuration."""
_LLAMA: Mapping[str, str] = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_GEMMA = {
    **_LLAMA,
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
_MIXTRAL = {
    **_LLAMA,
    "ffn_gate_inp": "block_sparse_moe.gate",
    "ffn_gate_exps": "block_sparse_moe.experts.*.w1",
    "ffn_up_exps": "block_sparse_moe.experts.*.w3",
    "ffn_down_exps": "block_sparse_moe.experts.*.w2",
}
_QWEN3_MOE = {
    **_LLAMA,
    "ffn_gate_inp": "mlp.gate",
    "ffn_gate_exps": "mlp.experts.*.gate_proj",
    "ffn_up_exps": "mlp.experts.*.up_proj",
    "ffn_down_exps": "mlp.experts.*.down_proj",
}
_PARTS: Mapping[str, Mapping[str, str]] = {
    "gemma2": _GEMMA,
    "gemma3": _GEMMA,
    "phi3": {**_LLAMA, "attn_qkv": "self_attn.qkv_proj", "ffn_up": "mlp.gate_up_proj"},
    "qwen3moe": _QWEN3_MOE,
}
"""`general.architecture` -> part of a block -> part of a layer, `*` for the number of an expert; others have Llama's"""
_MOST_EXPERTS = 1 << 12
_PLAIN = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}


@dataclass(frozen=True)
class _Part:
    """A tensor, or the slice of it that is one expert's. `heads`: of a weight whose rows are permuted."""

    tensor: StoredTensor
    expert: int | None = None
    heads: int | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        return self.tensor.shape if self.expert is None else self.tensor.shape[1:]


class GgufTensors:
    """The tensors of a GGUF file by Hugging Face's names. Raises ModelError."""

    norms_are_whole = True

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            with GgufModel(path) as model:
                self._parts = self._named(model)
                self._files = model.paths
        except GgufError as error:
            raise ModelError(str(error)) from error
        self.where: Mapping[str, Path] = {name: part.tensor.path for name, part in self._parts.items()}

    def _named(self, model: GgufModel) -> dict[str, _Part]:
        architecture = str(model.values.get("general.architecture"))
        experts = bool(model.values.get(f"{architecture}.expert_count"))
        names = _MIXTRAL if architecture == "llama" and experts else _PARTS.get(architecture, _LLAMA)
        permuted = {}
        if architecture == "llama":
            heads = model.values.get("llama.attention.head_count")
            permuted = {"attn_q": heads, "attn_k": model.values.get("llama.attention.head_count_kv", heads)}
        parts: dict[str, _Part] = {}
        for name, tensor in model.tensors.items():
            block = _BLOCK.fullmatch(name)
            if block is None:
                stem, _, last = name.rpartition(".")
                if stem in _GLOBAL and last == "weight":
                    self._add(parts, f"{_GLOBAL[stem]}.weight", _Part(tensor))
                elif name not in _ROTARY:
                    self._refuse(tensor, "is not known")
                continue
            index, part, last = block.groups()
            # A part that is not known has no place in a layer, which is then said of its own name.
            layer = f"model.layers.{index}.{names.get(part, part)}.{last}"
            if "*" in layer:
                if len(tensor.shape) != 3 or tensor.shape[0] > _MOST_EXPERTS:
                    self._refuse(
                        tensor,
                        f"has the shape {list(tensor.shape)}, which is not that of up to {_MOST_EXPERTS} experts",
                    )
                for expert in range(tensor.shape[0]):
                    self._add(parts, layer.replace("*", str(expert)), _Part(tensor, expert))
                continue
            heads = permuted.get(part)
            if heads is not None and (type(heads) is not int or heads < 1 or tensor.shape[0] % (2 * heads)):
                self._refuse(tensor, f"has {tensor.shape[0]} rows, which are not those of {heads!r} heads")
            self._add(parts, layer, _Part(tensor, heads=heads if isinstance(heads, int) else None))
        return parts

    def _add(self, parts: dict[str, _Part], name: str, part: _Part) -> None:
        if (other := parts.setdefault(name, part)) is not part:
            self._refuse(part.tensor, f"stands for {name}, as tensor {other.tensor.name} does")

    def _refuse(self, tensor: StoredTensor, what: str) -> NoReturn:
        raise ModelError(f"{tensor.path}: tensor {tensor.name} {what}")

    def is_quantized(self) -> bool:
        """Whether any weight is quantized."""
        return any(part.tensor.type.name not in _PLAIN for part in self._parts.values())

    def read(self, name: str) -> torch.Tensor:
        """The tensor `name`, which must be plain. Raises ModelError if it cannot be read."""
        part = self._parts[name]
        dtype = _PLAIN.get(part.tensor.type.name)
        if dtype is None:
            self._refuse(part.tensor, f"is of type {part.tensor.type.name} where numbers are expected")
        tensor = self._bytes(part).view(dtype).view(part.shape)
        return tensor if part.heads is None else tensor[_rows(part.shape[0], part.heads)]

    def packed(self, name: str) -> PackedWeight | None:
        """The weight `name` if it is of few bits. Raises ModelError if it cannot be read, ValueError if invalid."""
        part = self._parts[name]
        type_ = part.tensor.type
        if type_.name in _PLAIN:
            return None
        if len(part.shape) != 2:
            raise ValueError(f"it is {type_.name} of shape {list(part.shape)}, which is not that of a weight")
        outputs, inputs = part.shape
        weight = stored_blocks(self._bytes(part).view(outputs, inputs // type_.elements, type_.nbytes), type_.name)
        return weight if part.heads is None else weight.in_rows(_rows(outputs, part.heads))

    def _bytes(self, part: _Part) -> torch.Tensor:
        tensor = part.tensor
        count = tensor.nbytes if part.expert is None else tensor.nbytes // tensor.shape[0]
        into = bytearray(count)
        try:
            with tensor.path.open("rb", buffering=0) as file:
                file.seek(tensor.start + (part.expert or 0) * count)
                view, at = memoryview(into), 0
                while at < count and (got := file.readinto(view[at:])):
                    at += got
        except OSError as error:
            self._refuse(tensor, f"cannot be read: {error.strerror}")
        if at < count:
            self._refuse(tensor, "reaches beyond the end of the file, which has become shorter")
        return torch.frombuffer(into, dtype=torch.uint8)

    def close(self) -> None:
        """Nothing: a file is open only while it is read."""

    def elements(self) -> int:
        """Elements of all tensors."""
        return sum(math.prod(part.shape) for part in self._parts.values())

    def stored_bytes(self) -> int:
        """Bytes of the files."""
        return sum(os.stat(path).st_size for path in self._files)


def _rows(count: int, heads: int) -> torch.Tensor:
    """For each row of a weight its place in the file, where both halves of a head's rotated pairs lie side by side."""
    return torch.arange(count).view(heads, count // heads // 2, 2).transpose(1, 2).reshape(-1)
