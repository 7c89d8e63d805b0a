"""Which architecture a `model_type` is."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

import torch

from engine.errors import ModelError
from engine.kv_memory import KvMemory
from engine.layers.attention_plan import AttentionPlan
from engine.layers.embedding import Head
from engine.layers.linear import Tiling
from engine.models.config import ModelConfig
from engine.models.llama import Llama
from engine.weights.checkpoint import Checkpoint


class Model(Protocol):
    """What an architecture offers to the runner."""

    config: ModelConfig
    head: Head

    def __call__(
        self,
        tokens: torch.Tensor,
        positions: torch.Tensor,
        plan: AttentionPlan,
        memory: KvMemory,
        depth: int | None = None,
    ) -> torch.Tensor:
        """[rows] token ids at [rows] positions → normalized hidden states [rows, hidden], after `depth` layers or all."""


ARCHITECTURES = {"llama": Llama}


def load_model(folder: Path, config: ModelConfig, like: torch.Tensor, tiling: Tiling, context_tokens: int) -> Model:
    """Load the folder's weights as `like`'s type on its device. Raises ModelError naming what is unsupported."""
    architecture = ARCHITECTURES.get(config.model_type)
    if architecture is None:
        raise ModelError(
            f"{folder / 'config.json'}: model_type {config.model_type!r} is not supported"
            f" (supported: {', '.join(sorted(ARCHITECTURES))})"
        )
    with Checkpoint(folder) as checkpoint, torch.inference_mode():
        return architecture(config, checkpoint, like, tiling, context_tokens)
