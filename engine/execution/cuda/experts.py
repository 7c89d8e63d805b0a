"""A mixture of experts by our kernels: the router, the products of all experts at once, and their sum.

Few rows of each expert are multiplied by our own kernels, at the speed of memory: by the one for Hopper where it was
seen to give the bits of the other. Many rows are multiplied by the library's grouped product, where that was.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import torch

from engine.execution.cuda.linears import fp8_weight
from engine.execution.cuda.stacked_experts import columns_of, narrowed, repeats_of, sides_of, stacked_weights, unlike
from engine.kernels import grouped_linear as plain
from engine.kernels.expert_routing import Routes, Tiles, place_rows, route_rows, router_logits
from engine.kernels.expert_scores import score_experts
from engine.kernels.grouped_linear import grouped_linear
from engine.kernels.rows import quantize_rows, silu_mul
from engine.layers.activation import silu_times
from engine.layers.feed_forward import FeedForward
from engine.layers.linear import Linear
from engine.layers.moe import Expert, MixtureOfExperts, TopExperts
from engine.models.deepseek import ScoredExperts
from engine.models.gpt_oss import GptOssExpert

try:
    from engine.kernels import grouped_linear_hopper as hopper
except ImportError:  # Gluon is an experimental part of Triton
    hopper = None  # type: ignore[assignment]

_HOPPER = 9
_LIBRARY_ROWS = 128
"""From so many rows of each expert on, on average, the library is the quicker one."""
_TRIED = (1, 2, 17, 65, 300)
"""Tokens with which the kernel for Hopper is tried."""
_HEIGHTS = (8, 16, 32, 64)
"""Rows of a tile with which it is tried."""
_MOST_EXPERTS = 1_024


@dataclass(frozen=True)
class Mixed:
    """The results [pairs, hidden] of the experts of rows, at their places, to be added up."""

    results: torch.Tensor
    routes: Routes


@dataclass(frozen=True)
class Ways:
    """Which ways have the bits of the plain kernel: the library, the kernel for Hopper, and that one with the
    activation."""

    library: bool = False
    streamed: bool = False
    gated: bool = False

    def __str__(self) -> str:
        return " ".join(name for name in ("library", "streamed", "gated") if getattr(self, name)) or "plain"


class GroupedLinear:
    """y = x Wᵀ + b, where each row has its expert's W of `weight` [experts, outputs, inputs] and b of `bias`.

    `placed`: its inputs lie at their places. `scales` fp32 [experts, outputs]: those of a weight in e4m3, whose inputs
    are e4m3 with scales as well. `dtype`: of the outputs.
    """

    def __init__(
        self,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        scales: torch.Tensor | None = None,
        dtype: torch.dtype | None = None,
        *,
        placed: bool,
    ) -> None:
        self.weight = weight
        self.bias = bias
        self.placed = placed
        self.scales = scales
        self.dtype = weight.dtype if dtype is None else dtype
        self.experts, self.outputs, self.inputs = weight.shape
        self.ways = Ways()

    @property
    def in_fp8(self) -> bool:
        """Whether both its weight and its inputs are e4m3."""
        return self.scales is not None

    @property
    def shape(self) -> tuple[object, ...]:
        """Products of the same shape are computed in the same way."""
        return self.experts, self.outputs, self.inputs, self.bias is not None, self.placed

    def __call__(
        self, x: torch.Tensor, scales: torch.Tensor | None, pairs: int, tiles: Tiles, *, early: bool = False
    ) -> torch.Tensor:
        """x → [pairs, outputs], at their places. `scales`: those of the rows of x, in e4m3. `early`: see
        `grouped_linear_hopper`."""
        if self._for_library(pairs, tiles):
            return self.by_library(x, scales, tiles)
        if self.ways.streamed and tiles.high <= hopper.MOST_HIGH:
            return self.by_stream(x, scales, pairs, tiles, early=early)
        return self.by_kernel(x, scales, pairs, tiles)

    def gates(self, pairs: int, tiles: Tiles) -> bool:
        """Whether it had better compute the activation as well (`by_stream`)."""
        return self.ways.gated and tiles.high <= hopper.MOST_HIGH and not self._for_library(pairs, tiles)

    def _for_library(self, pairs: int, tiles: Tiles) -> bool:
        return self.ways.library and tiles.ends is not None and pairs >= _LIBRARY_ROWS * self.experts

    def by_kernel(self, x: torch.Tensor, scales: torch.Tensor | None, pairs: int, tiles: Tiles) -> torch.Tensor:
        """By the kernel whose bits are those of the others."""
        out = torch.empty(pairs, self.outputs, dtype=self.dtype, device=x.device)
        grouped_linear(x, self.weight, out, tiles, placed=self.placed, bias=self.bias, scales=self._both(scales))
        return out

    def by_stream(
        self,
        x: torch.Tensor,
        scales: torch.Tensor | None,
        pairs: int,
        tiles: Tiles,
        *,
        early: bool = False,
        gated: bool = False,
    ) -> torch.Tensor:
        """By the kernel for Hopper; `gated`: silu(gate) · up of the product."""
        outputs = self.outputs // 2 if gated else self.outputs
        out = torch.empty(pairs, outputs, dtype=self.dtype, device=x.device)
        hopper.grouped_linear_streamed(
            x,
            self.weight,
            out,
            tiles,
            placed=self.placed,
            bias=self.bias,
            scales=self._both(scales),
            early=early,
            gated=gated,
        )
        return out

    def by_library(self, x: torch.Tensor, scales: torch.Tensor | None, tiles: Tiles) -> torch.Tensor:
        """By the library, for inputs at their places."""
        weight = self.weight.transpose(1, 2)
        if scales is None or self.scales is None:
            return torch._grouped_mm(x, weight, offs=tiles.ends)
        return torch._scaled_grouped_mm(
            x, weight, scales, self.scales, offs=tiles.ends, out_dtype=self.dtype, use_fast_accum=False
        )

    def _both(self, scales: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor] | None:
        return None if scales is None or self.scales is None else (scales, self.scales)

    def try_ways(self) -> Ways:
        """Which ways give the bits of the plain kernel on this machine."""
        device = self.weight.device
        on_hopper = device.type == "cuda" and torch.cuda.get_device_capability(device)[0] == _HOPPER
        library = on_hopper and self.dtype == torch.bfloat16 and self.bias is None and self.inputs % 16 == 0
        streamed = on_hopper and hopper is not None and hopper.fits(self.weight)
        gated = streamed and not self.placed and self.bias is None and hopper.fits_gated(self.weight)
        counts = [*_TRIED, _LIBRARY_ROWS * self.experts // 4] if library else _TRIED
        for rows in counts if library or streamed else ():
            x, scales, tiles = self._trial(rows)
            pairs = len(x)
            expected = self.by_kernel(x, scales, pairs, tiles[plain.LEAST_HIGH])
            acted = expected.new_empty(pairs, self.outputs // 2)
            if gated:
                silu_mul(expected, acted)
            for height in _HEIGHTS if streamed else ():
                streamed = streamed and torch.equal(self.by_stream(x, scales, pairs, tiles[height]), expected)
                gated = gated and torch.equal(self.by_stream(x, scales, pairs, tiles[height], gated=True), acted)
            if library and rows > 1:
                try:
                    library = torch.equal(self.by_library(x, scales, tiles[plain.LEAST_HIGH]), expected)
                except RuntimeError:  # a kind of product that this version of it does not have
                    library = False
        return Ways(library, streamed, streamed and gated)

    def _trial(self, rows: int) -> tuple[torch.Tensor, torch.Tensor | None, dict[int, Tiles]]:
        """Random rows at their places, their scales, and tiles of each height."""
        device, ranks = self.weight.device, min(self.experts, 4)
        logits = torch.randn(rows, self.experts, device=device)
        positions = torch.zeros(rows, dtype=torch.int32, device=device)
        x = torch.randn(rows * ranks, self.inputs, dtype=self.dtype, device=device)
        scales = None
        if self.in_fp8:
            x = (x * 64).to(self.weight.dtype)
            scales = torch.rand(len(x), dtype=torch.float32, device=device) + 0.5

        def tiles_of(high: int) -> Tiles:
            ends = torch.zeros(self.experts, dtype=torch.int32, device=device)
            return route_rows(
                logits, positions, experts=self.experts, ranks=ranks, normalize=True, high=high, ends=ends
            ).tiles

        return x, scales, {high: tiles_of(high) for high in _HEIGHTS}


def clamped(expert: Expert) -> tuple[float, float] | None:
    """The numbers of gpt-oss's activation; None for SiLU."""
    return (expert.alpha, expert.limit) if isinstance(expert, GptOssExpert) else None


