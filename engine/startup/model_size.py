"""Measures a loaded model: the bytes of its weights, and the operations of a token."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from engine.core.step_traffic import UNKNOWN_SIZE, ModelSize
from engine.layers.moe import MixtureOfExperts
from engine.model_config.config import ModelConfig
from engine.models.decoder import Decoder


def model_size(model: Decoder, config: ModelConfig) -> ModelSize:
    """Its size; an unknown one for a mixture of experts, where tokens decide which weights are read."""
    seen: set[int] = set()
    weights = [*_parts([*model.layers, model.norm, model.head], seen)]
    if any(isinstance(part, MixtureOfExperts) for part in weights):
        return UNKNOWN_SIZE
    held = sum(part.numel() * part.element_size() for part in weights if isinstance(part, torch.Tensor))
    attended = config.heads * config.head_dim
    layer = config.hidden * (2 * attended + 2 * config.kv_heads * config.head_dim + 3 * config.intermediate)
    operations = 2.0 * (layer * len(model.layers) + config.hidden * config.vocabulary)
    return ModelSize(held, operations, tuple((group, attended * len(group.layers)) for group in model.groups))


def _parts(value: object, seen: set[int]) -> Iterator[object]:
    """Each object of ours within this one, and each tensor, once."""
    if id(value) in seen:
        return
    seen.add(id(value))
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for each in value:
            yield from _parts(each, seen)
    elif isinstance(value, dict):
        yield from _parts(list(value.values()), seen)
    elif type(value).__module__.startswith("engine."):
        yield value
        yield from _parts(list(getattr(value, "__dict__", {}).values()), seen)
        slots = getattr(type(value), "__slots__", ())
        names = (slots,) if isinstance(slots, str) else slots
        yield from _parts([getattr(value, name, None) for name in names], seen)
