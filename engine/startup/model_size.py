"""Measures a loaded model: the bytes of its weights, and the operations of a token."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch

from engine.core.step_traffic import UNKNOWN_SIZE, ModelSize
from engine.layers.linear import Linear
from engine.layers.moe import MixtureOfExperts
from engine.model_config.config import ModelConfig
from engine.models.decoder import Decoder


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