def unsupported_experts(
    mixture: MixtureOfExperts, shared: Expert | None, reason_of: Callable[[Linear], str | None]
) -> str | None:
    """Why a mixture cannot be computed by these kernels; None if it can. `shared`: experts that all rows have beside
    it; `reason_of`: the same of a product."""
    if not isinstance(mixture.router, TopExperts | ScoredExperts):
        return "experts are chosen in another way"
    if len(mixture.experts) > _MOST_EXPERTS:
        return f"there are {len(mixture.experts)} experts"
    if not mixture.gate.is_plain or mixture.gate.inputs % 16:
        return "the router is kept otherwise"
    reasons = [_unsupported_expert(expert, reason_of) for expert in mixture.experts]
    if shared is not None:
        reasons += [unlike(shared, mixture.experts[0]), _unsupported_expert(shared, reason_of)]
    return next((reason for reason in reasons if reason is not None), None)


def _unsupported_expert(expert: Expert, reason_of: Callable[[Linear], str | None]) -> str | None:
    if not isinstance(expert, FeedForward | GptOssExpert):
        return f"experts are {type(expert).__name__}"
    if isinstance(expert, FeedForward) and expert.activation is not silu_times:
        return "the activation is not SiLU"
    if (fp8_weight(expert.gate_up) is None) is not (fp8_weight(expert.down) is None):
        return "products of an expert are kept in different ways"
    return reason_of(expert.gate_up) or reason_of(expert.down)


