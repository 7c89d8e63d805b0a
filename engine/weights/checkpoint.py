"""Reads the tensors of a model folder: safetensors files, one or sharded by an index, memory-mapped.

Tensors are copied straight to their final place. Every tensor that a model asks for must be there with the expected
shape; errors name the tensor and the file.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from engine.errors import ModelError
from engine.model_config.fields import Fields
from engine.quantization.packed import PackedWeight
from engine.quantization.stored import find_weight, read_weight

PARTS = ("weight", "weight_packed", "qweight")
"""The names of a linear layer's main tensor in the supported formats."""
_OF_FEW_BITS = (".qweight", ".weight_packed", "_blocks", ".weight_scale", ".weight_scale_inv", ".scale", ".absmax")
_MAPPED_BYTES = 64 << 20
"""Bytes after which files are closed and mapped again, so that pages that were read no longer count as memory."""
_INDEX = "model.safetensors.index.json"
_WHOLE = "model.safetensors"
_LAYER = re.compile(r"model\.layers\.(\d+)\..*\.(weight|bias|qweight|weight_packed)$")
"""The weights and biases of layers, all of which must be read. Others are scales and tables."""


@contextmanager
def _naming(path: Path, name: str) -> Iterator[None]:
    try:
        yield
    except SafetensorError as error:
        raise ModelError(f"{path}: tensor {name} cannot be read: {error}") from error


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:  # a name that no file can have
        return False


class Checkpoint:
    """The tensors of a model folder by name, as a context manager. Raises ModelError.

    `quantization`: the fields of `quantization_config`. `prefix`: only tensors whose names begin with it are there, and
    they are called by the rest of their names.
    """

    def __init__(self, folder: Path, quantization: Fields | None = None, prefix: str = "") -> None:
        self.folder = folder
        self.quantization = Fields(folder, {}) if quantization is None else quantization
        self._files: dict[Path, Any] = {}
        self._mapped = 0
        self._prefix = prefix
        stored = self._locate().items()
        self._where = {name.removeprefix(prefix): path for name, path in stored if name.startswith(prefix)}
        self._read: set[str] = set()

    def __enter__(self) -> Checkpoint:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._unmap()

    def __contains__(self, name: str) -> bool:
        return name in self._where

    def has_part(self, name: str) -> bool:
        """Whether the linear layer `name` has a weight in any format."""
        return any(f"{name}.{tensor}" in self._where for tensor in PARTS)

    def is_quantized(self) -> bool:
        """Whether any weight is quantized."""
        return any(name.endswith(_OF_FEW_BITS) for name in self._where)

    def _locate(self) -> dict[str, Path]:
        index = self.folder / _INDEX
        if index.is_file():
            try:
                weight_map = json.loads(index.read_bytes())["weight_map"]
                where = {str(name): self.folder / str(file) for name, file in weight_map.items()}
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                raise ModelError(f"{index}: is not an index of safetensors files: {error!r}") from error
            for path in set(where.values()):
                if not _is_file(path):
                    raise ModelError(f"{path}: named in {_INDEX} but missing")
            return where
        whole = self.folder / _WHOLE
        # Other files may hold the same weights under other names, or an adapter.
        paths = [whole] if whole.is_file() else sorted(self.folder.glob("*.safetensors"))
        if not paths:
            raise ModelError(f"{self.folder}: has no .safetensors file")
        where = {}
        for path in paths:
            for name in self._open(path).keys():  # noqa: SIM118 - not a dict
                if name in where:
                    raise ModelError(f"{path}: tensor {name} is in {where[name].name} as well, and no index says which")
                where[name] = path
        return where

    def _open(self, path: Path) -> Any:
        if path not in self._files:
            try:
                self._files[path] = safe_open(path, framework="pt")
            except (SafetensorError, OSError) as error:
                raise ModelError(f"{path}: is not a readable safetensors file: {error}") from error
        return self._files[path]

    def read(self, name: str) -> torch.Tensor:
        """The tensor `name` as it is stored. Raises ModelError if it is missing or cannot be read."""
        path = self._where.get(name)
        if path is None:
            raise ModelError(f"{self.folder}: tensor {name} is missing")
        self._read.add(name)
        if self._mapped > _MAPPED_BYTES:
            self._unmap()
        with _naming(path, name):
            tensor: torch.Tensor = self._open(path).get_tensor(self._prefix + name)
        self._mapped += tensor.nbytes
        return tensor

    def _unmap(self) -> None:
        """Close the files, whose pages count as this process's memory once they were read.

        They are opened again when needed. Tensors that are still in use keep their pages.
        """
        for file in self._files.values():
            file.__exit__(None, None, None)
        self._files.clear()
        self._mapped = 0

    def load(self, name: str, into: torch.Tensor) -> None:
        """Copy the tensor `name` into `into`, decoded and converted to its type.

        Raises ModelError if it is missing, cannot be decoded, has another shape or has values that are not finite.
        """
        path = self._where.get(name, self.folder)
        try:
            tensor = read_weight(self, name, self.quantization)
        except ValueError as error:
            raise ModelError(f"{path}: tensor {name}: {error}") from error
        if not tensor.is_floating_point():
            raise ModelError(f"{path}: tensor {name} is {tensor.dtype}, which is not supported")
        self._check_shape(name, tensor.shape, into.shape)
        into.copy_(tensor)
        # One pass over memory: a sum of finite weights is finite.
        if not bool(into.sum(dtype=torch.float32).isfinite()):
            raise ModelError(f"{path}: tensor {name} has values that are not finite")

    def same(self, first: str, second: str) -> bool:
        """Whether two tensors are stored with the same type, shape and values."""
        a, b = self.read(first), self.read(second)
        return a.dtype == b.dtype and torch.equal(a, b)

    def packed(self, name: str, shape: tuple[int, int]) -> PackedWeight | None:
        """The quantized weight `name` as it is stored; None if it is plain. Raises ModelError as `load` does."""
        try:
            weight = find_weight(self, name, self.quantization)
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
        elements = 0
        bits = self.quantization.integer("bits", 4)
        for name, path in self._where.items():
            with _naming(path, name):
                stored = self._open(path).get_slice(self._prefix + name)
            count = math.prod(stored.get_shape())
            if name.endswith(("qweight", "weight_packed")):
                count *= (8 if stored.get_dtype() == "U8" else 32) // bits
            elif name.endswith("_blocks") or (name.endswith(".weight") and stored.get_dtype() == "U8"):
                count *= 2
            elements += count
        return elements * itemsize

    def _check_shape(self, name: str, stored: Sequence[int], wanted: Sequence[int]) -> None:
        if tuple(stored) != tuple(wanted):
            path = self._where.get(name, self.folder)
            raise ModelError(f"{path}: tensor {name} has shape {list(stored)}, the configuration says {list(wanted)}")
