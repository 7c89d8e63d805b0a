"""Weights in the tiles that the kernel for GPUs reads are, read back, the numbers that they were."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from engine.kernels import packed_linear
from engine.kernels.packed_linear import INT4_BF16, INT4_FP16, MXFP4, NVFP4, TABLE, TILE_INPUTS, Scratch
from engine.layers.linear import PackedLinear, TiledLinear, Tiling
from engine.models.registry import kept_in_tiles
from engine.quantization import fp4, int4
from engine.quantization.code_types import CodeType, pack
from engine.quantization.packed import PackedWeight
from engine.quantization.tiles import tiled

Make = Callable[[int, int], PackedWeight]


def words(*shape: int) -> torch.Tensor:
    return torch.randint(-(2**31), 2**31, shape, dtype=torch.int64).int()


def awq(outputs: int, inputs: int) -> PackedWeight:
    groups = inputs // 64
    return int4.stored_awq(words(inputs, outputs // 8), words(groups, outputs // 8), torch.rand(groups, outputs).half())


def gptq(outputs: int, inputs: int, group: torch.Tensor | None = None, size: int = 32) -> PackedWeight:
    groups = inputs // size
    parts = words(inputs // 8, outputs), words(groups, outputs // 8), torch.rand(groups, outputs).half()
    return int4.stored_gptq(*parts, group, bits=4, zero_offset=1)


def act_order(outputs: int, inputs: int) -> PackedWeight:
    chance = torch.Generator().manual_seed(inputs)
    return gptq(outputs, inputs, (torch.arange(inputs) // 64)[torch.randperm(inputs, generator=chance)], 64)


def by_channel(outputs: int, inputs: int) -> PackedWeight:
    """Symmetric, in a file of compressed-tensors."""
    return int4.stored_packed(words(outputs, inputs // 8), torch.rand(outputs, 1), None, (outputs, inputs), bits=4)


def table(outputs: int, inputs: int) -> PackedWeight:
    numbers = CodeType(tuple(torch.linspace(-1, 1, 16).pow(3).tolist()))
    codes = torch.randint(0, 16, (outputs, inputs))
    return PackedWeight("nf4 g64", pack(codes, 4), numbers, torch.rand(outputs, inputs // 64), (1, 64), inputs)


def mxfp4_with_large_scales(outputs: int, inputs: int) -> PackedWeight:
    return fp4.encode_mxfp4(torch.randn(outputs, inputs) * torch.logspace(-30, 30, outputs)[:, None])


def nvfp4_with_zeros(outputs: int, inputs: int) -> PackedWeight:
    weight = torch.randn(outputs, inputs) * torch.logspace(-6, 0, inputs)
    weight[:, 16:32] = 0
    made = fp4.encode_nvfp4(weight)
    scales = made.scales.view(torch.uint8).clone()
    scales[:, :8] = torch.arange(8)  # subnormal ones
    return replace(made, scales=scales.view(torch.float8_e4m3fn))


FORMS: dict[str, tuple[Make, int]] = {
    "int4 g128": (lambda n, k: int4.encode(torch.randn(n, k), 128), INT4_BF16),
    "int4 g64": (lambda n, k: int4.encode(torch.randn(n, k), 64), INT4_BF16),
    "int4 g32": (lambda n, k: int4.encode(torch.randn(n, k), 32), INT4_BF16),
    "awq": (awq, INT4_FP16),
    "gptq": (gptq, INT4_FP16),
    "gptq, act-order": (act_order, INT4_FP16),
    "by channel": (by_channel, TABLE),
    "mxfp4": (lambda n, k: fp4.encode_mxfp4(torch.randn(n, k)), MXFP4),
    "mxfp4, large": (mxfp4_with_large_scales, TABLE),
    "nvfp4": (nvfp4_with_zeros, NVFP4),
    "table": (table, TABLE),
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("shape", [(64, 128), (72, 896), (200, 2_176)])
def test_a_weight_in_tiles_has_its_numbers(form: str, shape: tuple[int, int]) -> None:
    torch.manual_seed(1)
    make, kind = FORMS[form]
    outputs, inputs = shape
    if inputs % 128 and form == "int4 g128":
        pytest.skip("inputs are not whole groups")
    weight = make(outputs, inputs)
    tiles = tiled([weight])
    assert tiles is not None
    assert tiles.tiles.form.kind == kind
    assert tiles.shape == weight.shape
    assert torch.equal(tiles.rows(0, outputs), weight.rows(0, outputs))
    if outputs > 64:
        assert torch.equal(tiles.rows(64, outputs), weight.rows(64, outputs))
    steps = tiles.tiles.data.shape[1]
    assert steps * TILE_INPUTS >= inputs
    assert tiles.tiles.first_sum < inputs or tiles.tiles.sums == 1


@pytest.mark.parametrize("form", FORMS)
def test_weights_behind_each_other(form: str) -> None:
    torch.manual_seed(2)
    make, _ = FORMS[form]
    pieces = [make(outputs, 256) for outputs in (72, 64, 8)]
    tiles = tiled(pieces)
    assert tiles is not None
    expected = torch.cat([piece.rows(0, piece.shape[0]) for piece in pieces])
    assert torch.equal(tiles.rows(0, 144), expected)
    if form == "nvfp4":
        assert tiles.output_scales is not None
        assert tiles.tiles.output_scales is not None
        assert torch.equal(tiles.output_scales, torch.cat([piece.output_scales for piece in pieces]))
        assert torch.equal(tiles.tiles.output_scales, 512 * tiles.output_scales)


def test_what_tiles_cannot_hold_is_left_as_it_is() -> None:
    torch.manual_seed(3)
    eight_bits = int4.stored_gptq(words(32, 64), words(1, 16), torch.rand(1, 64), None, bits=8, zero_offset=1)
    uneven = torch.zeros(128, dtype=torch.int64)
    uneven[:3] = 1
    one, another = (act_order(64, 128), gptq(64, 128, torch.arange(128).flip(0) // 64, 64))
    assert tiled([eight_bits]) is None
    assert tiled([gptq(64, 128, uneven, 64)]) is None
    assert tiled([one, another]) is None
    assert tiled([awq(64, 128), fp4.encode_mxfp4(torch.randn(64, 128))]) is None
    assert tiled([replace(awq(64, 128), minimums=torch.ones(64, 2))]) is None
    assert tiled([int4.encode(torch.randn(64, 132), 12)]) is None


@pytest.mark.parametrize("form", ["awq", "gptq, act-order", "nvfp4"])
def test_a_layer_in_tiles_is_the_layer_of_its_packed_weights(form: str) -> None:
    """Where no kernel multiplies it: stock operations take what is decoded of the tiles."""
    torch.manual_seed(4)
    like = torch.empty(0)
    pieces = [FORMS[form][0](outputs, 256) for outputs in (72, 64)]
    weight, bias, x = tiled(pieces), torch.randn(136), torch.randn(16, 256)
    assert weight is not None
    scratch = Scratch(like)
    layer = TiledLinear(weight, bias, Tiling(), like, scratch)
    torch.testing.assert_close(layer(x), PackedLinear(pieces, bias, Tiling(), like)(x))
    assert not layer.is_copied
    assert layer.nbytes == weight.nbytes
    assert scratch.nbytes == 136 * 256 * 4


def test_weights_are_kept_in_tiles_where_a_kernel_multiplies_them(monkeypatch: pytest.MonkeyPatch) -> None:
    like = torch.empty(0, dtype=torch.bfloat16)
    assert kept_in_tiles("llama", "auto", like, lambda: 1) == "none"
    monkeypatch.setattr(packed_linear, "available", lambda _device: True)
    assert kept_in_tiles("llama", "auto", like, lambda: 1) == "copy"
    assert kept_in_tiles("llama", "auto", like, lambda: 1 << 60) == "scratch"
    assert kept_in_tiles("llama", "packed", like, lambda: 1) == "scratch"
    assert kept_in_tiles("llama", "decoded", like, lambda: 1) == "none"
    assert kept_in_tiles("starcoder2", "auto", like, lambda: 1) == "none"
    assert kept_in_tiles("llama", "auto", like.float(), lambda: 1) == "none"
