"""A product with a weight of 4 bits, tried: `python -m benchmarks.gpu.packed_linear [--json OUT]`.

Compares the bits of `packed_linear.cu` with the library on the widened weight, and times it over the linears of Llama
3.1 8B, with the weights cold.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import NamedTuple

import torch

from benchmarks.gpu.kernels import DEVICE, SHAPES, Report, graph_us
from engine.kernels import cuda_source
from engine.kernels.cuda_source import CudaKernel, TensorMap
from engine.kernels.linear import linear

GROUP = 128
"""Inputs that share a scale and a zero."""
TILE_BYTES = 64 * GROUP // 2 + 64 * 4
"""Of 64 outputs and a group's inputs: codes, then a scale and a zero for each output."""
COLD_BYTES = 300 << 20
"""Copies of a weight that are read in turn, so that none is in the L2 cache (50 MiB)."""


class Cut(NamedTuple):
    """How a product is cut among blocks; see the source."""

    splits: int
    groups: int
    step: int
    blocks: int
    """Of a multiprocessor."""

    def stages(self, rows: int, inputs: int) -> int:
        """As many as fit into shared memory."""
        sums = (self.splits - 1) * self.groups * rows * 256
        stage = self.step * (2 * rows * 128 + self.groups * TILE_BYTES) + 16
        return int(
            min(32, inputs // GROUP // self.splits // self.step, ((227 << 10) // self.blocks - 3072 - sums) // stage)
        )

    def kernel(self, rows: int, inputs: int) -> CudaKernel:
        """For `rows` rows, a power of two from 8."""
        stages = self.stages(rows, inputs)
        held = stages * (self.step * (2 * rows * 128 + self.groups * TILE_BYTES) + 16)
        shared = held + (self.splits - 1) * self.groups * rows * 256 + 1040
        defines = {"ROWS": rows, "STAGES": stages, "GROUPS": self.groups, "SPLITS": self.splits, "STEP": self.step}
        return CudaKernel("packed_linear.cu", "packed_linear", defines, shared)


CUTS = [Cut(splits, *rest) for splits in (1, 2, 4) for rest in ((1, 4, 1), (1, 2, 3), (1, 2, 5), (2, 2, 2))]


class Codes(NamedTuple):
    """A weight [outputs, inputs] of 4 bits: codes, and bf16 scales and zeros [outputs, groups of inputs]."""

    codes: torch.Tensor
    scales: torch.Tensor
    zeros: torch.Tensor

    def widened(self) -> torch.Tensor:
        grouped = self.codes.float().view(*self.scales.shape, GROUP) - self.zeros.float()[..., None]
        return (grouped * self.scales.float()[..., None]).view(self.codes.shape).to(torch.bfloat16)

    def packed(self) -> torch.Tensor:
        """Words [tiles of 64 outputs, groups of inputs, a tile's words] as the kernel reads them."""
        outputs, inputs = self.codes.shape
        tiles, groups = outputs // 64, inputs // GROUP
        # A thread's word has the eight numbers that it gives to a matrix instruction, [16, 16] of a warp: rows g and
        # g + 8, inputs 2t and 2t + 8 and the ones after them, the pairs' first in the low half.
        parts = self.codes.long().view(
            tiles, 4, 2, 8, groups, 2, 4, 2, 4, 2
        )  # warp, row + 8, g | half, step, + 8, t, odd
        nibbles = parts.permute(0, 4, 1, 5, 3, 8, 6, 9, 7, 2).reshape(tiles, groups, -1, 8)
        words = (nibbles << (4 * torch.arange(8, device=DEVICE))).sum(-1).to(torch.int32)
        halves = torch.stack([self.scales, (self.zeros.float() + 128).to(torch.bfloat16)], -1)
        scales = halves.view(tiles, 64, groups, 2).transpose(1, 2).contiguous().view(torch.int32).flatten(2)
        return torch.cat([words, scales], -1).contiguous()


def random_codes(outputs: int, inputs: int) -> Codes:
    codes = torch.randint(0, 16, (outputs, inputs), device=DEVICE, dtype=torch.uint8)
    scales = (torch.rand(outputs, inputs // GROUP, device=DEVICE) * 0.01 + 0.002).to(torch.bfloat16)
    return Codes(codes, scales, torch.randint(0, 16, scales.shape, device=DEVICE).to(torch.bfloat16))


class Product:
    """x Wᵀ by the kernel, for one number of rows."""

    def __init__(self, cut: Cut, x: torch.Tensor, outputs: int) -> None:
        rows = max(8, 1 << (len(x) - 1).bit_length())
        self.kernel, self.x, self._map = cut.kernel(rows, x.shape[1]), x, TensorMap(x, len(x))
        self.y = torch.full((len(x), outputs), float("nan"), device=DEVICE, dtype=torch.bfloat16)
        self._grid, self._threads = (-(-outputs // 64 // cut.groups) * cut.splits, 1), cut.groups * 128 + 32

    def __call__(self, packed: torch.Tensor) -> torch.Tensor:
        rows, outputs, inputs = len(self.x), self.y.shape[1], self.x.shape[1]
        self.kernel(
            self._grid, self._threads, packed, self._map, self.y, rows, outputs, inputs, outputs, dependent=True
        )
        return self.y


def library_product(x: torch.Tensor, weight: torch.Tensor, splits: int) -> torch.Tensor:
    """The sum of the products of equal parts of the inputs, added in order in fp32."""
    total: torch.Tensor | None = None
    for a, b in zip(x.chunk(splits, 1), weight.chunk(splits, 1), strict=True):
        if total is None:
            total = torch.mm(a, b.T, out_dtype=torch.float32)
        else:
            total = torch.addmm(total, a, b.T, out_dtype=torch.float32)
    assert total is not None
    return total.to(torch.bfloat16)


def differing_bits() -> Report:
    """Numbers that differ from the library's at 2,048 rows, by splits and rows."""
    report: Report = {}
    for outputs, inputs in ((4_096, 4_096), (512, 14_336)):
        weight = random_codes(outputs, inputs)
        widened, packed = weight.widened(), weight.packed()
        x = torch.randn(2_048, inputs, device=DEVICE).to(torch.bfloat16)
        for splits in (1, 2, 4):
            reference = library_product(x, widened, splits)
            for rows in (*range(1, 18), 31, 32, 33, 63, 64):
                if splits == 1:  # The library may split more inputs by itself.
                    reference = linear(x[:rows].contiguous(), widened)
                y = Product(Cut(splits, 1, 2, 2), x[:rows].contiguous(), outputs)(packed)
                report[f"{outputs}x{inputs} splits {splits} rows {rows}"] = int((y != reference[:rows]).sum())
    return report


def times() -> Report:
    """µs of each linear by rows: the quickest cut of each number of splits."""
    report: Report = {}
    for name, (outputs, inputs) in SHAPES.items():
        packed = random_codes(outputs, inputs).packed()
        copies = [packed.clone() for _ in range(max(2, -(-COLD_BYTES // packed.nbytes)))]
        for rows in (1, 8, 16, 32, 64):
            x = torch.randn(rows, inputs, device=DEVICE).to(torch.bfloat16)
            best: dict[int, tuple[float, Cut]] = {}
            for cut in CUTS:
                high = max(8, 1 << (rows - 1).bit_length())
                if inputs // GROUP // cut.splits % cut.step or cut.stages(high, inputs) < 2:
                    continue
                product = Product(cut, x, outputs)
                took = graph_us(lambda index: product(copies[index]), len(copies))
                best[cut.splits] = min(best.get(cut.splits, (took, cut)), (took, cut))
            for splits, (took, cut) in best.items():
                report[f"{name} rows {rows} splits {splits}"] = {
                    "us": took,
                    "TB/s": packed.nbytes / took / 1e6,
                    "cut": cut,
                }
                speed = packed.nbytes / took / 1e6
                print(f"{name}, {rows} rows, {splits} splits: {took:.1f} µs, {speed:.2f} TB/s, {cut}", flush=True)
    return report


def main() -> None:
    """Print, and write with `--json`, what differs and what it takes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    cuda_source.SOURCES = Path(__file__).parent
    torch.manual_seed(1)
    bits = differing_bits()
    print(f"{sum(bits.values())} numbers differ in {len(bits)} products")
    report = {"differing": bits, "times": times()}
    if arguments.json:
        arguments.json.write_text(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
