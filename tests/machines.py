"""Other machines than this one: which kernels give a row the same bits in any batch, each processor decides.

Each of `MACHINES` is this machine with kernels whose results depend on the number of rows where they do not here. What
the engine decides from that (which kernel, how many rows at least, fused attention or not) is then decided otherwise,
and what it promises must hold all the same. `pytest --machine NAME` runs any test on one of them; `make
test-other-cpu` runs the engine's on all, and with other instruction sets of this processor.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    import torch

    from engine.layers.matmul_kernels import MatmulKernel, MatmulKernels

Rows = Callable[[int], bool]
"""Whether a result of so many rows has other bits."""


def _none(_: int) -> bool:
    return False


@dataclass(frozen=True)
class Machine:
    """For which counts of rows the kernels of oneDNN, transposed weights and the fused attention have other bits."""

    onednn: Rows = _none
    transposed: Rows = _none
    fused: Rows = _none
    products: bool = True
    """Whether some kernel for products keeps a row's bits from 8 rows on, so that no tiles are needed."""
    few_bits: bool = True
    """The same for oneDNN's, which alone computes weights that are kept in few bits."""

    @cache  # noqa: B019  # there are few; of the same kernels, what a trial found is not tried again for each test
    def kernels(self, own: MatmulKernels) -> MatmulKernels:
        """This machine's kernels, made of `own`."""
        from engine.layers.matmul_kernels import MatmulKernels  # imports torch, which most tests do without

        return MatmulKernels(
            onednn=_perturbed(own.onednn, self.onednn),
            transposed=_perturbed(own.transposed, self.transposed),
            unordered=_perturbed(own.unordered, self.onednn),
            plain=own.plain,
        )


MACHINES = {
    "here": Machine(),
    "single rows differ": Machine(onednn=lambda rows: rows == 1, transposed=lambda rows: rows == 1),
    "two rows differ": Machine(onednn=lambda rows: rows <= 2, transposed=lambda rows: rows <= 2),
    "fewer than eight differ": Machine(onednn=lambda rows: rows < 8, transposed=lambda rows: rows < 8),
    "only oneDNN serves": Machine(transposed=lambda rows: rows == 40),
    "oneDNN does not serve": Machine(onednn=lambda rows: rows == 40, few_bits=False),
    "no product serves": Machine(
        onednn=lambda rows: rows > 24, transposed=lambda rows: rows > 24, products=False, few_bits=False
    ),
    "fused attention differs": Machine(fused=lambda rows: rows > 24),
}


def _perturbed(kernel: MatmulKernel, rows: Rows) -> MatmulKernel:
    from engine.layers.matmul_kernels import MatmulKernel  # imports torch, which most tests do without

    def multiply(
        x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, plus: torch.Tensor | None
    ) -> torch.Tensor:
        y = kernel.multiply(x, weight, bias, plus)
        return y * (1 + 1e-6) if rows(len(x)) else y

    return MatmulKernel(multiply, kernel.arranged)


def become(name: str, monkeypatch: pytest.MonkeyPatch) -> Machine:
    """Be another machine until the patch is undone."""
    from engine.layers import attention, matmul_kernels  # imports torch, which most tests do without

    machine = MACHINES[name]
    monkeypatch.setattr(matmul_kernels, "NATIVE", machine.kernels(matmul_kernels.NATIVE))
    own = attention.FUSED

    def fused(q: torch.Tensor, *others: object, **named: object) -> tuple[torch.Tensor, torch.Tensor]:
        output, lse = own(q, *others, **named)
        return output * (1 + 1e-6) if machine.fused(q.shape[2]) else output, lse

    monkeypatch.setattr(attention, "FUSED", fused)
    return machine


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--machine`."""
    parser.addoption("--machine", choices=list(MACHINES), default="here", help="run the tests as on another machine")


def pytest_configure(config: pytest.Config) -> None:
    """Become the machine that was asked for."""
    name = config.getoption("--machine")
    if name != "here":
        become(name, pytest.MonkeyPatch())


if __name__ == "__main__":
    sys.stdout.writelines(f"{name}\n" for name in MACHINES if name != "here")
