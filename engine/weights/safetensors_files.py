"""The tensors of a folder's safetensors files, one or sharded by an index, memory-mapped."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from engine.errors import ModelError
from engine.quantization.packed import PackedWeight

_OF_FEW_BITS = (".qweight", ".weight_packed", "_blocks", ".weight_scale", ".weight_scale_inv", ".scale", ".absmax")
_MAPPED_BYTES = 64 << 20
"""Bytes after which files are closed and mapped again, so that pages that were read no longer count as memory."""
_INDEX = "model.safetensors.index.json"
_WHOLE = "model.safetensors"


_BY_ITSELF = ("lm_head.", "model.layers.", "model.embed_tokens.", "model.norm.")
"""How names of a language part begin in files that name it as if there were nothing else."""


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
        self._files: dict[Path, Any] = {}
        self._mapped = 0
        self._bits = bits
        self._stored: dict[str, str] = {}
        """The name in the file of each tensor."""
        where = {}
        for stored, path in self._locate().items():
            name = _own_name(stored, prefix)
            if name is not None:
                self._stored[name], where[name] = stored, path
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
        """The tensor `name` as it is stored. Raises ModelError if it cannot be read."""
        path = self.where[name]
        if self._mapped > _MAPPED_BYTES:
            self.close()
        with _naming(path, name):
            tensor: torch.Tensor = self._open(path).get_tensor(self._stored[name])
        self._mapped += tensor.nbytes
        return tensor

    def close(self) -> None:
        """Close the files, whose pages count as this process's memory once they were read.

        They are opened again when needed. Tensors that are still in use keep their pages.
        """
        for file in self._files.values():
            file.__exit__(None, None, None)
        self._files.clear()
        self._mapped = 0

    def elements(self) -> int:
        """Estimated elements of all tensors when decoded."""
        elements = 0
        for name, path in self.where.items():
            with _naming(path, name):
                stored = self._open(path).get_slice(self._stored[name])
            count = math.prod(stored.get_shape())
            if name.endswith(("qweight", "weight_packed")):
                count *= (8 if stored.get_dtype() == "U8" else 32) // self._bits
            elif name.endswith("_blocks") or (name.endswith(".weight") and stored.get_dtype() == "U8"):
                count *= 2
            elements += count
        return elements

    def stored_bytes(self) -> int:
        """Bytes of the folder's files."""
        return sum(file.stat().st_size for file in self.folder.glob("*.safetensors"))
