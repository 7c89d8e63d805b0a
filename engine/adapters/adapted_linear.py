"""Linear layers to whose results adapters add: y = round(W x + s · B A x), the addition in fp32.

A row without an adapter is not touched: what is added to others is computed apart, from their rows alone, so that base
rows keep the base model's very bits (adding 0 would make +0 of -0). Rows of one adapter are computed together; their
bits do not depend on how many there are, since both products are `Linear`s.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from engine.adapters.adapter_weights import AdapterWeights, Target, check_fit
from engine.layers.feed_forward import FeedForward
from engine.layers.linear import Linear, Tiling
from engine.layers.self_attention import SelfAttention
from engine.models.decoder import Decoder
from engine.scheduling.step_work import Work
from model_files.adapter_file import AdapterFile


@dataclass(frozen=True)
class AdaptedRows:
    """The rows of a step that one adapter changes. `rows`: [count]; `padded`: the same, as many as products need."""

    rows: torch.Tensor
    padded: torch.Tensor
    weights: AdapterWeights


class StepAdapters:
    """Which rows of the step that is computed now have which adapter. All adapted layers of a model share it."""

    def __init__(self, targets: Mapping[str, Target], tiling: Tiling) -> None:
        self.groups: Sequence[AdaptedRows] = ()
        self._targets = targets
        self._tiling = tiling

    def prepare(self, file: AdapterFile) -> Callable[[], AdapterWeights]:
        """What makes an adapter's weights. Raises AdapterRefused for what does not fit the model."""
        check_fit(file, self._targets)
        return lambda: AdapterWeights(file, self._targets, self._tiling)

    def enter(self, works: Sequence[Work]) -> None:
        """These works are computed next, in this order; other rows behind them belong to nobody."""
        by_adapter: dict[int, tuple[AdapterWeights, list[int]]] = {}
        at = 0
        for work in works:
            request = work.request
            if request.adapter is not None:
                weights = request.weights
                if not isinstance(weights, AdapterWeights):
                    raise RuntimeError(f"the adapter could not be loaded: {weights}")
                first = max(work.start, request.adapted_from) - work.start
                by_adapter.setdefault(id(weights), (weights, []))[1].extend(range(at + first, at + work.count))
            at += work.count
        self.groups = [_adapted_rows(weights, rows) for weights, rows in by_adapter.values() if rows]


def _adapted_rows(weights: AdapterWeights, rows: list[int]) -> AdaptedRows:
    padding = [rows[0]] * weights.tiling.padding(len(rows))
    return AdaptedRows(torch.tensor(rows), torch.tensor(rows + padding), weights)


class AdaptedLinear(Linear):
    """The layer `base`, to whose results the step's adapters add what they have for `target`. In all else it is the
    base layer."""

    def __init__(self, base: Linear, target: str, step: StepAdapters) -> None:
        self._base = base
        self._target = target
        self._step = step

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["_base"], name)

    @property
    def nbytes(self) -> int:
        return self._base.nbytes

    def __call__(self, x: torch.Tensor, plus: torch.Tensor | None = None) -> torch.Tensor:
        """[rows, inputs] → [rows, outputs], plus `plus` if given."""
        y = self._base(x, plus)
        for group in self._step.groups:
            product = group.weights.products.get(self._target)
            if product is not None:
                count = len(group.rows)
                for columns, delta in product.deltas(x[group.padded]):
                    y[group.rows, columns] = (y[group.rows, columns].float() + delta[:count]).to(y.dtype)
        return y


def targets_of(model: Decoder) -> Mapping[str, Target]:
    """The layers that adapters may change, by names of our own. Other attention than self-attention, and experts, are
    not among them."""
    targets: dict[str, Target] = {}
    for index, layer in enumerate(model.layers):
        name = f"model.layers.{index}"
        attention, mlp = layer.attention, layer.mlp
        if isinstance(attention, SelfAttention):
            q, kv = attention.heads * attention.dim, attention.kv_heads * attention.dim
            parts = {"q_proj": (0, q), "k_proj": (q, q + kv), "v_proj": (q + kv, q + 2 * kv)}
            parts["qkv_proj"] = (0, q + 2 * kv)
            targets[f"{index}.qkv"] = Target.of(f"{name}.self_attn", attention.qkv.inputs, parts)
            outputs = {"o_proj": (0, model.config.hidden)}
            targets[f"{index}.output"] = Target.of(f"{name}.self_attn", attention.output.inputs, outputs)
        if isinstance(mlp, FeedForward):
            inner = mlp.inner
            parts = {"gate_proj": (0, inner), "up_proj": (inner, 2 * inner), "gate_up_proj": (0, 2 * inner)}
            targets[f"{index}.gate_up"] = Target.of(f"{name}.mlp", mlp.gate_up.inputs, parts)
            targets[f"{index}.down"] = Target.of(
                f"{name}.mlp", mlp.down.inputs, {"down_proj": (0, model.config.hidden)}
            )
    return targets


def adapt(model: Decoder, tiling: Tiling) -> StepAdapters:
    """Let the model's layers add what adapters have for them, in the rows that the returned object is told."""
    step = StepAdapters(targets_of(model), tiling)
    for index, layer in enumerate(model.layers):
        attention, mlp = layer.attention, layer.mlp
        if isinstance(attention, SelfAttention):
            attention.qkv = AdaptedLinear(attention.qkv, f"{index}.qkv", step)
            attention.output = AdaptedLinear(attention.output, f"{index}.output", step)
        if isinstance(mlp, FeedForward):
            mlp.gate_up = AdaptedLinear(mlp.gate_up, f"{index}.gate_up", step)
            mlp.down = AdaptedLinear(mlp.down, f"{index}.down", step)
    return step
