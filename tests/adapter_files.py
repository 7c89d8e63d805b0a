"""Adapters as PEFT saves them, made of random numbers, for models of the tests' tiny shape."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

HIDDEN, INNER, QUERY, KEYS, LAYERS = 48, 72, 48, 16, 2
SHAPES = {
    "self_attn.q_proj": (QUERY, HIDDEN),
    "self_attn.k_proj": (KEYS, HIDDEN),
    "self_attn.v_proj": (KEYS, HIDDEN),
    "self_attn.o_proj": (HIDDEN, QUERY),
    "mlp.gate_proj": (INNER, HIDDEN),
    "mlp.up_proj": (INNER, HIDDEN),
    "mlp.down_proj": (HIDDEN, INNER),
}
"""Module -> outputs, inputs."""
ALL = tuple(SHAPES)


def config(rank: int = 8, alpha: float = 16, targets: Sequence[str] = ALL, **fields: Any) -> bytes:
    """An `adapter_config.json` as PEFT writes it."""
    return json.dumps(
        {
            "peft_type": "LORA",
            "task_type": "CAUSAL_LM",
            "base_model_name_or_path": "tiny",
            "r": rank,
            "lora_alpha": alpha,
            "lora_dropout": 0.05,
            "bias": "none",
            "use_rslora": False,
            "use_dora": False,
            "init_lora_weights": True,
            "target_modules": sorted({target.partition(".")[2] for target in targets}),
            "modules_to_save": None,
            "rank_pattern": {},
            "alpha_pattern": {},
            **fields,
        }
    ).encode()


def matrices(
    rank: int = 8,
    targets: Sequence[str] = ALL,
    *,
    seed: int = 1,
    shapes: Mapping[str, tuple[int, int]] = SHAPES,
    layers: int = LAYERS,
) -> dict[str, np.ndarray[Any, Any]]:
    """Random matrices by the names that PEFT gives them."""
    chance = np.random.default_rng(seed)
    made = {}
    for layer in range(layers):
        for target in targets:
            outputs, inputs = shapes[target]
            name = f"base_model.model.model.layers.{layer}.{target}"
            made[f"{name}.lora_A.weight"] = chance.normal(0, 0.3, (rank, inputs)).astype(np.float32)
            made[f"{name}.lora_B.weight"] = chance.normal(0, 0.1, (outputs, rank)).astype(np.float32)
    return made


def safetensors(tensors: Mapping[str, np.ndarray[Any, Any]], **header: Any) -> bytes:
    """The file of these tensors; `header`: entries that are added to it or replaced in it."""
    entries: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    data = b""
    for name, tensor in tensors.items():
        written = tensor.tobytes()
        dtype = {"float32": "F32", "float16": "F16", "uint16": "BF16", "int64": "I64"}[str(tensor.dtype)]
        entries[name] = {
            "dtype": dtype,
            "shape": list(tensor.shape),
            "data_offsets": [len(data), len(data) + len(written)],
        }
        data += written
    head = json.dumps({**entries, **header}).encode()
    return struct.pack("<Q", len(head)) + head + data
