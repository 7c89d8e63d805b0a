"""The CPU's matrix multiplication kernels, and from how many rows on each gives a row the same bits (E1).

- `onednn`: the weight is packed once for oneDNN; fastest for large weights. On some machines a single row of a weight
  with many inputs takes another path.
- `transposed`: the weight is kept as [inputs, outputs]; fastest for small weights. A single row, on some machines two,
  take another path.
- `unordered`: oneDNN with a weight in the usual order, for weights that are decoded at each use.
- `plain`: torch's own, for types and devices that oneDNN does not support.

From how many rows on bits are equal depends on the machine, so it is measured (`least_rows`). These are not the Triton
kernels of `engine.kernels`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import TypeAlias

import torch
from torch.nn.functional import linear

from engine.device import all_threads

ROW_MULTIPLE = 8
_TRANSPOSED_ROWS = 512
"""The most rows that are multiplied with a transposed weight at a time."""
_TRIED_ROWS = 512
_TRIED_WORK = 1 << 29
"""The most rows times elements of a weight in a trial: a large weight is tried with fewer rows."""
_MADE_UP = 1 << 24
"""The most elements of a weight that is tried with random numbers; a larger weight is tried itself."""

Multiply: TypeAlias = Callable[[torch.Tensor, torch.Tensor, torch.Tensor | None, torch.Tensor | None], torch.Tensor]
"""Multiplies [rows, inputs] with an arranged weight, and adds a bias [outputs] and [rows, outputs] if given."""


@dataclass(frozen=True, eq=False)
class MatmulKernel:
    """A way to multiply, with a weight [outputs, inputs] that was `arranged` for it."""

    multiply: Multiply
    arranged: Callable[[torch.Tensor], torch.Tensor]


@dataclass(frozen=True)
class MatmulKernels:
    """The kernels of a machine."""

    onednn: MatmulKernel
    transposed: MatmulKernel
    unordered: MatmulKernel
    plain: MatmulKernel


def padded_count(rows: int, least: int) -> int:
    """The number of rows that `rows` are padded to: one of few counts, and at least `least`."""
    if rows <= ROW_MULTIPLE:
        return max(least, 1 << (rows - 1).bit_length())
    multiple = ROW_MULTIPLE if rows <= 64 else 32 if rows <= 256 else 64
    return rows + -rows % multiple


def padded_counts(most: int, least: int) -> list[int]:
    """All counts that 1 to `most` rows are padded to."""
    return sorted({padded_count(rows, least) for rows in range(1, most + 1)})


def has_onednn(like: torch.Tensor) -> bool:
    """Whether oneDNN multiplies tensors of `like`'s type and device."""
    return like.device.type == "cpu" and like.dtype == torch.float32 and _has_operations()


@cache
def _has_operations() -> bool:
    """Whether this build of torch has the operations of oneDNN."""
    try:
        return torch._C._has_mkldnn and _packed(torch.zeros(1, 1, dtype=torch.float32, device="cpu")) is not None
    except (AttributeError, RuntimeError):
        return False


_known: dict[tuple[MatmulKernel, int, int], int | None] = {}


def is_large(weight: torch.Tensor) -> bool:
    """Whether a trial uses the weight itself instead of random numbers of its shape."""
    return weight.numel() > _MADE_UP


def least_rows(kernel: MatmulKernel, weight: torch.Tensor, arranged: torch.Tensor | None = None) -> int | None:
    """The number of rows from which on a row's bits do not depend on the count, its place or the number of threads.

    1 to ROW_MULTIPLE, or None if there is no such number. Results are cached by shape. `arranged`: the weight as
    arranged for the kernel, if there already; a large one is then not arranged again.
    """
    key = (kernel, *weight.shape)
    if key not in _known:
        with torch.inference_mode():
            _known[key] = _try(kernel, weight, arranged)
    return _known[key]


