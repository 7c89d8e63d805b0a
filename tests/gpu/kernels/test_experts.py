"""Routing to experts and grouped products, against what a loop over the experts computes, whatever the routing."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
import torch
from torch.nn.functional import silu

from engine.kernels.expert_routing import (
    Routes,
    Tiles,
    combine_and_norm,
    place_rows,
    route_rows,
    router_logits,
)
from engine.kernels.expert_scores import score_experts
from engine.kernels.grouped_linear import LEAST_HIGH, grouped_linear
from engine.kernels.linear import fp8_tile_for, linear, tile_for
from engine.kernels.rows import silu_mul
from engine.layers.moe import TopExperts, highest
from engine.model_config.fields import Fields
from engine.models.deepseek import GroupRouting, ScoredExperts
from tests.fast import only_fast, only_some
from tests.gpu.kernels.interpreter import DEVICE, INTERPRETED
from tests.gpu.kernels.test_linear_and_rows import DTYPES, TOLERANCE

EXPERTS, RANKS, HIDDEN, INNER = 6, 2, 32, 48
COUNTS = (1, 2, 15, 16, 17, 33, 65, 700)
ROWS = only_fast(*COUNTS[:6], of=COUNTS)


def route(
    logits: torch.Tensor, *, high: int = LEAST_HIGH, ranks: int = RANKS, normalize: bool = True, padding: int = 0
) -> Routes:
    rows, experts = logits.shape
    positions = torch.arange(rows, dtype=torch.int32, device=DEVICE)
    positions[rows - padding :] = -1
    ends = torch.full((experts,), -7, dtype=torch.int32, device=DEVICE)
    return route_rows(logits, positions, experts=experts, ranks=ranks, normalize=normalize, high=high, ends=ends)


def random_logits(rows: int, experts: int = EXPERTS) -> torch.Tensor:
    return torch.randn(rows, experts, generator=torch.Generator().manual_seed(rows)).to(DEVICE)


def forced(rows: int, experts: int = EXPERTS) -> torch.Tensor:
    """All rows choose expert 3 first, then expert 1, and expert 0 none at all."""
    logits = random_logits(rows, experts)
    logits[:, 0], logits[:, 3], logits[:, 1] = -50.0, 50.0, 40.0
    return logits


def assert_plan_holds(routes: Routes, chosen: torch.Tensor, experts: int) -> None:
    """Places are the pairs in order of their experts, then of their rows; each lies in one tile of its expert."""
    expected = torch.empty_like(chosen.flatten())
    expected[chosen.flatten().argsort(stable=True)] = torch.arange(chosen.numel())
    tiles = routes.tiles
    words = tiles.words.cpu()[4:].view(-1, 4)[: int(tiles.words[0])].tolist()
    assert len(words) <= tiles.most
    if len(chosen) == 1:
        assert routes.places.tolist() == [list(range(chosen.shape[1]))]
        assert words == [[expert, 0, 1, rank] for rank, expert in enumerate(chosen[0].tolist())]
        return
    assert routes.places.cpu().flatten().tolist() == expected.tolist()
    assert tiles.ends is not None
    assert tiles.ends.tolist() == chosen.flatten().bincount(minlength=experts).cumsum(0).tolist()
    covered = [(expert, place) for expert, first, count, begin in words for place in range(begin, begin + count)]
    assert all(first == begin and 0 < count <= tiles.high for _, first, count, begin in words)
    assert covered == list(zip(sorted(chosen.flatten().tolist()), range(chosen.numel()), strict=True))


@pytest.mark.parametrize("dtype", DTYPES)
def test_router_logits_are_in_fp32_and_do_not_depend_on_other_rows(dtype: torch.dtype) -> None:
    for inputs in (32, 128, 320):
        chance = torch.Generator().manual_seed(inputs)
        x, weight = (torch.randn(size, inputs, generator=chance).to(DEVICE, dtype) for size in (37, 16))
        bias = torch.randn(16, generator=chance).to(DEVICE, dtype)
        logits = router_logits(x, weight, bias)
        assert logits.dtype == torch.float32
        expected = x.double() @ weight.double().t() + bias.double()
        torch.testing.assert_close(logits.double(), expected, rtol=1e-4, atol=1e-4)
        for first, count in () if INTERPRETED else ((0, 1), (36, 1), (5, 17)):
            assert torch.equal(router_logits(x[first : first + count], weight, bias), logits[first : first + count])


@pytest.mark.parametrize(
    ("rows", "normalize"),
    only_some((1, False), (2, True), (16, False), (17, True), of=itertools.product(COUNTS, [False, True]), every=3),
)
def test_rows_choose_as_the_router_of_the_layer_does(rows: int, normalize: bool) -> None:
    for logits in (random_logits(rows), forced(rows), torch.zeros(rows, EXPERTS, device=DEVICE)):
        for high in (8, 64):
            routes = route(logits, high=high, normalize=normalize)
            chosen, weights = TopExperts(RANKS, normalize)(logits.cpu())
            torch.testing.assert_close(routes.weights.cpu(), weights, rtol=2e-6, atol=1e-7)
            assert_plan_holds(routes, chosen, EXPERTS)


def groups(count: int, kept: int, best: int) -> GroupRouting:
    fields = Fields(Path("config.json"), {"n_group": count, "topk_group": kept})
    return GroupRouting(fields, 12, best)


BIAS = torch.linspace(-0.3, 0.3, 12)
ROUTERS = [
    ScoredExperts(3, 1.0),
    ScoredExperts(3, 0.5, groups=groups(4, 2, 1)),
    ScoredExperts(3, 2.5, sigmoid=True, normalize=True, groups=groups(1, 1, 2), bias=BIAS),
    ScoredExperts(4, 2.5, sigmoid=True, normalize=True, groups=groups(3, 2, 2), bias=BIAS),
]


@pytest.mark.parametrize("shared", [0, 2])
@pytest.mark.parametrize("router", ROUTERS)
def test_experts_are_chosen_by_their_scores_and_shared_ones_by_all_rows(router: ScoredExperts, shared: int) -> None:
    for rows in (1, 9):
        logits = torch.nn.functional.pad(random_logits(rows, 12), (0, 4), value=torch.nan)
        keys, scores = score_experts(
            logits, experts=12, sigmoid=router.sigmoid, bias=None if router.bias is None else router.bias.to(DEVICE),
            groups=(1, 1, 1) if router.groups is None else router.groups.numbers,
        )  # fmt: skip
        ends = torch.zeros(12 + shared, dtype=torch.int32, device=DEVICE)
        routes = route_rows(
            keys, torch.arange(rows, dtype=torch.int32, device=DEVICE), experts=12, ranks=router.ranks,
            normalize=router.normalize, high=8, ends=ends, scores=scores, scale=router.scale, shared=shared,
        )  # fmt: skip
        chosen, weights = router(logits[:, :12].cpu())
        beside = torch.arange(12, 12 + shared).expand(rows, -1)
        expected = torch.cat([weights, torch.ones(rows, shared)], 1)
        torch.testing.assert_close(routes.weights.cpu(), expected, rtol=2e-6, atol=1e-7)
        assert_plan_holds(routes, torch.cat([chosen, beside], 1), 12 + shared)


def chosen_by(routes: Routes) -> list[list[int]]:
    """The experts of each row, by rank."""
    assert routes.tiles.ends is not None
    return torch.searchsorted(routes.tiles.ends, routes.places, right=True).tolist()


@pytest.mark.filterwarnings("ignore:invalid value encountered")
def test_among_equals_the_first_is_chosen() -> None:
    logits = torch.tensor([[1.0, 2.0, -0.0, 2.0, 0.0, 2.0], [-torch.inf] * 6, [3.0, -1.0, 0.0, -0.0, -2.0, 1e-30]])
    routes = route(logits.to(DEVICE), ranks=5)
    assert chosen_by(routes) == [[1, 3, 5, 0, 2], [0, 1, 2, 3, 4], [0, 5, 2, 3, 1]]
    assert routes.weights[1].isnan().all()


@pytest.mark.filterwarnings("ignore:invalid value encountered")
def test_nan_is_chosen_last_and_stays_in_its_row() -> None:
    logits = random_logits(3)
    logits[1, 2], logits[2] = torch.nan, torch.nan
    routes = route(logits)
    alone = route(logits[:1].contiguous())
    assert torch.equal(routes.weights[0], alone.weights[0])
    assert routes.weights[1].isfinite().all()
    assert 2 not in chosen_by(routes)[1]
    assert routes.weights[2].isnan().all()
    assert chosen_by(routes)[2] == [0, 1]


@pytest.mark.parametrize("rows", [1, 5])
def test_padding_chooses_nothing(rows: int) -> None:
    logits = random_logits(rows)
    routes = route(logits, padding=rows)
    assert int(routes.tiles.words[0]) == 0
    assert (routes.places == -1).all()
    assert (routes.weights == 0).all()
    if rows > 1:
        routes, short = route(logits, padding=2), route(logits[:-2].contiguous())
        assert torch.equal(routes.places[:-2], short.places)
        assert torch.equal(routes.tiles.ends, short.tiles.ends)  # type: ignore[arg-type]


class Layer:
    """A small mixture, computed by our kernels."""

    def __init__(self, dtype: torch.dtype, experts: int, hidden: int, inner: int, *, bias: bool = False) -> None:
        chance = torch.Generator().manual_seed(3)

        def random(*shape: int) -> torch.Tensor:
            return (torch.randn(*shape, generator=chance) * 0.2).to(DEVICE, dtype)

        self.gate_up, self.down = random(experts, 2 * inner, hidden), random(experts, hidden, inner)
        self.biases = (random(experts, 2 * inner), random(experts, hidden)) if bias else (None, None)
        self.norm = random(hidden) + 1

    def __call__(self, x: torch.Tensor, routes: Routes) -> tuple[torch.Tensor, torch.Tensor]:
        """x + the mixture of x, and its norm."""
        rows, ranks = routes.places.shape
        placed = x.new_full((rows * ranks, x.shape[1]), torch.nan)
        if rows == 1:
            placed = x
        else:
            place_rows(x, routes.places, placed)
        gate_up = x.new_full((rows * ranks, self.gate_up.shape[1]), torch.nan)
        grouped_linear(placed, self.gate_up, gate_up, routes.tiles, bias=self.biases[0])
        acted = x.new_empty(rows * ranks, self.down.shape[2])
        silu_mul(gate_up, acted)
        results = x.new_full((rows * ranks, x.shape[1]), torch.nan)
        grouped_linear(acted, self.down, results, routes.tiles, placed=True, bias=self.biases[1])
        total, out = x.clone(), torch.full_like(x, torch.nan)
        combine_and_norm(total, results, routes, self.norm, 1e-5, out)
        return total, out

    def in_float64(self, x: torch.Tensor, chosen: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        """x + the mixture of x."""
        total = x.double().clone()
        for row in range(len(x)):
            for expert, weight in zip(chosen[row].tolist(), weights[row].tolist(), strict=True):
                both = self.gate_up[expert].double() @ x[row].double()
                if self.biases[0] is not None:
                    both = both + self.biases[0][expert].double()
                gate, up = both.chunk(2)
                result = self.down[expert].double() @ (silu(gate) * up)
                if self.biases[1] is not None:
                    result = result + self.biases[1][expert].double()
                total[row] += weight * result
        return total


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_mixture_is_the_sum_of_its_experts(dtype: torch.dtype, bias: bool) -> None:
    layer = Layer(dtype, EXPERTS, HIDDEN, INNER, bias=bias)
    for rows in (1, 5, 19):
        x = (torch.randn(rows, HIDDEN, generator=torch.Generator().manual_seed(rows))).to(DEVICE, dtype)
        for logits in (random_logits(rows), forced(rows)):
            total, out = layer(x, route(logits, padding=1 if rows == 5 else 0))
            chosen, weights = TopExperts(RANKS, normalize=True)(logits.cpu())
            expected = layer.in_float64(x, chosen, weights)
            if rows == 5:
                assert torch.equal(total[-1], x[-1])
                expected[-1] = x[-1].double()
            # Rounded twice more on the way.
            assert float((total.double() - expected).norm() / expected.norm()) < 2 * TOLERANCE[dtype]
            wide = total.double()
            normal = wide * (wide.pow(2).mean(-1, keepdim=True) + 1e-5).rsqrt() * layer.norm.double()
            assert float((out.double() - normal).norm() / normal.norm()) < TOLERANCE[dtype]


@pytest.mark.filterwarnings("ignore:invalid value encountered")
def test_a_row_of_nan_stays_alone() -> None:
    """Although it chooses the experts of others, and lies beside them in a tile."""
    layer = Layer(torch.float32, EXPERTS, HIDDEN, INNER)
    x = torch.randn(9, HIDDEN, generator=torch.Generator().manual_seed(4)).to(DEVICE)
    logits = torch.zeros(9, EXPERTS, device=DEVICE)
    expected, _ = layer(x, route(logits))
    x[3], logits[3] = torch.nan, torch.nan
    total, out = layer(x, route(logits))
    others = torch.arange(9, device=DEVICE) != 3
    assert torch.equal(total[others], expected[others])
    assert total[3].isnan().all()
    assert out[others].isfinite().all()


def test_a_clamped_activation_is_that_of_the_layer() -> None:
    gate_up = torch.randn(5, 96, generator=torch.Generator().manual_seed(1)).to(DEVICE) * 6
    gate_up[1, 4] = torch.nan
    out = torch.empty(5, 48, device=DEVICE)
    silu_mul(gate_up, out, clamped=(1.702, 7.0))
    gate, up = gate_up.double().chunk(2, -1)
    gate, up = gate.clamp(max=7.0), up.clamp(-7.0, 7.0)
    expected = (up + 1) * gate * torch.sigmoid(1.702 * gate)
    assert bool(out[1, 4].isnan())
    torch.testing.assert_close(out.double(), expected, rtol=1e-5, atol=1e-5, equal_nan=True)


SHAPES = [(8, 1_536, 2_048, 4), (128, 192, 768, 8), (32, 1_000, 2_880, 4), (4, 512, 4_096, 2)]


def weights_of(experts: int, outputs: int, inputs: int) -> torch.Tensor:
    return torch.randn(experts, outputs, inputs, device=DEVICE, dtype=torch.bfloat16) * 0.02


@pytest.fixture
def hopper() -> None:
    if torch.cuda.get_device_capability()[0] != 9:
        pytest.skip("for Hopper")


@pytest.mark.gpu
@pytest.mark.parametrize(("experts", "outputs", "inputs", "ranks"), SHAPES)
def test_a_row_has_the_bits_of_its_expert_alone(
    hopper: None, experts: int, outputs: int, inputs: int, ranks: int
) -> None:
    """By both kernels, at every height of a tile, and by the library: those of `linear` with 2,048 rows."""
    from engine.kernels.grouped_linear_hopper import fits_gated, grouped_linear_streamed

    torch.manual_seed(9)
    weight = weights_of(experts, outputs, inputs)
    for rows in (1, 2, 7, 15, 16, 17, 32, 63, 64, 65, 512):
        for logits in (random_logits(rows, experts), forced(rows, experts)):
            rows_of = highest(logits, ranks)
            x = torch.randn(rows, inputs, device=DEVICE, dtype=torch.bfloat16)
            whole = torch.cat([x, torch.randn(2_048 - rows, inputs, device=DEVICE, dtype=torch.bfloat16)])
            expected = torch.full((rows, ranks, outputs), torch.nan, device=DEVICE, dtype=torch.bfloat16)
            for expert in rows_of.unique().tolist():
                chose = rows_of == expert
                alone = linear(whole, weight[expert], tile=tile_for(2_048, outputs, inputs))[:rows]
                expected[chose] = alone[chose.any(-1)]
            activated = x.new_empty(rows * ranks, outputs // 2)
            silu_mul(expected.flatten(0, 1), activated)
            ways: dict[str, torch.Tensor] = {}
            for high in (8, 16, 32, 64, 128):
                routes = route(logits, high=high, ranks=ranks)
                placed = x if rows == 1 else x.new_full((rows * ranks, inputs), torch.nan)
                if rows > 1:
                    place_rows(x, routes.places, placed)
                if high >= LEAST_HIGH:
                    ways[f"plain {high}"] = out = x.new_full((rows * ranks, outputs), torch.nan)
                    grouped_linear(placed, weight, out, routes.tiles)
                if high <= 64:
                    for early in (False, True):
                        ways[f"hopper {high} {early}"] = out = x.new_full((rows * ranks, outputs), torch.nan)
                        grouped_linear_streamed(placed, weight, out, routes.tiles, early=early)
                    if fits_gated(weight):
                        out = x.new_full((rows * ranks, outputs // 2), torch.nan)
                        grouped_linear_streamed(placed, weight, out, routes.tiles, early=early, gated=True)
                        assert torch.equal(out[routes.places.flatten().long()], activated), (rows, high)
                if LEAST_HIGH <= high <= 64:
                    bias = torch.randn(experts, outputs, device=DEVICE, dtype=torch.bfloat16)
                    both = [x.new_full((rows * ranks, outputs), torch.nan) for _ in range(2)]
                    grouped_linear(placed, weight, both[0], routes.tiles, bias=bias)
                    grouped_linear_streamed(placed, weight, both[1], routes.tiles, bias=bias)
                    assert torch.equal(*both), (rows, high)
                if rows > 1 and outputs % 8 == 0:
                    ways["library"] = torch._grouped_mm(placed, weight.transpose(1, 2), offs=routes.tiles.ends)
            for name, out in ways.items():
                assert torch.equal(out[routes.places.long()], expected), (rows, name)


@pytest.mark.gpu
@pytest.mark.parametrize(("experts", "outputs", "inputs", "ranks"), [SHAPES[0], SHAPES[1]])
def test_a_row_in_e4m3_has_the_bits_of_its_expert_alone(
    hopper: None, experts: int, outputs: int, inputs: int, ranks: int
) -> None:
    from engine.kernels.grouped_linear_hopper import grouped_linear_streamed

    torch.manual_seed(10)
    weight = (weights_of(experts, outputs, inputs) * 2_000).to(torch.float8_e4m3fn)
    output_scales = torch.rand(experts, outputs, device=DEVICE) + 0.5
    for rows in (2, 17, 64, 300):
        logits = random_logits(rows, experts)
        rows_of = highest(logits, ranks)
        x = torch.randn(rows, inputs, device=DEVICE, dtype=torch.bfloat16)
        for high in (8, 16, 32, 64):
            routes = route(logits, high=high, ranks=ranks)
            placed = torch.zeros(rows * ranks, inputs, device=DEVICE, dtype=torch.uint8).view(torch.float8_e4m3fn)
            scales = torch.zeros(rows * ranks, device=DEVICE)
            place_rows(x, routes.places, placed, scales)
            out = x.new_full((rows * ranks, outputs), torch.nan)
            grouped_linear_streamed(placed, weight, out, routes.tiles, scales=(scales, output_scales), early=True)
            other = torch.full_like(out, torch.nan)
            if high >= LEAST_HIGH:
                grouped_linear(placed, weight, other, routes.tiles, scales=(scales, output_scales))
                assert torch.equal(out, other)
            for expert in rows_of.unique().tolist()[:6]:
                places = routes.places[(rows_of == expert)].long()
                alone = x.new_empty(len(places), outputs)
                linear(
                    placed.view(torch.uint8)[places].view(torch.float8_e4m3fn), weight[expert], alone,
                    tile=fp8_tile_for(len(places)), scales=(scales[places], output_scales[expert]),
                )  # fmt: skip
                assert torch.equal(out[places], alone), (rows, high)


@pytest.mark.gpu
def test_a_graph_is_replayed_after_the_routing_changed(hopper: None) -> None:
    """And weights that were fetched before the inputs were there are those of the new tiles, over and over."""
    from engine.kernels.grouped_linear_hopper import grouped_linear_streamed

    torch.manual_seed(11)
    experts, outputs, inputs, ranks, rows = 128, 512, 2_048, 8, 16
    weight = weights_of(experts, outputs, inputs)
    logits, x = random_logits(rows, experts), torch.randn(rows, inputs, device=DEVICE, dtype=torch.bfloat16)
    out = x.new_full((rows * ranks, outputs), torch.nan)

    def compute(tiles_alone: bool) -> tuple[Routes, torch.Tensor]:
        routes = route(logits, high=16, ranks=ranks)
        placed = x.new_empty(rows * ranks, inputs)
        place_rows(x, routes.places, placed)
        if tiles_alone:
            plain = torch.empty_like(out)
            grouped_linear(placed, weight, plain, Tiles(routes.tiles.words, 16, routes.tiles.most))
            return routes, plain
        grouped_linear_streamed(placed, weight, out, routes.tiles, early=True)
        return routes, out

    compute(False)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        compute(False)
    for seed in range(40):
        logits.copy_(random_logits(rows + 100 + seed, experts)[:rows])
        graph.replay()
        got = out.clone()
        _, expected = compute(True)
        assert torch.equal(got, expected), seed
