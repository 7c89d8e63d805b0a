"""Counts what steps move and compute, so that it can be held against what the device is able to do.

A step reads every weight once, and of each request the KV that its tokens attend to. A token costs two operations for
each weight that it is multiplied with, and four for each number of a key or value. Activations are left out, and so is
what kernels read twice: the share of a device's bandwidth that follows (MBU) is what useful work takes of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch

from engine.layers.linear import Linear
from engine.layers.moe import MixtureOfExperts
from engine.model_config.config import ModelConfig
from engine.models.decoder import Decoder
from engine.scheduling.step_work import Work
from prompt_cache.kv.block_keys import BLOCK_TOKENS
from protocol.replicas import LayerGroup

_EVERY = 8
"""Of so many steps one is looked at, and stands for all of them: the others cost nothing."""


@dataclass(frozen=True)
class ModelSize:
    """What a step of a model takes. `weight_bytes`: of all weights but the embedding; 0 where experts make it depend on
    the tokens. `token_operations`: of a token without its attention. `groups`: the layers' KV, each with the layers'
    query heads together, times their width."""

    weight_bytes: int = 0
    token_operations: float = 0.0
    groups: tuple[tuple[LayerGroup, int], ...] = ()


UNKNOWN_SIZE = ModelSize()


class StepTraffic:
    """The sums of a replica, 0 for a model whose size is not known. `seconds`: what its steps took."""

    def __init__(self, size: ModelSize) -> None:
        self.size = size
        self.seconds = 0.0
        self.bytes = 0.0
        self.operations = 0.0
        self._steps = 0

    def count(self, work: Sequence[Work], seconds: float) -> None:
        """A step did this work in so many seconds."""
        self.seconds += seconds
        self._steps += 1
        if not self.size.weight_bytes or (self._steps - 1) % _EVERY:
            return
        rows = 0
        moved, attended = float(self.size.weight_bytes), 0.0
        for one in work:
            rows += one.count
        for group, width in self.size.groups:
            tokens = pairs = 0
            for one in work:
                end = one.start + one.count
                tokens += end if not group.window else min(end, group.window + one.count)
                pairs += one.count * (min(one.start, group.window) if group.window else one.start + one.count // 2)
            moved += tokens * group.block_bytes / BLOCK_TOKENS
            attended += 4.0 * pairs * width
        self.bytes += _EVERY * moved
        self.operations += _EVERY * (rows * self.size.token_operations + attended)

    def metrics(self) -> dict[str, float]:
        """The sums by Prometheus name."""
        return {
            "turnpike_engine_step_seconds_total": self.seconds,
            "turnpike_engine_moved_bytes_total": self.bytes,
            "turnpike_engine_operations_total": self.operations,
        }


def model_size(model: Decoder, config: ModelConfig) -> ModelSize:
    """Its size; an unknown one for a mixture of experts, where tokens decide which weights are read."""
    parts = list(_parts([*model.layers, model.norm, model.head], set()))
    if any(isinstance(part, MixtureOfExperts) for part in parts):
        return UNKNOWN_SIZE
    held = sum(part.numel() * part.element_size() for part in parts if isinstance(part, torch.Tensor))
    elements = sum(part.elements for part in parts if isinstance(part, Linear))
    width = config.heads * config.head_dim
    return ModelSize(held, 2.0 * elements, tuple((group, width * len(group.layers)) for group in model.groups))


def _parts(values: Iterable[object], seen: set[int]) -> Iterator[object]:
    """Each object of ours within these, and each tensor, once."""
    for value in values:
        if isinstance(value, list | tuple):
            yield from _parts(value, seen)
        elif isinstance(value, dict):
            yield from _parts(value.values(), seen)
        elif id(value) in seen:
            continue
        elif isinstance(value, torch.Tensor):
            seen.add(id(value))
            yield value
        elif type(value).__module__.startswith("engine."):
            seen.add(id(value))
            yield value
            yield from _parts(getattr(value, "__dict__", {}).values(), seen)
            yield from _parts((getattr(value, name) for name in getattr(value, "__slots__", ())), seen)
