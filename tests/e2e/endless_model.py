"""A model that talks on and on: the demo model's folder with random weights, to be killed in the middle."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
from safetensors import safe_open
from safetensors.numpy import save_file

from tests.e2e.processes import DEMO_MODEL

NAME = "endless"


def make_endless_model(folder: Path, like: Path = DEMO_MODEL) -> Path:
    """Write the folder, with the tokenizer and template of the model `like`; the same weights each time."""
    shutil.copytree(like, folder)
    config = json.loads((folder / "config.json").read_text())
    for key in ("torch_dtype", "dtype"):
        if key in config:
            config[key] = "float32"
    (folder / "config.json").write_text(json.dumps(config))
    toml = (folder / "turnpike.toml").read_text()
    (folder / "turnpike.toml").write_text(toml.replace(f'"{like.name}"', f'"{NAME}"'))
    random = np.random.default_rng(7)
    tensors = {}
    with safe_open(like / "model.safetensors", "numpy") as weights:
        for name in weights.keys():  # noqa: SIM118  # a method of safetensors, not a dict
            shape = weights.get_slice(name).get_shape()
            is_norm = len(shape) == 1
            tensors[name] = np.ones(shape, np.float32) if is_norm else random.normal(0, 0.1, shape).astype(np.float32)
    (folder / "model.safetensors").unlink()
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return folder
