"""A Hugging Face `config.json`, read strictly: hub style (`rope_theta`, `torch_dtype`) and version 5 style
(`rope_parameters`, `dtype`). What we do not implement is an error that names the field, never a silent approximation.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.errors import ModelError


@dataclass(frozen=True)
class RopeConfig:
    """Rotary embedding: `theta` and, for `kind` "llama3", how frequencies are stretched for long contexts."""

    theta: float
    kind: str = "default"
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_context: int = 8192


@dataclass(frozen=True)
class ModelConfig:
    """What the architectures need to know. Sizes are in elements, `context_tokens` in tokens."""

    model_type: str
    hidden: int
    intermediate: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    vocabulary: int
    context_tokens: int
    norm_eps: float
    rope: RopeConfig
    tied_embeddings: bool
    attention_bias: bool
    mlp_bias: bool
    activation: str
    dtype: str
    stop_tokens: tuple[int, ...]


class _Fields:
    """Typed access to the configuration's fields with errors that name file and field."""

    def __init__(self, path: Path, fields: dict[str, Any]) -> None:
        self.path = path
        self.fields = fields

    def integer(self, name: str, default: int | None = None) -> int:
        value = self.fields.get(name)
        value = default if value is None else value
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise ModelError(f"{self.path}: field {name} must be a positive integer, is {value!r}")
        return value

    def number(self, name: str, default: float | None = None) -> float:
        value = self.fields.get(name)
        value = default if value is None else value
        if not isinstance(value, int | float) or isinstance(value, bool) or not value > 0:
            raise ModelError(f"{self.path}: field {name} must be a positive number, is {value!r}")
        return float(value)

    def flag(self, name: str) -> bool:
        value = self.fields.get(name, False)
        if not isinstance(value, bool):
            raise ModelError(f"{self.path}: field {name} must be true or false, is {value!r}")
        return value

    def text(self, name: str, default: str) -> str:
        value = self.fields.get(name)
        value = default if value is None else value
        if not isinstance(value, str):
            raise ModelError(f"{self.path}: field {name} must be a string, is {value!r}")
        return value

    def inner(self, name: str) -> _Fields:
        value = self.fields.get(name)
        if value is not None and not isinstance(value, dict):
            raise ModelError(f"{self.path}: field {name} must be an object, is {value!r}")
        return _Fields(self.path, value or {})


def _rope(config: _Fields) -> RopeConfig:
    """`rope_parameters` of version 5 holds theta and scaling; hub style has `rope_theta` and `rope_scaling`."""
    scaling = config.inner("rope_parameters" if config.fields.get("rope_parameters") else "rope_scaling")
    theta = (scaling if "rope_theta" in scaling.fields else config).number("rope_theta", 10000.0)
    kind = scaling.text("rope_type", scaling.text("type", "default"))
    if kind == "default":
        return RopeConfig(theta)
    if kind != "llama3":
        raise ModelError(f"{config.path}: rope_type {kind!r} is not supported (default and llama3 are)")
    return RopeConfig(
        theta,
        kind,
        factor=scaling.number("factor"),
        low_freq_factor=scaling.number("low_freq_factor"),
        high_freq_factor=scaling.number("high_freq_factor"),
        original_context=scaling.integer("original_max_position_embeddings"),
    )


def _stop_tokens(folder: Path, config: _Fields) -> tuple[int, ...]:
    """The end tokens that the model itself names; gateways decide which of them to use."""
    fields = config.fields
    path = folder / "generation_config.json"
    if path.is_file():
        fields = {**fields, **_read(path)}
    value = fields.get("eos_token_id")
    ids = value if isinstance(value, list) else [] if value is None else [value]
    if not all(isinstance(token, int) for token in ids):
        raise ModelError(f"{path}: field eos_token_id must be token ids, is {value!r}")
    return tuple(ids)


def _read(path: Path) -> dict[str, Any]:
    try:
        fields = json.loads(path.read_bytes())
    except OSError as error:
        raise ModelError(f"{path}: cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise ModelError(f"{path}: is not JSON: {error}") from error
    if not isinstance(fields, dict):
        raise ModelError(f"{path}: is not a JSON object")
    return fields


def read_config(folder: Path) -> ModelConfig:
    """The model configuration of a Hugging Face folder. Raises ModelError naming the folder, file or field."""
    if not folder.is_dir():
        raise ModelError(f"{folder}: no such model folder")
    path = folder / "config.json"
    if not path.is_file():
        raise ModelError(f"{path}: missing; is {folder} a model folder?")
    config = _Fields(path, _read(path))
    hidden, heads = config.integer("hidden_size"), config.integer("num_attention_heads")
    result = ModelConfig(
        model_type=config.text("model_type", "unknown"),
        hidden=hidden,
        intermediate=config.integer("intermediate_size"),
        layers=config.integer("num_hidden_layers"),
        heads=heads,
        kv_heads=config.integer("num_key_value_heads", heads),
        head_dim=config.integer("head_dim", max(1, hidden // heads)),
        vocabulary=config.integer("vocab_size"),
        context_tokens=config.integer("max_position_embeddings", 2048),
        norm_eps=config.number("rms_norm_eps", 1e-6),
        rope=_rope(config),
        tied_embeddings=config.flag("tie_word_embeddings"),
        attention_bias=config.flag("attention_bias"),
        mlp_bias=config.flag("mlp_bias"),
        activation=config.text("hidden_act", "silu"),
        dtype=config.text("dtype", config.text("torch_dtype", "float32")),
        stop_tokens=_stop_tokens(folder, config),
    )
    if result.heads % result.kv_heads:
        raise ModelError(
            f"{path}: num_attention_heads {result.heads} is not a multiple of num_key_value_heads {result.kv_heads}"
        )
    if result.head_dim % 2:
        raise ModelError(f"{path}: head_dim {result.head_dim} is odd, but rotary embedding turns pairs")
    return result
