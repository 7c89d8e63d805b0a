"""The other kernels against float64, and linears of few rows against those of many."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch.nn.functional import gelu, layer_norm, silu
from torch.nn.functional import rms_norm as rms_norm_of

from engine.execution.cuda.linears import ExactLinear
from engine.kernels.linear import LinearTile, fp8_tile_for, linear, shared_memory, tile_for
from engine.kernels.paged_kv import PagedKv
from engine.kernels.rows import cap_logits, rms_norm, rotate_and_append, silu_mul
from engine.layers.linear import Linear
from tests.gpu.execution.fused_bench import plain_tiling
from tests.gpu.kernels.interpreter import DEVICE

DTYPES = [torch.float32, torch.float16, pytest.param(torch.bfloat16, marks=pytest.mark.gpu)]
TOLERANCE = {torch.float32: 2e-6, torch.float16: 1e-3, torch.bfloat16: 4e-3}


def assert_near(got: torch.Tensor, expected: torch.Tensor) -> None:
    assert float((got.double() - expected).norm() / expected.norm()) < TOLERANCE[got.dtype]


def random(*shape: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.randn(*shape, device=DEVICE).to(dtype)


@pytest.mark.parametrize("swapped", [True, False])
@pytest.mark.parametrize("dtype", DTYPES)
def test_linear(dtype: torch.dtype, swapped: bool) -> None:
    torch.manual_seed(0)
    tile = LinearTile(64, 16, 64, 4, 2, swapped=swapped)
    weight, bias = random(200, 128, dtype=dtype), random(200, dtype=dtype)
    for rows in (1, 15, 17, 33):
        x, plus = random(rows, 128, dtype=dtype), random(rows, 200, dtype=dtype)
        out = torch.full_like(plus, torch.nan)
        linear(x, weight, out, plus=plus, bias=bias, tile=tile)
        assert_near(out, x.double() @ weight.double().t() + bias.double() + plus.double())


def test_inputs_that_no_tile_divides_are_refused() -> None:
    with pytest.raises(ValueError, match="multiple of 64"):
        linear(torch.ones(1, 100), torch.ones(8, 100), tile=LinearTile(64, 16, 64, 4, 2))


@pytest.mark.parametrize(("name", "shared"), [("H200", 227 << 10), ("A100", 163 << 10), ("L4", 99 << 10)])
def test_tiles_take_no_more_memory_than_the_device_has(name: str, shared: int) -> None:
    """And where there is room, as many stages as are the quickest."""
    for rows in (1, 16, 17, 33, 64, 65, 384, 385, 8_192):
        for outputs in (2_048, 6_144, 28_672, 128_256):
            for itemsize in (2, 4):
                quickest = tile_for(rows, outputs, 4_096, itemsize)
                tile = quickest.within(shared, itemsize)
                stage = (tile.outputs + tile.rows) * tile.inputs * itemsize
                assert 2 * stage <= tile.stages * stage <= shared
                assert tile == replace(quickest, stages=tile.stages)
                if name == "H200":
                    assert tile == quickest
        assert fp8_tile_for(rows).within(shared, 1) == fp8_tile_for(rows)


@pytest.mark.gpu
def test_the_number_of_stages_changes_no_bits() -> None:
    """As on a device with less shared memory than this one."""
    torch.manual_seed(5)
    device = torch.device("cuda")
    assert 48 << 10 < shared_memory(device) <= 1 << 20
    for outputs, inputs in ((4_096, 4_096), (28_672, 4_096), (128_256, 2_048)):
        weight = random(outputs, inputs, dtype=torch.bfloat16) * 0.02
        for rows in (1, 16, 33, 65, 385):
            x, tile = random(rows, inputs, dtype=torch.bfloat16), tile_for(rows, outputs, inputs)
            less = tile.within(99 << 10, 2)
            assert torch.equal(linear(x, weight, tile=less), linear(x, weight, tile=tile))


@pytest.mark.gpu
@pytest.mark.parametrize(("outputs", "inputs"), [(6_144, 4_096), (4_096, 4_096), (4_096, 14_336), (28_672, 4_096)])
def test_a_row_has_the_bits_of_the_library_at_many_rows(outputs: int, inputs: int) -> None:
    torch.manual_seed(1)
    weight, x = random(outputs, inputs, dtype=torch.bfloat16) * 0.02, random(2_048, inputs, dtype=torch.bfloat16)
    library = x @ weight.t()
    for rows in (1, 2, 7, 16, 17, 32, 33, 64):
        for first in (0, 1_000):
            part = slice(first, first + rows)
            assert torch.equal(linear(x[part], weight, tile=tile_for(rows, outputs, inputs)), library[part])


def test_the_library_multiplies_as_many_rows_as_it_has_the_bits_of(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(8)
    product = ExactLinear(Linear(random(48, 32, dtype=torch.float32), None, plain_tiling()))
    product.library = frozenset({96, 400, 512})
    counts: list[int] = []
    by_library = ExactLinear._by_library

    def counted(self: ExactLinear, x: torch.Tensor, *given: Any) -> torch.Tensor:
        counts.append(len(x))
        return by_library(self, x, *given)

    monkeypatch.setattr(ExactLinear, "_by_library", counted)
    for rows, expected in ((96, [96]), (97, []), (400, [400]), (410, [400]), (912, [512, 400]), (1_030, [512, 512])):
        x, out = random(rows, 32, dtype=torch.float32), torch.full((rows, 48), torch.nan, device=DEVICE)
        assert product(x, out=out) is out
        assert_near(out, x.double() @ product.weight.double().t())
        assert counts == expected
        counts.clear()


@pytest.mark.parametrize("dtype", DTYPES)
def test_norm_and_activation(dtype: torch.dtype) -> None:
    torch.manual_seed(2)
    x, plus, weight = random(5, 96, dtype=dtype), random(5, 96, dtype=dtype), random(96, dtype=dtype)
    out, total = torch.full_like(x, torch.nan), x.clone()
    rms_norm(total, weight, 1e-5, out, plus=plus)
    assert torch.equal(total, (x.float() + plus.float()).to(dtype))
    wide = total.double()
    assert_near(out, wide * (wide.pow(2).mean(-1, keepdim=True) + 1e-5).rsqrt() * weight.double())
    gate_up = random(5, 2 * 70, dtype=dtype)
    acted = torch.full((5, 70), torch.nan, device=DEVICE, dtype=dtype)
    silu_mul(gate_up, acted)
    gate, up = gate_up.double().chunk(2, -1)
    assert_near(acted, silu(gate) * up)


@pytest.mark.parametrize("dtype", DTYPES)
def test_what_is_added_is_normalized_and_multiplied_first(dtype: torch.dtype) -> None:
    """Each rounded to the model's type, as the models do; a norm of mean and variance, or none, of the sum."""
    torch.manual_seed(6)
    x, plus, weight, bias, behind = (random(*shape, dtype=dtype) for shape in ((5, 96), (5, 96), (96,), (96,), (96,)))
    out, total = torch.full_like(x, torch.nan), x.clone()
    rms_norm(total, weight, 1e-5, out, bias=bias, plus=plus, behind=(behind.float(), 1e-6), factor=0.3)
    part = rms_norm_of(plus.float(), plus.shape[1:], behind.float(), 1e-6).to(dtype)
    expected = x.double() + (part.double() * 0.3).to(dtype).double()
    assert_near(total, expected)
    assert_near(out, layer_norm(total.double(), total.shape[1:], weight.double(), bias.double(), 1e-5))
    again = total.clone()
    rms_norm(again, None, 0.0, out, plus=plus)
    assert torch.equal(out, again)
    assert torch.equal(again, (total.float() + plus.float()).to(dtype))


