"""An adapter's matrices as they are multiplied: in fp32, the ranks padded with zeros to one of few sizes.

The padding is fixed per adapter, never per batch, so that a row's sums have the same order in any company. The layers
that share an input (q, k and v; gate and up) share one product with all their A.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TypeAlias

import torch

from engine.layers.linear import Linear, Tiling
from model_files.adapter_config import AdapterRefused
from model_files.adapter_file import AdaptedModule, AdapterFile, AdapterTensor

_PADDED_RANKS = (16, 32, 64, 128, 256)
Prepare: TypeAlias = Callable[[AdapterFile], Callable[[], object]]
"""Checks that an adapter fits the base model, and returns what makes its weights. Raises AdapterRefused."""

_TYPES = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}


@dataclass(frozen=True)
class Target:
    """A linear layer of the engine: its inputs, and which of its outputs each module of the base model has."""

    inputs: int
    parts: Mapping[str, tuple[int, int]]

    @classmethod
    def of(cls, name: str, inputs: int, parts: Mapping[str, tuple[int, int]]) -> Target:
        """The target with the parts of the module `name`."""
        return cls(inputs, {f"{name}.{part}": columns for part, columns in parts.items()})


@dataclass(frozen=True)
class _Expand:
    """h[:, ranks] Bᵀ times `scale` is added to these `columns` of the result."""

    product: Linear
    scale: float
    ranks: slice
    columns: slice


class AdaptedProduct:
    """What an adapter adds to one linear layer."""

    def __init__(self, modules: Mapping[tuple[int, int], AdaptedModule], tiling: Tiling) -> None:
        shrinks: list[torch.Tensor] = []
        expands: list[tuple[torch.Tensor, float, slice, slice]] = []
        at = 0
        for (start, stop), module in modules.items():
            padded = next(rank for rank in _PADDED_RANKS if rank >= module.rank)
            a, b = torch.zeros(padded, module.inputs), torch.zeros(module.outputs, padded)
            a[: module.rank] = matrix(module.a)
            b[:, : module.rank] = matrix(module.b)
            shrinks.append(a)
            expands.append((b, module.scale, slice(at, at + padded), slice(start, stop)))
            at += padded
        self._shrink = Linear(torch.cat(shrinks), None, tiling)
        self._expands = [_Expand(Linear(b, None, tiling), *rest) for b, *rest in expands]  # type: ignore[arg-type]

    def deltas(self, x: torch.Tensor) -> Iterator[tuple[slice, torch.Tensor]]:
        """For these rows [rows, inputs]: columns of the result, and what is added there, in fp32."""
        h = self._shrink(x.float())
        for expand in self._expands:
            yield expand.columns, expand.product(h[:, expand.ranks].contiguous()) * expand.scale


class AdapterWeights:
    """An adapter that is ready to be multiplied. `products`: by the target's name; `tiling`: of their rows."""

    def __init__(self, file: AdapterFile, targets: Mapping[str, Target], like: Tiling) -> None:
        """`like`: the base model's tiling. Raises AdapterRefused for what does not fit the targets."""
        check_fit(file, targets)
        self.digest = file.digest
        self.tiling = Tiling(like.row_multiple, like.row_tile, like.kernels)
        self.products: dict[str, AdaptedProduct] = {}
        for name, target in targets.items():
            modules = {
                columns: file.modules[module] for module, columns in target.parts.items() if module in file.modules
            }
            if modules:
                self.products[name] = AdaptedProduct(modules, self.tiling)


def check_fit(file: AdapterFile, targets: Mapping[str, Target]) -> None:
    """Raise AdapterRefused, naming the module, unless each has a layer of its shape."""
    shapes = {
        module: (target.inputs, stop - start)
        for target in targets.values()
        for module, (start, stop) in target.parts.items()
    }
    for name, module in file.modules.items():
        shape = shapes.get(name)
        if shape is None:
            raise AdapterRefused(name, "the base model has no such layer that an adapter may change")
        if shape != (module.inputs, module.outputs):
            problem = (
                f"it has {module.inputs} inputs and {module.outputs} outputs, the base model {shape[0]} and {shape[1]}"
            )
            raise AdapterRefused(name, problem)


def matrix(tensor: AdapterTensor) -> torch.Tensor:
    """A copy of a stored matrix, in fp32."""
    stored = torch.frombuffer(bytearray(tensor.data), dtype=_TYPES[tensor.dtype])
    return stored.reshape(tensor.shape).float()
