"""A product's row has the same bits whatever rows are beside it, on whichever machine: one whose kernels keep them at
every count, one whose single rows have to be doubled, one that packing helps and one that it does not.

Which kernel a machine chooses is its own affair.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from engine.layers import matmul_kernels
from engine.layers.linear import Linear, PackedLinear, best_tiling
from engine.layers.matmul_kernels import ROW_MULTIPLE, MatmulKernel, least_rows
from engine.quantization.encoding import encoded
from engine.quantization.packed import decoded
from tests.fast import only_fast
from tests.machines import MACHINES, become

SHAPES = [(64, 32), (256, 96), (96, 256), (1000, 100), (48, 48)]
PRODUCTS = {(machine.onednn, machine.transposed): name for name, machine in reversed(MACHINES.items())}
"""One of the machines whose products are computed alike: those of one where only attention differs are this one's."""
SERVING = [name for name, machine in MACHINES.items() if machine.products and name in PRODUCTS.values()]
SERVING_FEW_BITS = [name for name, machine in MACHINES.items() if machine.few_bits and name in PRODUCTS.values()]
"""Those where no tiles are needed: that they are is the self-test's to find out (`test_invariance`)."""


@pytest.fixture(autouse=True)
def inference() -> Iterator[None]:
    with torch.inference_mode():
        yield


@pytest.fixture(params=SERVING)
def machine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Run the test on each machine."""
    become(request.param, monkeypatch)
    return str(request.param)


def layer(outputs: int, inputs: int, *, bias: bool, few_bits: bool) -> tuple[Linear, torch.Tensor]:
    """A product and its weight. Where no kernel of this machine serves a weight of its shape, which a processor may add
    to the machine that it plays, each product is one of a tile's rows, as the self-test at start then decides."""
    torch.manual_seed(outputs)
    weight = torch.randn(outputs, inputs)
    tiling = best_tiling(weight)
    machine = tiling.kernels
    if all(least_rows(kernel, weight) is None for kernel in (machine.onednn, machine.transposed)):
        tiling.row_multiple = tiling.row_tile = ROW_MULTIPLE
    return Linear(weight, torch.randn(outputs) if bias else None, tiling, few_bits=few_bits), weight


def multiplied(product: Linear, x: torch.Tensor, plus: torch.Tensor | None = None) -> torch.Tensor:
    """The product, with as many rows as it needs where it is cut into tiles."""
    if product.tiling.row_tile is None:
        return product(x, plus)
    padding = -len(x) % product.tiling.row_tile
    more = None if plus is None else torch.cat([plus, plus.new_zeros(padding, plus.shape[1])])
    return product(torch.cat([x, x.new_zeros(padding, x.shape[1])]), more)[: len(x)]


def check(product: Linear, rows: int, counts: list[int]) -> torch.Tensor:
    """Whether each row is the same in each of these counts, at either end; the product of all."""
    x, plus = torch.randn(rows, product.inputs), torch.randn(rows, product.elements // product.inputs)
    whole, more = multiplied(product, x), multiplied(product, x, plus)
    assert (more - whole - plus).abs().max() < 1e-4
    for count in counts:
        for at in (0, rows - count):
            part = slice(at, at + count)
            assert torch.equal(multiplied(product, x[part]), whole[part])
            assert torch.equal(multiplied(product, x[part], plus[part]), more[part])
    return x


@pytest.mark.parametrize(
    ("machine", "few_bits"),
    [(name, False) for name in SERVING] + [(name, True) for name in SERVING_FEW_BITS],
    indirect=["machine"],
)
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize(("outputs", "inputs"), only_fast(*SHAPES[:3], SHAPES[4], of=SHAPES))
@pytest.mark.usefixtures("machine")
def test_at_every_count_and_place(outputs: int, inputs: int, bias: bool, few_bits: bool):
    product, weight = layer(outputs, inputs, bias=bias, few_bits=few_bits)
    # Also those that no step has: a product does not lean on being padded.
    x = check(product, 1100, [*range(1, 9), *product.tiling.counts(1100)])
    exact = x.double() @ weight.double().t()
    if bias:
        torch.manual_seed(outputs)
        torch.randn(outputs, inputs)
        exact += torch.randn(outputs).double()
    assert (product(x) - exact).abs().max() < 1e-2 * weight.shape[1] ** 0.5


@pytest.mark.slow
@pytest.mark.usefixtures("machine")
@pytest.mark.parametrize(("outputs", "inputs"), [(1024, 512), (300, 4864), (900, 5000)])
def test_a_large_weight_at_few_rows_and_many(outputs: int, inputs: int):
    """Of many inputs the library adds up pieces beside each other for a single row, on some machines."""
    check(layer(outputs, inputs, bias=False, few_bits=False)[0], 128, [1, 2, 3, 4, 8, 64])


@pytest.mark.slow
@pytest.mark.parametrize("machine", SERVING_FEW_BITS, indirect=True)
@pytest.mark.usefixtures("machine")
@pytest.mark.parametrize(("outputs", "inputs"), [(64, 32), (384, 4864)])
def test_a_weight_that_is_kept_in_few_bits_has_the_bits_of_one_that_is_decoded(outputs: int, inputs: int):
    """At every count of rows, and beside any."""
    torch.manual_seed(outputs)
    packed = encoded(torch.randn(outputs, inputs), "mxfp4")
    like = torch.empty(0)
    kept = PackedLinear([packed], None, best_tiling(like), like)
    plain = Linear(decoded(packed), None, best_tiling(like), few_bits=True)
    x = check(kept, 64, [1, 2, 3, 5, 8, 40])
    for rows in (1, 2, 5, 64):
        assert torch.equal(kept(x[:rows]), plain(x[:rows]))


@pytest.mark.usefixtures("machine")
def test_rows_that_are_padded_once_for_all_products_keep_their_bits():
    """Where most elements of a model need more rows than one, its steps have them; the others pad for themselves."""
    small, large = torch.randn(64, 32), torch.randn(1024, 512)
    tiling = best_tiling(small)
    products = [Linear(weight, None, tiling) for weight in (small, large)]
    for product in products:
        x = torch.randn(9, product.inputs)
        whole = product(x)
        for rows in (1, 2, 3, 9):
            padded = x[[*range(rows), *[0] * tiling.padding(rows)]]
            assert torch.equal(product(padded)[:rows], whole[:rows])
            assert torch.equal(product(x[:rows]), whole[:rows])


@pytest.mark.parametrize("rows", [0, 1, 2, 3, 4, 7, 8, 40, 511])
@pytest.mark.parametrize("operation", ["onednn", "transposed"])
def test_a_trial_says_from_how_many_rows_on_a_kernel_keeps_bits(operation: str, rows: int):
    """Whatever this machine's own kernel needs."""
    own: MatmulKernel = getattr(matmul_kernels.NATIVE, operation)
    weight = torch.empty(96, 64)

    def perturbed(
        x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, plus: torch.Tensor | None
    ) -> torch.Tensor:
        y = own.multiply(x, weight, bias, plus)
        return y * (1 + 1e-6) if len(x) <= rows else y

    needed, found = least_rows(own, weight), least_rows(MatmulKernel(perturbed, own.arranged), weight)
    if needed is None or rows >= 8:
        assert found is None
    else:
        assert found == max(needed, {0: 1, 1: 2, 2: 4, 3: 4, 4: 8, 7: 8}[rows])