@pytest.mark.parametrize("dtype", DTYPES)
def test_gelu_gates_and_caps(dtype: torch.dtype) -> None:
    torch.manual_seed(7)
    gate_up = random(5, 2 * 70, dtype=dtype) * 2
    gate_up[0, :4] = torch.tensor([0.0, 60.0, -9.0, -1e-3])
    gate, up = gate_up.double().chunk(2, -1)
    acted = torch.full((5, 70), torch.nan, device=DEVICE, dtype=dtype)
    silu_mul(gate_up, acted, gelu=True)
    assert_near(acted, gelu(gate, approximate="tanh") * up)
    alone = torch.full_like(gate_up, torch.nan)
    for is_gelu, function in ((True, lambda x: gelu(x, approximate="tanh")), (False, silu)):
        silu_mul(gate_up, alone, gelu=is_gelu)
        assert_near(alone, function(gate_up.double()))
    for cap in (5.0, None):
        logits = random(3, 5_000, dtype=dtype) * 4
        expected = logits.double() / 2
        cap_logits(logits, cap, 2.0)
        assert_near(logits, expected if cap is None else cap * (expected / cap).tanh())


@pytest.mark.parametrize("norms", [False, True])
@pytest.mark.parametrize("turned", [32, 20])
def test_keys_are_turned_and_appended(turned: int, norms: bool) -> None:
    torch.manual_seed(3)
    heads, kv_heads, dim, dtype = 6, 2, 32, torch.float32
    kv = PagedKv(torch.zeros(9, 2, 2, kv_heads, 64, dim, device=DEVICE), 1)
    qkv = random(4, (heads + 2 * kv_heads) * dim, dtype=dtype)
    query = torch.full((4, heads, dim), torch.nan, device=DEVICE)
    positions = torch.tensor([0, 63, 130, -1], dtype=torch.int32, device=DEVICE)
    tables = torch.tensor([[1, 0, 0], [2, 0, 0], [3, 4, 5], [6, 7, 8]], dtype=torch.int32, device=DEVICE)
    rows = torch.arange(4, dtype=torch.int32, device=DEVICE)
    angles = torch.outer(torch.arange(200.0), 0.1 ** torch.arange(turned // 2)).to(DEVICE)
    cosines, sines = angles.cos(), angles.sin()
    weights = (random(dim, dtype=dtype), random(dim, dtype=dtype)) if norms else None
    rotate_and_append(qkv, query, kv, cosines, sines, positions, rows, tables, norms=weights, eps=1e-6)
    parts = qkv.double().view(4, -1, dim)[:3]

    def expected(part: torch.Tensor, norm: torch.Tensor | None) -> torch.Tensor:
        if norm is not None:
            part = part * (part.pow(2).mean(-1, keepdim=True) + 1e-6).rsqrt() * norm.double()
        first, second, rest = part.split([turned // 2, turned // 2, dim - turned], -1)
        c, s = (table[positions[:3].long()][:, None].double() for table in (cosines, sines))
        return torch.cat([first * c - second * s, second * c + first * s, rest], -1)

    assert_near(query[:3], expected(parts[:, :heads], weights and weights[0]))
    assert query[3].isnan().all()
    blocks, within = torch.tensor([1, 2, 5]), torch.tensor([0, 63, 2])
    held = kv.data[blocks, 1, :, :, within]
    assert_near(held[:, 0], expected(parts[:, heads : heads + kv_heads], weights and weights[1]))
    assert torch.equal(held[:, 1].double(), parts[:, heads + kv_heads :])
    # Nothing else was written, and nothing of the padding row.
    assert int((kv.data != 0).any(-1).sum()) == 3 * 2 * kv_heads
