"""A product's row has the same bits whatever rows are beside it, in each of the ways that products are computed."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from engine.layers import linear
from engine.layers.linear import Linear, best_tiling

SHAPES = [(64, 32), (256, 96), (96, 256), (1000, 100), (48, 48)]


@pytest.fixture(autouse=True)
def inference() -> Iterator[None]:
    with torch.inference_mode():
        yield


@pytest.fixture(autouse=True)
def judged_anew() -> Iterator[None]:
    linear._holds.cache_clear()
    yield
    linear._holds.cache_clear()


def layer(outputs: int, inputs: int, *, bias: bool, few_bits: bool) -> tuple[Linear, torch.Tensor]:
    torch.manual_seed(outputs)
    weight = torch.randn(outputs, inputs)
    return Linear(weight, torch.randn(outputs) if bias else None, best_tiling(weight), few_bits=few_bits), weight


@pytest.mark.parametrize("few_bits", [False, True])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize(("outputs", "inputs"), SHAPES)
def test_at_every_count_and_place(outputs: int, inputs: int, bias: bool, few_bits: bool):
    product, weight = layer(outputs, inputs, bias=bias, few_bits=few_bits)
    x, plus = torch.randn(1100, inputs), torch.randn(1100, outputs)
    whole, more = product(x), product(x, plus)
    exact = x.double() @ weight.double().t()
    if product._bias is not None:
        exact += product._bias.double()
    assert (whole - exact).abs().max() < 1e-4
    assert (more - exact - plus).abs().max() < 1e-4
    for rows in product.tiling.counts(1100):
        for at in (0, 1100 - rows):
            part = slice(at, at + rows)
            assert torch.equal(product(x[part]), whole[part])
            assert torch.equal(product(x[part], plus[part]), more[part])


def test_a_weight_in_few_bits_has_the_bits_of_one_that_is_kept_so():
    """It is not transposed, since that is not how a piece of it is computed."""
    assert layer(64, 32, bias=False, few_bits=True)[0]._way is linear._by_onednn
    assert layer(64, 32, bias=False, few_bits=False)[0]._way is linear._by_transposed


@pytest.mark.parametrize("operation", ["mm", "addmm"])
def test_where_it_depends_on_the_count_a_weight_is_not_transposed(monkeypatch: pytest.MonkeyPatch, operation: str):
    sound = getattr(torch, operation)

    def unsound(*given: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = sound(*given)
        return y * (1 + 1e-6 * (len(y) == 40))

    monkeypatch.setattr(torch, operation, unsound)
    assert layer(64, 32, bias=False, few_bits=False)[0]._way is linear._by_onednn


def test_a_large_weight_is_packed_unless_that_depends_on_the_count(monkeypatch: pytest.MonkeyPatch):
    assert layer(1024, 512, bias=False, few_bits=False)[0]._way is linear._by_onednn
    sound = linear._by_onednn

    def unsound(x: torch.Tensor, *others: torch.Tensor | None) -> torch.Tensor:
        return sound(x, *others) * (1 + 1e-6 * (len(x) == 40))

    monkeypatch.setattr(linear, "_by_onednn", unsound)
    assert layer(1024, 512, bias=False, few_bits=False)[0]._way is linear._by_transposed


def test_a_single_row_is_doubled_once_where_most_products_would_have_to():
    small, large = torch.randn(64, 32), torch.randn(1024, 512)
    tiling = best_tiling(small)
    Linear(small, None, tiling)
    assert tiling.padding(1) == 1
    alone = Linear(large, None, tiling)
    assert tiling.padding(1) == 0
    x = torch.randn(3, 32)
    for product, rows in ((Linear(small, None, tiling), x), (alone, torch.randn(3, 512))):
        assert torch.equal(product(rows[:1]), product(torch.cat([rows, rows[:1]]))[:1])
