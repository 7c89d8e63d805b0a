"""Safetensors files, one or sharded by an index, memory-mapped: tensors are copied straight into their final place.

Every tensor that a model asks for must be there with the expected shape; an error names the tensor and the file.
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
"""What the main tensor of a linear layer is called in the formats that there are."""
_OF_FEW_BITS = (".qweight", ".weight_packed", "_blocks", ".weight_scale", ".weight_scale_inv", ".scale")
_MAPPED_BYTES = 64 << 20
"""Read so much, files are mapped anew."""
_INDEX = "model.safetensors.index.json"
_WHOLE = "model.safetensors"
_LAYER = re.compile(r"model\.layers\.(\d+)\..*\.(weight|bias|qweight|weight_packed)$")
"""The weights and biases of a layer, of which none may be overlooked; others are scales and tables."""


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
    """The tensors of a model folder by name; use it as a context manager. Raises ModelError.

    `quantization` are the fields of the configuration's `quantization_config`. Where `prefix` is given, tensors are
    called by what follows it, and others are not there.
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
        """Whether there is a tensor of the layer `name`, such as its weight."""
        return any(f"{name}.{tensor}" in self._where for tensor in PARTS)

    def is_quantized(self) -> bool:
        """Whether there is a weight that is stored in few bits, with scales."""
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
        # Beside it may lie the same weights once more under other names, or an adapter's.
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
        """Let go of the files' pages, which count as this process's memory once they were read.

        Files are opened again as they are needed; tensors that somebody still has keep what they look at.
        """
        for file in self._files.values():
            file.__exit__(None, None, None)
        self._files.clear()
        self._mapped = 0

    def load(self, name: str, into: torch.Tensor) -> None:
        """Copy the tensor `name` into `into`, decoding it and converting its type.

        Raises ModelError if it is missing, cannot be decoded or has another shape.
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
        one, other = self.read(first), self.read(second)
        return one.dtype == other.dtype and torch.equal(one, other)

    def packed(self, name: str, shape: tuple[int, int]) -> PackedWeight | None:
        """The tensor `name` as it is stored in few bits; None if it is plain. Raises ModelError as `load` does."""
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
        """Raise ModelError naming a weight or bias of a layer that no one has read.

        The configuration then says something else than the files, and the model would answer with a part of itself.
        The `others` layers behind the first `layers` are left alone. Biases that are all zero change nothing: some
        quantizers write one for every product.
        """
        for name in sorted(self._where.keys() - self._read):
            layer = _LAYER.match(name)
            if layer is None or layers <= int(layer[1]) < layers + others:
                continue
            if name.endswith(".bias") and not self.read(name).any():
                continue
            raise ModelError(f"{self._where[name]}: the configuration has no place for tensor {name}")

    def decoded_bytes(self, itemsize: int) -> int:
        """About how many bytes the weights take when all are decoded to elements of `itemsize` bytes."""
        elements = 0
        bits = self.quantization.integer("bits", 4)
        for name, path in self._where.items():
            with _naming(path, name):
                stored = self._open(path).get_slice(self._prefix + name)
            count = math.prod(stored.get_shape())
            if name.endswith(("qweight", "weight_packed")):
                count *= (8 if stored.get_dtype() == "U8" else 32) // bits
            elif name.endswith("_blocks"):
                count *= 2
            elements += count
        return elements * itemsize

    def _check_shape(self, name: str, stored: Sequence[int], wanted: Sequence[int]) -> None:
        if tuple(stored) != tuple(wanted):
            path = self._where.get(name, self.folder)
            raise ModelError(f"{path}: tensor {name} has shape {list(stored)}, the configuration says {list(wanted)}")
