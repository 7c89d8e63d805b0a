"""A model with outlier channels that computes the very same function: pairs of weights rescaled against each other.

Large models have a few channels whose values are up to a hundred times larger than the others'; small ones have none.
Factors are powers of two, so that nothing but the formats of 8 bits rounds anything.
"""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

LARGEST = 64
"""The largest factor, of the powers of two from 4 on."""


def write_with_outliers(source: Path, folder: Path, share: float = 0.03, seed: int = 0) -> Path:
    """A copy of a model of the Llama family in which this share of the channels have outliers: of what norms give, of
    keys, of values and of gated activations."""
    shutil.copytree(source, folder)
    path = folder / "model.safetensors"
    tensors = {name: tensor.clone() for name, tensor in load_file(path).items()}
    config = json.loads((folder / "config.json").read_text())
    chance = random.Random(seed)
    for index in range(config["num_hidden_layers"]):
        layer = {
            name.removeprefix(prefix).removesuffix(".weight"): tensor
            for prefix in (f"model.layers.{index}.",)
            for name, tensor in tensors.items()
            if name.startswith(prefix)
        }
        _rescale(layer, config, share, chance)
    save_file(tensors, path)
    return folder


def _rescale(layer: dict[str, torch.Tensor], config: dict[str, int], share: float, chance: random.Random) -> None:
    query, key, value, output = (layer[f"self_attn.{name}_proj"] for name in "qkvo")
    gate, up, down = (layer[f"mlp.{name}_proj"] for name in ("gate", "up", "down"))
    kv_heads, dim = config["num_key_value_heads"], config["head_dim"]
    group = config["num_attention_heads"] // kv_heads
    for norm, readers in (("input_layernorm", (query, key, value)), ("post_attention_layernorm", (gate, up))):
        for channel, factor in _drawn(len(layer[norm]), share, chance):
            layer[norm][channel] *= factor
            for reader in readers:
                reader[:, channel] /= factor
    for channel, factor in _drawn(len(up), share, chance):
        up[channel] *= factor
        down[:, channel] /= factor
    for head in range(kv_heads):
        heads = range(head * group, (head + 1) * group)
        for channel, factor in _drawn(dim, share, chance):
            value[head * dim + channel] *= factor
            output[:, [each * dim + channel for each in heads]] /= factor
        # Rotary positions turn a channel of the first half of a head with that of the second.
        for channel, factor in _drawn(dim // 2, share, chance):
            for half in (channel, channel + dim // 2):
                key[head * dim + half] *= factor
                query[[each * dim + half for each in heads]] /= factor


def _drawn(channels: int, share: float, chance: random.Random) -> list[tuple[int, int]]:
    """Some channels, at least one, and a factor for each."""
    chosen = chance.sample(range(channels), max(1, round(share * channels)))
    powers = [factor for factor in (4, 8, 16, 32, 64) if factor <= LARGEST]
    return [(channel, chance.choice(powers)) for channel in chosen]
