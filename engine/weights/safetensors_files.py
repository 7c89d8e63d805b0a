"""The tensors of a folder's safetensors files, one or sharded by an index."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path

import torch

from engine.errors import ModelError
from engine.quantization.packed import PackedWeight
from engine.weights.safetensors_header import StoredTensor, read_header, read_tensor

_OF_FEW_BITS = (".qweight", ".weight_packed", "_blocks", ".weight_scale", ".weight_scale_inv", ".scale", ".absmax")
_INDEX = "model.safetensors.index.json"
_WHOLE = "model.safetensors"
_BY_ITSELF = ("lm_head.", "model.layers.", "model.embed_tokens.", "model.norm.")
"""How names of a language part begin in files that name it as if there were nothing else."""


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:  # a name that no file can have
        return False


def _own_name(stored: str, prefix: str) -> str | None:
    """The name that a tensor of a language part has by itself; None for one of another part."""
    if not prefix or stored.startswith(prefix):
        return stored.removeprefix(prefix)
    inside = f"model.{prefix}"
    if stored.startswith(inside):
        return f"model.{stored.removeprefix(inside)}"
    return stored if stored.startswith(_BY_ITSELF) else None


class SafetensorsFiles:
    """The tensors in safetensors files by name. Raises ModelError.

    `prefix`: of the names of a larger model's language part, which alone is there, under the names that it has by
    itself; files from other versions of transformers have other names for it (`_own_name`). `bits`: of codes that are
    packed into words.
    """

    norms_are_whole = False

    def __init__(self, folder: Path, prefix: str = "", bits: int = 4) -> None:
        self.folder = folder
        self._headers: dict[Path, dict[str, StoredTensor]] = {}
        self._bits = bits
        self._names: dict[str, str] = {}
        """The name in the file of each tensor."""
        where = {}
        for stored, path in self._locate().items():
            name = _own_name(stored, prefix)
            if name is not None:
                self._names[name], where[name] = stored, path
        self.where: Mapping[str, Path] = where

    def is_quantized(self) -> bool:
        """Whether any weight is quantized."""
        return any(name.endswith(_OF_FEW_BITS) for name in self.where)

    def packed(self, _: str) -> PackedWeight | None:
        """None: which tensors are a weight of few bits, and how, is not the file's matter."""
        return None

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
            for name in self._header(path):
                if name in where:
                    raise ModelError(f"{path}: tensor {name} is in {where[name].name} as well, and no index says which")
                where[name] = path
        return where

    def _header(self, path: Path) -> dict[str, StoredTensor]:
        if path not in self._headers:
            self._headers[path] = read_header(path)
        return self._headers[path]

    def _stored(self, name: str) -> StoredTensor:
        path = self.where[name]
        stored = self._header(path).get(self._names[name])
        if stored is None:
            raise ModelError(f"{path}: tensor {name} cannot be read: it is not there")
        return stored

    def read(self, name: str) -> torch.Tensor:
        """The tensor `name` as it is stored. Raises ModelError if it cannot be read."""
        return read_tensor(self.where[name], name, self._stored(name))

    def close(self) -> None:
        """Nothing: a file is open only while it is read."""

    def elements(self) -> int:
        """Estimated elements of all tensors when decoded."""
        elements = 0
        for name in self.where:
            stored = self._stored(name)
            count = math.prod(stored.shape)
            if name.endswith(("qweight", "weight_packed")):
                count *= (8 if stored.dtype == "U8" else 32) // self._bits
            elif name.endswith("_blocks") or (name.endswith(".weight") and stored.dtype == "U8"):
                count *= 2
            elements += count
        return elements

    def stored_bytes(self) -> int:
        """Bytes of the folder's files."""
        return sum(file.stat().st_size for file in self.folder.glob("*.safetensors"))
