"""Integers that a native kernel decodes are the same to the last bit, or are left as they are."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from engine.layers.linear import PackedLinear, best_tiling
from engine.quantization import int4
from engine.quantization.grouped_rows import grouped_rows
from engine.quantization.packed import PackedWeight
from tests.engine.quantization.published_formats import awq, gptq


def read(fmt: str, group: int) -> PackedWeight:
    torch.manual_seed(group)
    if fmt == "awq":
        parts, _ = awq(24, 256, group)
        return int4.stored_awq(*(parts[name] for name in ("qweight", "qzeros", "scales")))
    parts, _ = gptq(24, 256, group, act_order=fmt == "act-order")
    words, zeros, scales, groups = (parts[name] for name in ("qweight", "qzeros", "scales", "g_idx"))
    return int4.stored_gptq(words, zeros, scales, groups, bits=4, zero_offset=1)


@given(
    st.sampled_from([32, 64, 128]),
    st.integers(1, 40),
    st.integers(-20, 20),
    st.integers(0, 1 << 20),
)
def test_whatever_is_encoded_is_decoded_to_the_same_bits(group: int, outputs: int, exponent: int, seed: int):
    chance = torch.Generator().manual_seed(seed)
    weight = int4.encode(torch.randn(outputs, 256, generator=chance) * 2.0**exponent, group)
    rows = grouped_rows(weight)
    if rows is not None:
        assert torch.equal(rows.rows(0, outputs), weight.rows(0, outputs))
        assert torch.equal(rows.rows(outputs // 2, outputs), weight.rows(outputs // 2, outputs))
    assert rows is not None or abs(exponent) > 8


def test_files_whose_zeros_fp16_does_not_hold_are_too():
    for fmt in ("awq", "gptq"):
        for group in (32, 64, 128):
            weight = read(fmt, group)
            rows = grouped_rows(weight)
            assert rows is not None
            assert torch.equal(rows.rows(3, 24), weight.rows(3, 24))
            assert rows.nbytes <= weight.nbytes * 1.3


def test_inputs_out_of_order_are_left_as_they_are():
    assert grouped_rows(read("act-order", 32)) is None


def test_codes_take_a_byte_each_where_fp16_does_not_hold_the_scales():
    for size in (1e-8, 1e8):
        weight = int4.encode(torch.randn(8, 64) * size, 32)
        rows = grouped_rows(weight)
        assert rows is not None
        assert rows.nbytes == 8 * 64 + 8 * 2 * 8
        assert torch.equal(rows.rows(0, 8), weight.rows(0, 8))


def test_a_product_takes_them_and_keeps_its_bits_in_any_batch():
    torch.manual_seed(2)
    weight = int4.encode(torch.randn(300, 256), 64)
    like = torch.empty(0)
    product = PackedLinear([weight], None, best_tiling(like), like)
    assert not isinstance(product.pieces[0], PackedWeight)
    x = torch.randn(40, 256)
    with torch.inference_mode():
        whole = product(x)
        for rows in (1, 2, 3, 8, 17):
            assert torch.equal(product(x[:rows]), whole[:rows])
        exact = x.double() @ weight.rows(0, 300).double().t()
    assert (whole.double() - exact).abs().max() < 1e-4
