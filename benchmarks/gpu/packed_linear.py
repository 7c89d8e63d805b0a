"""Products with weights of 4 bits: `python -m benchmarks.gpu.packed_linear [--json OUT]`.

Times `engine.kernels.packed_linear` over the linears of Llama 3.1 8B with the weights cold: each format, cut and number
of rows; widening; and the library on the widened weight.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import torch

from benchmarks.gpu.kernels import DEVICE, SHAPES, Report, graph_us
from engine.kernels import packed_linear
from engine.kernels.cuda_source import KernelError
from engine.kernels.packed_linear import Cut, TileForm, Tiles, multiply, multiply_widened, widen
from engine.quantization.encoding import ENCODERS
from engine.quantization.tiles import tiled

COLD_BYTES = 300 << 20
"""Copies of a weight that are read in turn, so that none is in the L2 cache (50 MiB)."""
CUTS: dict[int, list[Cut]] = {
    8: [Cut(1, 4, blocks) for blocks in (1, 2, 3, 4)] + [Cut(1, 2, 4)],
    16: [Cut(1, 4, blocks) for blocks in (1, 2, 3)],
    32: [Cut(1, 2, blocks) for blocks in (1, 2, 3)] + [Cut(1, 1, blocks) for blocks in (2, 3)],
    64: [Cut(1, 1, blocks) for blocks in (1, 2, 3)] + [Cut(1, 2, blocks) for blocks in (1, 2)],
}
"""By the rows of a kernel."""
FORMS = ("int4", "mxfp4", "nvfp4", "awq", "table")
ROWS = (1, 8, 16, 32, 64)
MANY_ROWS = (128, 512, 2_048, 8_192)


def tiles_of(form: str, outputs: int, inputs: int) -> Tiles:
    """A random weight; "awq": scales in fp16, "table": in fp32."""
    name = "int4" if form in ("awq", "table") else form
    packed = ENCODERS[name](torch.randn(outputs, inputs, device=DEVICE, dtype=torch.bfloat16) * 0.02)  # type: ignore[index]
    if form == "awq":
        packed = replace(packed, scales=(packed.scales.float() * 1.001).half())
    if form == "table":
        packed = replace(packed, scales=packed.scales.float() * 1.0001)
    weight = tiled([packed])
    assert weight is not None
    return weight.tiles


def tall(rows: int) -> int:
    """The rows of the kernel for so many."""
    return max(8, 1 << (rows - 1).bit_length())


def compile_ahead(form: TileForm, rows: list[int]) -> None:
    """All kernels at once: each takes a core some seconds."""

    def make(key: tuple[int, int, Cut]) -> None:
        try:
            packed_linear.compile_kernel(form, *key)
        except KernelError as error:
            print(key, error, flush=True)

    with ThreadPoolExecutor(16) as pool:
        list(
            pool.map(make, ((sums, high, cut) for sums in (1, 2) for high in {*map(tall, rows)} for cut in CUTS[high]))
        )


def times_of(form: str, counts: list[int], tiles: Tiles, name: str) -> Iterator[tuple[str, float]]:
    """µs by what is timed."""
    copies = [replace(tiles, data=tiles.data.clone()) for _ in range(max(2, -(-COLD_BYTES // tiles.data.nbytes)))]
    for rows in counts:
        x = torch.randn(rows, tiles.inputs, device=DEVICE).to(torch.bfloat16)
        out = torch.empty(rows, tiles.outputs, device=DEVICE, dtype=torch.bfloat16)
        took: dict[str, float] = {}
        for cut in CUTS[tall(rows)]:
            try:
                took[f"{cut.tiles}.{cut.step}.{cut.blocks}"] = graph_us(
                    lambda index, cut=cut, x=x, out=out: multiply(x, copies[index], out, dependent=True, cut=cut),  # type: ignore[misc]
                    len(copies),
                )
            except (KernelError, RuntimeError) as error:
                print(form, name, rows, cut, error, flush=True)
        best = sorted(took, key=took.__getitem__)
        speed = tiles.data.nbytes / took[best[0]] / 1e6
        print(
            f"{form} {name} rows {rows}: {speed:.2f} TB/s;", ", ".join(f"{cut} {took[cut]:.1f}" for cut in best[:6]),
            flush=True,
        )  # fmt: skip
        yield from ((f"{form} {name} rows {rows} cut {cut}", us) for cut, us in took.items())


def times_of_many(form: str, tiles: Tiles, name: str) -> Iterator[tuple[str, float]]:
    """µs of widening, and of the library with the sums that the kernel has beside its plain product."""
    into = torch.empty(tiles.outputs, tiles.inputs, device=DEVICE, dtype=torch.bfloat16)
    found = {"widen": graph_us(lambda _: widen(tiles, into), 4)}
    for rows in MANY_ROWS:
        x = torch.randn(rows, tiles.inputs, device=DEVICE).to(torch.bfloat16)
        out = torch.empty(rows, tiles.outputs, device=DEVICE, dtype=torch.bfloat16)
        found[f"{rows}"] = graph_us(lambda _, x=x, out=out: multiply_widened(x, tiles, into, out), 4)  # type: ignore[misc]
        found[f"{rows} plain"] = graph_us(lambda _, x=x, out=out: torch.mm(x, into.t(), out=out), 4)  # type: ignore[misc]
    print(f"{form} {name}:", ", ".join(f"{what} {us:.0f}" for what, us in found.items()), flush=True)
    yield from ((f"{form} {name} {what}", us) for what, us in found.items())


def main() -> None:
    """Print, and write with `--json`, what everything takes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--forms", default=",".join(FORMS))
    parser.add_argument("--rows", default=",".join(map(str, ROWS)))
    parser.add_argument("--many", action="store_true", help="products of many rows too")
    arguments = parser.parse_args()
    torch.manual_seed(1)
    report: Report = {}
    counts = [int(count) for count in arguments.rows.split(",")]
    for form in arguments.forms.split(","):
        compile_ahead(tiles_of(form, 64, 128).form, counts)
        for name, (outputs, inputs) in SHAPES.items():
            if name == "head":
                continue
            tiles = tiles_of(form, outputs, inputs)
            report.update(times_of(form, counts, tiles, name))
            if arguments.many:
                report.update(times_of_many(form, tiles, name))
        if arguments.json:
            arguments.json.write_text(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