class FusedExperts:
    """The feed-forward part of a layer that is a mixture of experts; see `unsupported_experts`.

    Experts that all rows have are taken for as many as they are as large as, which each row has behind its ranks.
    """

    in_fp8 = False
    """Its inputs are of the model's type."""

    def __init__(self, mixture: MixtureOfExperts, shared: Expert | None = None) -> None:
        assert isinstance(mixture.router, TopExperts | ScoredExperts)
        experts = [expert for expert in mixture.experts if isinstance(expert, FeedForward | GptOssExpert)]
        self.router, self.bias = mixture.router, mixture.gate.bias
        self.gate = narrowed(mixture.gate.weight, experts[0].down.dtype)
        self.clamped = clamped(experts[0])
        stacked = mixture.stacked
        gate_up, down = (None, None) if stacked is None else (stacked.gate_up, stacked.down)
        self.experts, self.shared = len(experts), 0
        more_gate_up = more_down = None
        if isinstance(shared, FeedForward):
            count = self.shared = shared.inner * self.experts // sum(
                expert.inner for expert in experts if isinstance(expert, FeedForward)
            )  # fmt: skip
            more_gate_up = shared.gate_up, sides_of(count), sides_of(count)
            more_down = shared.down, columns_of(count), repeats_of(count)
        self.gate_up = GroupedLinear(
            *stacked_weights([expert.gate_up for expert in experts], gate_up, more_gate_up), placed=False
        )
        self.down = GroupedLinear(*stacked_weights([expert.down for expert in experts], down, more_down), placed=True)
        device = self.gate_up.weight.device
        self.ends = torch.zeros(self.gate_up.experts, dtype=torch.int32, device=device)
        """The place behind each expert's last one, of the last pass with more than one row."""

    def products(self) -> Iterator[GroupedLinear]:
        """Those of the experts."""
        yield from (self.gate_up, self.down)

    def __call__(self, x: torch.Tensor, positions: torch.Tensor) -> Mixed:
        """Rows [rows, hidden] → what their experts make of them. `positions` −1: padding, which no expert computes."""
        rows, router = len(x), self.router
        pairs = rows * (router.ranks + self.shared)
        keys, scores = router_logits(x, self.gate, self.bias), None
        if isinstance(router, ScoredExperts) and (router.sigmoid or router.groups is not None):
            groups = (1, 1, 1) if router.groups is None else router.groups.numbers
            keys, scores = score_experts(
                keys, experts=self.experts, sigmoid=router.sigmoid, bias=router.bias, groups=groups
            )  # fmt: skip
        routes = route_rows(
            keys, positions, experts=self.experts, ranks=router.ranks, normalize=router.normalize,
            high=self._height(pairs), ends=self.ends, scores=scores,
            scale=router.scale if isinstance(router, ScoredExperts) else 1.0, shared=self.shared,
        )  # fmt: skip
        placed, scales = self._placed(x, routes)
        # What the tiles are known from has ended before the kernel in front of each product began, but for one row.
        early, tiles = rows > 1, routes.tiles
        if self.clamped is None and self.gate_up.gates(pairs, tiles):
            acted = self.gate_up.by_stream(placed, scales, pairs, tiles, early=early, gated=True)
        else:
            gate_up = self.gate_up(placed, scales, pairs, tiles, early=early)
            acted, scales = self._memory(x, pairs, self.down)
            silu_mul(gate_up, acted, scales=scales, ahead=self.down.ways.streamed, clamped=self.clamped)
        return Mixed(self.down(acted, scales, pairs, tiles, early=True), routes)

    def _placed(self, x: torch.Tensor, routes: Routes) -> tuple[torch.Tensor, torch.Tensor | None]:
        """The rows at all of their places, as the first product wants them; a single row where it is."""
        if len(x) == 1:
            if not self.gate_up.in_fp8:
                return x, None
            placed, scales = self._memory(x, 1, self.gate_up)
            assert scales is not None
            quantize_rows(x, placed, scales)
        else:
            placed, scales = self._memory(x, routes.places.numel(), self.gate_up)
            place_rows(x, routes.places, placed, scales)
        return placed, scales

    @staticmethod
    def _memory(x: torch.Tensor, rows: int, product: GroupedLinear) -> tuple[torch.Tensor, torch.Tensor | None]:
        """For so many rows of inputs of `product`, and for their scales."""
        if not product.in_fp8:
            return torch.empty(rows, product.inputs, dtype=x.dtype, device=x.device), None
        values = torch.empty(rows, product.inputs, dtype=product.weight.dtype, device=x.device)
        return values, torch.empty(rows, dtype=torch.float32, device=x.device)

    def _height(self, pairs: int) -> int:
        """Rows of a tile: twice as many as an expert has on average, since another tile reads its weight again."""
        streamed = self.gate_up.ways.streamed and self.down.ways.streamed
        least = hopper.LEAST_HIGH if streamed else plain.LEAST_HIGH
        each = -(-2 * pairs // self.gate_up.experts)
        return max(least, min(plain.MOST_HIGH, 1 << (each - 1).bit_length()))


def use_ways(mixtures: Iterable[FusedExperts]) -> dict[str, str]:
    """Let the products of experts be computed in the quickest ways that keep the bits; returns which, by shape."""
    found: dict[tuple[object, ...], Ways] = {}
    for mixture in mixtures:
        for product in mixture.products():
            if product.shape not in found:
                found[product.shape] = product.try_ways()
            product.ways = found[product.shape]
    return {"x".join(map(str, shape[:3])): str(ways) for shape, ways in found.items()}


def experts_touched(mixtures: Iterable[FusedExperts]) -> float | None:
    """How many experts of a layer the last pass of more than one row computed with, on average; None without any.

    Waits for the device: for measurements.
    """
    ends = [mixture.ends for mixture in mixtures]
    if not ends:
        return None
    counts = torch.stack(ends).diff(prepend=ends[0].new_zeros(len(ends), 1))
    return float((counts > 0).sum(1).float().mean())