def _try(kernel: MatmulKernel, weight: torch.Tensor, arranged: torch.Tensor | None) -> int | None:
    outputs, inputs = weight.shape
    chance = torch.Generator().manual_seed(outputs)
    if not is_large(weight):
        weight, arranged = torch.randn(outputs, inputs, generator=chance), None
    weight = kernel.arranged(weight) if arranged is None else arranged
    most = max(ROW_MULTIPLE, min(_TRIED_ROWS, _TRIED_WORK // (outputs * inputs)))
    x = torch.randn(most, inputs, generator=chance)
    plus = torch.randn(most, outputs, generator=chance)
    counts = [rows for rows in padded_counts(most, 1) if rows <= most]
    least = 1
    before = torch.get_num_threads()
    try:
        whole, more = (kernel.multiply(x, weight, None, added) for added in (None, plus))
        for threads in sorted({1, all_threads()}):
            torch.set_num_threads(threads)
            for rows in counts:
                # For many rows one place is enough.
                places = [slice(at, at + rows) for at in {0, most - rows if rows <= 64 else 0}]
                if all(
                    torch.equal(kernel.multiply(x[part], weight, None, None), whole[part])
                    and torch.equal(kernel.multiply(x[part], weight, None, plus[part]), more[part])
                    for part in places
                ):
                    continue
                if rows >= ROW_MULTIPLE:
                    return None
                least = max(least, 2 * rows)
    finally:
        torch.set_num_threads(before)
    return least


def in_tiles(
    multiply: Callable[[torch.Tensor, torch.Tensor | None], torch.Tensor],
    x: torch.Tensor,
    plus: torch.Tensor | None,
    rows: int,
) -> torch.Tensor:
    """Multiply `rows` rows at a time."""
    parts = torch.split(x, rows)
    others = [None] * len(parts) if plus is None else torch.split(plus, rows)
    return torch.cat([multiply(*both) for both in zip(parts, others, strict=True)])


def _packed(weight: torch.Tensor) -> torch.Tensor:
    packed: torch.Tensor = torch.ops.mkldnn._reorder_linear_weight(weight)
    return packed


def _by_onednn(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, plus: torch.Tensor | None
) -> torch.Tensor:
    y: torch.Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
    return y if plus is None else y.add_(plus)


def _by_transposed(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, plus: torch.Tensor | None
) -> torch.Tensor:
    if x.shape[0] > _TRANSPOSED_ROWS:
        return in_tiles(lambda rows, more: _by_transposed(rows, weight, bias, more), x, plus, _TRANSPOSED_ROWS)
    y = torch.mm(x, weight) if plus is None else torch.addmm(plus, x, weight)
    return y if bias is None else y.add_(bias)


def _plainly(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, plus: torch.Tensor | None
) -> torch.Tensor:
    y = linear(x, weight, bias)
    return y if plus is None else y.add_(plus)


NATIVE = MatmulKernels(
    onednn=MatmulKernel(_by_onednn, _packed),
    transposed=MatmulKernel(_by_transposed, lambda weight: weight.t().contiguous()),
    unordered=MatmulKernel(_by_onednn, lambda weight: weight),
    plain=MatmulKernel(_plainly, lambda weight: weight),
)
"""This machine's kernels. Tests that simulate another machine replace them."""


def known_rows() -> dict[str, int | None]:
    """What trials of this machine's kernels have found: kernel, outputs and inputs -> `least_rows`."""
    names = {kernel: name for name, kernel in vars(NATIVE).items()}
    return {
        f"{names[kernel]} {outputs} {inputs}": least
        for (kernel, outputs, inputs), least in _known.items()
        if kernel in names
    }


def take_known_rows(known: Mapping[str, int | None]) -> None:
    """Take over what `known_rows` gave in another process on the same machine. Raises ValueError for what it cannot
    have given."""
    taken = {}
    for key, least in known.items():
        name, outputs, inputs = key.split()
        kernel = vars(NATIVE).get(name)
        if kernel is None or (least is not None and not 1 <= least <= ROW_MULTIPLE):
            raise ValueError(f"no trial gives {key}: {least}")
        taken[kernel, int(outputs), int(inputs)] = least
    _known.update(taken)
