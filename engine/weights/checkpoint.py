"""Reads the tensors of a model: of a folder's safetensors files, or of a GGUF file.

Tensors are copied straight to their final place. Every tensor that a model asks for must be there with the expected
shape; errors name the tensor and the file.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Protocol

import torch

from engine.errors import ModelError
from engine.model_config.fields import Fields
from engine.quantization.packed import PackedWeight, decode_into
from engine.quantization.stored import find_weight
from engine.weights.gguf_tensors import GgufTensors
from engine.weights.safetensors_files import SafetensorsFiles
from model_files.gguf_values import GgufError
from model_files.model_documents import gguf_of

_HOST = torch.device("cpu")
PARTS = ("weight", "weight_packed", "qweight")
"""The names of a linear layer's main tensor in the supported formats."""
_LAYER = re.compile(r"model\.layers\.(\d+)\..*\.(weight|bias|qweight|weight_packed)$")
"""The weights and biases of layers, all of which must be read. Others are scales and tables."""


class TensorFiles(Protocol):
    """The files of a model's tensors."""

    where: Mapping[str, Path]
    """Which file each tensor is in."""
    norms_are_whole: bool
    """Whether norms that Hugging Face stores as w − 1 are stored as w."""

    def read(self, name: str) -> torch.Tensor: ...

    def packed(self, name: str) -> PackedWeight | None: ...

    def is_quantized(self) -> bool: ...

    def elements(self) -> int: ...

    def stored_bytes(self) -> int: ...

    def close(self) -> None: ...


def _open(folder: Path, prefix: str, bits: int) -> TensorFiles:
    try:
        gguf = gguf_of(folder)
    except GgufError as error:
        raise ModelError(str(error)) from error
    return SafetensorsFiles(folder, prefix, bits) if gguf is None else GgufTensors(gguf)


class _OnDevice:
    """A checkpoint's tensors, copied to a device: what is done with millions of words is done there."""

    def __init__(self, checkpoint: Checkpoint, device: torch.device) -> None:
        self._checkpoint = checkpoint
        self._device = device

    def __contains__(self, name: str) -> bool:
        return name in self._checkpoint

    def read(self, name: str) -> torch.Tensor:
        return self._checkpoint.read(name).to(self._device)

    def file_packed(self, name: str) -> PackedWeight | None:
        return self._checkpoint.file_packed(name)


class Checkpoint:
    """The tensors of a model, which is a folder or a GGUF file, by name, as a context manager. Raises ModelError.

    `quantization`: the fields of `quantization_config`. `prefix`: only tensors whose names begin with it are there, and
    they are called by the rest of their names.
    """

    def __init__(self, folder: Path, quantization: Fields | None = None, prefix: str = "") -> None:
        self.folder = folder
        self.quantization = Fields(folder, {}) if quantization is None else quantization
        self._files = _open(folder, prefix, self.quantization.integer("bits", 4))
        self._where = self._files.where
        self._read: set[str] = set()

    def __enter__(self) -> Checkpoint:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._files.close()

    def __contains__(self, name: str) -> bool:
        return name in self._where

    def has_part(self, name: str) -> bool:
        """Whether the linear layer `name` has a weight in any format."""
        return any(f"{name}.{tensor}" in self._where for tensor in PARTS)

    def is_quantized(self) -> bool:
        """Whether any weight is quantized."""
        return self._files.is_quantized()

    @property
    def norms_are_whole(self) -> bool:
        """Whether norms that Hugging Face stores as w − 1 are stored as w."""
        return self._files.norms_are_whole

    def read(self, name: str) -> torch.Tensor:
        """The tensor `name` as it is stored. Raises ModelError if it is missing or cannot be read."""
        self._note_read(name)
        return self._files.read(name)

    def file_packed(self, name: str) -> PackedWeight | None:
        """The weight `name` where the file's own format keeps it in few bits. Raises ModelError as `read` does, and
        ValueError if it is invalid."""
        self._note_read(name)
        return self._files.packed(name)

    def _note_read(self, name: str) -> None:
        if name not in self._where:
            raise ModelError(f"{self.folder}: tensor {name} is missing")
        self._read.add(name)

    def load(self, name: str, into: torch.Tensor) -> None:
        """Copy the tensor `name` into `into`, decoded and converted to its type.

        Raises ModelError if it is missing, cannot be decoded, has another shape or has values that are not finite.
        """
        path = self._where.get(name, self.folder)
        try:
            weight = find_weight(self, name, self.quantization)
        except ValueError as error:
            raise ModelError(f"{path}: tensor {name}: {error}") from error
        if isinstance(weight, torch.Tensor) and not weight.is_floating_point():
            raise ModelError(f"{path}: tensor {name} is {weight.dtype}, which is not supported")
        self._check_shape(name, weight.shape, into.shape)
        if isinstance(weight, torch.Tensor):
            into.copy_(weight)
        else:
            decode_into(weight, into, folded=True)
        # One pass over memory: a sum of finite weights is finite.
        if not bool(into.sum(dtype=torch.float32).isfinite()):
            raise ModelError(f"{path}: tensor {name} has values that are not finite")

    def same(self, first: str, second: str) -> bool:
        """Whether two tensors are stored with the same type, shape and values."""
        a, b = self.read(first), self.read(second)
        return a.dtype == b.dtype and torch.equal(a, b)

    def packed(self, name: str, shape: tuple[int, int], device: torch.device = _HOST) -> PackedWeight | None:
        """The quantized weight `name` as it is stored, its words and scales arranged on `device`; None if it is plain.

        Raises ModelError as `load` does.
        """
        try:
            weight = find_weight(_OnDevice(self, device), name, self.quantization)
        except ValueError as error:
            raise ModelError(f"{self._where.get(name, self.folder)}: tensor {name}: {error}") from error
        if isinstance(weight, torch.Tensor):
            return None
        self._check_shape(name, weight.shape, shape)
        return weight

    def stored(self, name: str, shape: tuple[int, ...]) -> torch.Tensor:
        """The tensor `name` of this shape as it is stored. Raises ModelError as `load` does."""
        tensor = self.read(name)
        self._check_shape(name, tensor.shape, shape)
        return tensor

    def check_all_read(self, layers: int, others: int = 0) -> None:
        """Raise ModelError that names a weight or bias of a layer which was not read.

        Configuration and files then contradict each other, and the model would run without a part of its weights. The
        `others` layers behind the first `layers` are not checked, nor are biases of zeros, which some quantizers add.
        """
        for name in sorted(self._where.keys() - self._read):
            layer = _LAYER.match(name)
            if layer is None or layers <= int(layer[1]) < layers + others:
                continue
            if name.endswith(".bias") and not self.read(name).any():
                continue
            raise ModelError(f"{self._where[name]}: the configuration has no place for tensor {name}")

    def decoded_bytes(self, itemsize: int) -> int:
        """Estimated bytes of all weights when decoded to elements of `itemsize` bytes."""
        return self._files.elements() * itemsize

    def stored_bytes(self) -> int:
        """Bytes of the files."""
        return self._files.stored_bytes()

    def _check_shape(self, name: str, stored: Sequence[int], wanted: Sequence[int]) -> None:
        if tuple(stored) != tuple(wanted):
            path = self._where.get(name, self.folder)
            raise ModelError(f"{path}: tensor {name} has shape {list(stored)}, the configuration says {list(wanted)}")
