"""Products that are streamed on Hopper have the bits of the other kernel, and of the library at many rows."""

from __future__ import annotations

import pytest
import torch

from engine.kernels.linear import fp8_tile_for, linear, tile_for
from engine.kernels.linear_hopper import Stream, fits, linear_streamed, most_rows
from tests.gpu.kernels.interpreter import DEVICE

pytestmark = pytest.mark.gpu
SHAPES = [(6_144, 4_096), (4_096, 14_336), (1_000, 512), (64, 512), (28_672, 4_096), (5_120, 2_880), (2_880, 768)]
"""One has a tile that is not whole, one is a single tile; rows of two are no multiples of 512 bytes, in e4m3 of one."""


@pytest.fixture(autouse=True)
def hopper() -> None:
    if torch.cuda.get_device_capability()[0] != 9:
        pytest.skip("for Hopper")


def product(outputs: int, inputs: int, rows: int, in_fp8: bool) -> tuple[torch.Tensor, torch.Tensor, object]:
    weight = torch.randn(outputs, inputs, device=DEVICE, dtype=torch.bfloat16) * 0.02
    x = torch.randn(rows, inputs, device=DEVICE, dtype=torch.bfloat16)
    if not in_fp8:
        return x, weight, None
    scales = torch.rand(rows, device=DEVICE) + 0.5, torch.rand(outputs, device=DEVICE) + 0.5
    return (x * 64).to(torch.float8_e4m3fn), (weight * 2_000).to(torch.float8_e4m3fn), scales


@pytest.mark.parametrize("in_fp8", [False, True])
@pytest.mark.parametrize(("outputs", "inputs"), SHAPES)
def test_a_row_has_the_bits_of_the_other_kernel(outputs: int, inputs: int, in_fp8: bool) -> None:
    torch.manual_seed(4)
    for rows in (1, 2, 8, 9, 16, 17, 31, 32, 33, 64):
        x, weight, scales = product(outputs, inputs, rows, in_fp8)
        if in_fp8 and inputs == 2_880:
            assert not fits(weight)
            return
        assert fits(weight)
        bias = torch.randn(outputs, device=DEVICE, dtype=torch.bfloat16) if outputs < 6_000 and rows % 2 else None
        tile = fp8_tile_for(rows) if in_fp8 else tile_for(rows, outputs, inputs)
        expected = torch.empty(rows, outputs, device=DEVICE, dtype=torch.bfloat16)
        linear(x, weight, expected, bias=bias, tile=tile, scales=scales)  # type: ignore[arg-type]
        for how in (None, Stream(parts=2 if inputs % 256 == 0 else 3, programs=1)):
            for _ in range(2):
                out = torch.full_like(expected, torch.nan)
                linear_streamed(x, weight, out, bias=bias, scales=scales, how=how)  # type: ignore[arg-type]
                assert torch.equal(out, expected), (rows, how)


def test_a_row_has_the_bits_of_the_library_at_many_rows() -> None:
    torch.manual_seed(5)
    x, weight, _ = product(4_096, 4_096, 2_048, in_fp8=False)
    library = x @ weight.t()
    for rows in range(1, most_rows(weight) + 1):
        first = 31 * rows % 1_900
        out = torch.full((rows, 4_096), torch.nan, device=DEVICE, dtype=torch.bfloat16)
        assert torch.equal(linear_streamed(x[first : first + rows], weight, out), library[first : first + rows])


def test_rows_that_were_just_written_are_read() -> None:
    """A chain of products, each of which begins before the one before it has ended."""
    torch.manual_seed(6)
    weights = [torch.randn(4_096, 4_096, device=DEVICE, dtype=torch.bfloat16) / 64 for _ in range(6)]
    x = torch.randn(8, 4_096, device=DEVICE, dtype=torch.bfloat16)
    expected = x
    for weight in weights:
        expected = linear(expected, weight)
    for _ in range(50):
        outs = [torch.full_like(x, torch.nan) for _ in weights]
        row = x
        for weight, out in zip(weights, outs, strict=True):
            row = linear_streamed(row, weight, out)
        assert torch.equal(row, expected)


def test_what_does_not_fit_is_told() -> None:
    weight = torch.zeros(64, 512, device=DEVICE, dtype=torch.bfloat16)
    assert fits(weight)
    assert fits(weight[:, :320].contiguous())
    assert not fits(weight.float())
    assert not fits(weight[:, :200].contiguous())
    assert not fits(weight[:, :448].contiguous())
    assert not fits(weight.t())
