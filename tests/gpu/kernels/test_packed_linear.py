"""Products with weights of 4 bits in tiles have the bits of the library on the widened weight, at any count of rows."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from engine.kernels import packed_linear
from engine.kernels.linear import linear
from engine.kernels.packed_linear import NVFP4, NVFP4_FACTOR, Cut, Tiles, multiply, multiply_widened, widen
from engine.quantization import fp4, int4
from engine.quantization.code_types import CodeType
from engine.quantization.packed import PackedWeight
from engine.quantization.tiles import TiledWeight, tiled
from tests.gpu.kernels.interpreter import DEVICE

pytestmark = pytest.mark.gpu

SHAPES = [(4_096, 4_096), (512, 14_336), (72, 896), (200, 2_176), (17_000, 1_024)]
"""Two sums, of many inputs; tiles that are not whole, of outputs and inputs; one sum."""
NF4 = CodeType(tuple(torch.linspace(-1, 1, 16).pow(3).tolist()))


@pytest.fixture(autouse=True)
def hopper() -> None:
    if not packed_linear.available(torch.device(DEVICE)):
        pytest.skip("for Hopper")


def random(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, device=DEVICE)


def codes(outputs: int, inputs: int) -> torch.Tensor:
    return torch.randint(0, 256, (outputs, inputs // 2), device=DEVICE, dtype=torch.uint8)


def integers(outputs: int, inputs: int, size: int, scale: torch.dtype) -> PackedWeight:
    """With zeros up to 16, as files of GPTQ have them."""
    groups = inputs // size
    scales = (torch.rand(outputs, groups, device=DEVICE) * 0.01 + 1e-4).to(scale)
    zeros = torch.randint(0, 17, (outputs, groups), device=DEVICE, dtype=torch.uint8)
    return PackedWeight(f"int4 g{size}", codes(outputs, inputs), int4.integers(4), scales, (1, size), inputs, zeros)


def mxfp4(outputs: int, inputs: int) -> PackedWeight:
    scales = torch.randint(100, 129, (outputs, inputs // 32), device=DEVICE, dtype=torch.uint8)
    scales[:, 0] = 0
    return fp4.stored_mxfp4(codes(outputs, inputs), scales)


def nvfp4(outputs: int, inputs: int) -> PackedWeight:
    scales = torch.randint(0, 127, (outputs, inputs // 16), device=DEVICE, dtype=torch.uint8).view(torch.float8_e4m3fn)
    return fp4.stored_nvfp4(codes(outputs, inputs), scales, torch.rand(outputs, device=DEVICE) * 1e-3 + 1e-5)


def table(outputs: int, inputs: int) -> PackedWeight:
    scales = torch.rand(outputs, inputs // 64, device=DEVICE) * 0.1
    return PackedWeight("nf4 g64", codes(outputs, inputs), NF4, scales, (1, 64), inputs)


FORMS: dict[str, Callable[[int, int], PackedWeight]] = {
    "int4 g128": lambda n, k: integers(n, k, 128, torch.bfloat16),
    "int4 g64": lambda n, k: integers(n, k, 64, torch.bfloat16),
    "int4 g32": lambda n, k: integers(n, k, 32, torch.bfloat16),
    "int4 g128, fp16": lambda n, k: integers(n, k, 128, torch.float16),
    "int4 g32, fp16": lambda n, k: integers(n, k, 32, torch.float16),
    "int4 g64, fp32": lambda n, k: integers(n, k, 64, torch.float32),
    "mxfp4": mxfp4,
    "nvfp4": nvfp4,
    "table": table,
}


def in_tiles(form: str, outputs: int, inputs: int) -> tuple[TiledWeight, torch.Tensor]:
    """In tiles, and decoded as the CPU does it."""
    torch.manual_seed(7)
    stored = FORMS[form](outputs, inputs)
    weight = tiled([stored])
    assert weight is not None
    return weight, stored.rows(0, outputs)


def product(x: torch.Tensor, tiles: Tiles, *, bias: torch.Tensor | None = None, **how: object) -> torch.Tensor:
    out = torch.full((len(x), tiles.outputs), torch.nan, device=DEVICE, dtype=torch.bfloat16)
    return multiply(x, tiles, out, bias=bias, **how)  # type: ignore[arg-type]


def expected_product(x: torch.Tensor, tiles: Tiles, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """By our kernel for plain weights, which never adds up otherwise."""
    total: torch.Tensor | None = None
    for part in (slice(0, tiles.first_sum), slice(tiles.first_sum, None))[: tiles.sums]:
        out = torch.empty(len(x), tiles.outputs, device=DEVICE)
        total = linear(x[:, part].contiguous(), weight[:, part].contiguous(), out, plus=total)
    assert total is not None
    if tiles.output_scales is not None:
        total *= tiles.output_scales
    if bias is not None:
        total += bias
    return total.to(torch.bfloat16)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("shape", SHAPES)
def test_a_row_has_the_same_bits_at_every_number_of_rows(form: str, shape: tuple[int, int]) -> None:
    outputs, inputs = shape
    weight, decoded = in_tiles(form, outputs, inputs)
    tiles = weight.tiles
    widened = widen(tiles, torch.full((outputs, inputs), torch.nan, device=DEVICE, dtype=torch.bfloat16))
    factor = NVFP4_FACTOR if tiles.form.kind == NVFP4 else 1.0
    assert torch.equal(widened.float() * factor, decoded.to(torch.bfloat16).float())
    assert torch.equal(weight.rows(0, outputs), decoded)
    x = random(2_048, inputs).to(torch.bfloat16)
    bias = random(outputs).to(torch.bfloat16)
    for added in (None, bias):
        expected = expected_product(x, tiles, widened, added)
        library = torch.full_like(expected, torch.nan)
        multiply_widened(x, tiles, widened, library, bias=added)
        if outputs >= 4_096:  # elsewhere it may cut the inputs
            assert torch.equal(library, expected)
        for rows in range(1, 65) if added is None else (1, 9, 64):
            first = 31 * rows % 1_900
            there = x[first : first + rows]
            assert torch.equal(product(there, tiles, bias=added), expected[first : first + rows]), rows


@pytest.mark.parametrize("cut", [Cut(1, 1, 4), Cut(2, 2, 2), Cut(1, 4, 1)])
def test_the_cut_changes_no_bits(cut: Cut) -> None:
    weight, _ = in_tiles("int4 g128", 4_160, 4_096)
    x = random(64, 4_096).to(torch.bfloat16)
    for rows in (1, 17, 64):
        assert torch.equal(product(x[:rows], weight.tiles, cut=cut), product(x[:rows], weight.tiles))


def test_a_row_that_is_not_finite_stays_alone() -> None:
    weight, _ = in_tiles("mxfp4", 4_096, 4_096)
    x = random(20, 4_096).to(torch.bfloat16)
    expected = product(x, weight.tiles)
    x[7] = torch.nan
    x[9, 5] = torch.inf
    others = [row for row in range(20) if row not in (7, 9)]
    found = product(x, weight.tiles)
    assert torch.equal(found[others], expected[others])
    assert not found[7].isfinite().any()


def test_rows_that_were_just_written_are_read() -> None:
    """A chain of products, each of which begins before the one before it has ended."""
    torch.manual_seed(6)
    weights = [tiled([FORMS["int4 g128"](4_096, 4_096)]) for _ in range(6)]
    x = random(8, 4_096).to(torch.bfloat16)
    expected = x
    for weight in weights:
        assert weight is not None
        expected = product(expected, weight.tiles)
    for _ in range(50):
        row = x
        for weight in weights:
            assert weight is not None
            row = product(row, weight.tiles, dependent=True)
        assert torch.equal(row, expected)
