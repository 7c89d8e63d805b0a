"""Each type of GGUF is the numbers that the `gguf` package decodes, to the last bit, whole and in parts."""

from __future__ import annotations

from typing import Any

import gguf
import numpy as np
import pytest
import torch

from engine.layers.linear import PackedLinear, best_tiling
from engine.quantization.gguf import stored_blocks
from engine.quantization.grouped_rows import grouped_rows
from engine.quantization.packed import PackedWeight, decoded
from tests.engine.gguf_files import HALVES, random_blocks

OUTPUTS, INPUTS = 24, 512


def written(kind: str) -> tuple[PackedWeight, np.ndarray[Any, Any]]:
    """A random weight, and what it stands for by the package."""
    raw = random_blocks(OUTPUTS, INPUTS, kind, np.random.default_rng(3))
    elements, nbytes = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[kind]]
    blocks = torch.from_numpy(raw.reshape(OUTPUTS, INPUTS // elements, nbytes))
    return stored_blocks(blocks, kind), gguf.quants.dequantize(raw, gguf.GGMLQuantizationType[kind])


@pytest.mark.parametrize("kind", HALVES)
def test_a_weight_is_what_the_package_decodes(kind: str):
    weight, exact = written(kind)
    assert weight.form == f"gguf {kind.lower()}"
    assert np.array_equal(decoded(weight).numpy(), exact)
    order = torch.randperm(OUTPUTS, generator=torch.Generator().manual_seed(1))
    assert np.array_equal(decoded(weight.in_rows(order)).numpy(), exact[order])


@pytest.mark.parametrize("kind", HALVES)
def test_a_native_kernel_decodes_the_same(kind: str):
    weight, exact = written(kind)
    rows = grouped_rows(weight)
    assert rows is not None
    for start, stop in ((0, OUTPUTS), (5, 6), (7, 20)):
        assert np.array_equal(rows.rows(start, stop).numpy(), exact[start:stop])
    assert rows.nbytes <= weight.nbytes * 1.7


def test_a_product_with_minimums_has_the_bits_of_the_decoded_weight():
    weight, exact = written("Q4_K")
    like = torch.empty(0)
    product = PackedLinear([weight], None, best_tiling(like), like)
    x = torch.randn(9, INPUTS, generator=torch.Generator().manual_seed(2))
    with torch.inference_mode():
        whole = product(x)
        assert torch.equal(product(x[:1]), whole[:1])
        assert (whole.double() - x.double() @ torch.from_numpy(exact).double().t()).abs().max() < 1e-4


@pytest.mark.parametrize("kind", HALVES)
@pytest.mark.parametrize("number", [np.inf, np.nan])
def test_scales_that_are_not_finite_are_refused(kind: str, number: float):
    raw = random_blocks(OUTPUTS, INPUTS, kind, np.random.default_rng(3))
    elements, nbytes = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[kind]]
    for at in HALVES[kind]:
        blocks = raw.reshape(OUTPUTS, INPUTS // elements, nbytes).copy()
        blocks[3, 0, at : at + 2] = np.array([number], np.float16).view(np.uint8)
        with pytest.raises(ValueError, match="not all finite"):
            stored_blocks(torch.from_numpy(blocks), kind)
