"""What a loaded model's size is said to be, against its checkpoint."""

from __future__ import annotations

from pathlib import Path

import torch

from engine.layers.linear import best_tiling
from engine.models.registry import load_model, read_config
from engine.startup.model_size import model_size


def test_the_demo_models_weights_are_those_of_its_file() -> None:
    folder = Path("models/stdlib-qa")
    config, like = read_config(folder), torch.empty(0, dtype=torch.float32)
    model = load_model(folder, config, like, best_tiling(like), 128)
    size = model_size(model, config)
    # all linear weights, in fp32; norms, padding and a head that is held twice are what it may differ by
    linear = size.token_operations / 2 * 4
    assert 1.0 <= size.weight_bytes / linear < 2.1
    assert [group for group, _ in size.groups] == list(model.groups)
