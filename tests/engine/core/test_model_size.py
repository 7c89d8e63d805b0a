"""What a loaded model's size is said to be, against its checkpoint."""

from __future__ import annotations

from pathlib import Path

import torch

from engine.core.step_traffic import model_size
from engine.layers.linear import best_tiling
from engine.models.registry import load_model, read_config


def test_the_demo_models_weights_are_those_of_its_file() -> None:
    folder = Path("models/stdlib-qa")
    config, like = read_config(folder), torch.empty(0, dtype=torch.float32)
    model = load_model(folder, config, like, best_tiling(like), 128)
    size = model_size(model, config)
    rows = config.hidden * (config.heads + 2 * config.kv_heads) * config.head_dim + config.hidden * config.hidden
    linear = (rows + 3 * config.hidden * config.intermediate) * 8 + config.hidden * config.vocabulary
    assert size.token_operations == 2 * linear
    assert 1.0 <= size.weight_bytes / (4 * linear) < 1.01  # norms and rotations are the rest
    assert [group for group, _ in size.groups] == list(model.groups)
