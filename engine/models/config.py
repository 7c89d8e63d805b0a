"""A Hugging Face `config.json`, read strictly: hub style (`rope_theta`, `torch_dtype`) and version 5 style
(`rope_parameters`, `dtype`). What we do not implement is an error that names the field, never a silent approximation.

Here is what all architectures have; what only one has, it reads from `fields` itself.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from engine.errors import ModelError
from engine.models.fields import Fields, read_fields
from engine.models.rope import RopeConfig, read_rope

_LONGEST_CONTEXT = 1 << 24
"""Of every position the angles are kept."""
_SIZES = ("_size", "_dim", "_rank", "_experts")
_ELEMENTS_PER_BYTE = 8
"""More than any format of weights has."""
LANGUAGE_PARTS = {
    "gemma3": {
        "model_type": "gemma3_text",
        "vocab_size": 262_208,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "max_position_embeddings": 131_072,
        "rope_theta": 1_000_000.0,
        "hidden_activation": "gelu_pytorch_tanh",
    }
}
"""Models of images and text whose language part we run alone, with what its configuration may leave out: the values of
`Gemma3TextConfig` of transformers, and those of Gemma 3 4B (Gemma Team 2025)."""
_PREFIX = "language_model."
"""Before the names of the language part's tensors."""


@dataclass(frozen=True)
class ModelConfig:
    """What the architectures need to know. Sizes are in elements, `context_tokens` in tokens."""

    fields: Fields
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
    prefix: str = ""
    """Before the names of all tensors in the files: of the language part of a model that can do more."""

    def windows(self, window: int, slides: Callable[[int], bool]) -> tuple[int, ...]:
        """The window of each layer in tokens, 0 where it attends to everything.

        `layer_types` says which layers slide; where it is missing, `slides` of the layer's index does.
        """
        types = self.fields.texts("layer_types")
        if not types or not window:
            return tuple(window if window and slides(index) else 0 for index in range(self.layers))
        known = {"sliding_attention": window, "full_attention": 0}
        if len(types) != self.layers:
            raise ModelError(
                f"{self.fields.path}: field layer_types has {len(types)} entries, num_hidden_layers is {self.layers}"
            )
        if unknown := sorted(set(types) - known.keys()):
            raise ModelError(
                f"{self.fields.path}: field layer_types: {unknown[0]!r} is not supported ({', '.join(known)} are)"
            )
        return tuple(known[kind] for kind in types)


def _language_part(config: Fields) -> Fields:
    """The fields of the language part: its own before those of the whole."""
    whole = {name: value for name, value in config.fields.items() if not isinstance(value, dict)}
    kept = {"quantization_config": config.fields.get("quantization_config")}
    left_out = LANGUAGE_PARTS[config.text("model_type", "")]
    return Fields(config.path, {**whole, **kept, **left_out, **config.inner("text_config").fields})


def _stop_tokens(folder: Path, config: Fields) -> tuple[int, ...]:
    """The end tokens that the model itself names; gateways decide which of them to use."""
    fields = config.fields
    path = folder / "generation_config.json"
    if path.is_file():
        fields = {**fields, **read_fields(path).fields}
    value = fields.get("eos_token_id")
    ids = value if isinstance(value, list) else [] if value is None else [value]
    if not all(isinstance(token, int) for token in ids):
        raise ModelError(f"{path}: field eos_token_id must be token ids, is {value!r}")
    return tuple(ids)


def check_sizes(config: ModelConfig, stored: int) -> None:
    """Raise ModelError naming the field where sizes ask for tensors that files of so many bytes could not hold.

    Called before anything is allocated by these sizes.
    """
    path = config.fields.path
    if config.context_tokens > _LONGEST_CONTEXT:
        raise ModelError(
            f"{path}: field max_position_embeddings {config.context_tokens} is more than {_LONGEST_CONTEXT}"
        )
    attention = {
        "num_hidden_layers": config.layers,
        "hidden_size": config.hidden,
        "num_attention_heads": config.heads,
        "head_dim": config.head_dim,
    }
    # Experts, ranks and other sizes that only some have: each is a side of a matrix whose other side is the hidden size.
    others = {
        name: value
        for name, value in config.fields.fields.items()
        if name.endswith(_SIZES) and isinstance(value, int) and name != "hidden_size"
    }
    sides = {**others, "vocab_size": config.vocabulary, "intermediate_size": config.intermediate}
    for sizes in (attention, *({name: size, "hidden_size": config.hidden} for name, size in sides.items())):
        elements = math.prod(sizes.values())
        if elements > stored * _ELEMENTS_PER_BYTE:
            field = max(sizes, key=lambda name: sizes[name])
            raise ModelError(
                f"{path}: field {field} {sizes[field]} asks for weights of {elements} elements"
                f" ({' × '.join(sizes)}), and the folder's files have {stored} bytes"
            )


def read_config(folder: Path) -> ModelConfig:
    """The model configuration of a Hugging Face folder. Raises ModelError naming the folder, file or field."""
    if not folder.is_dir():
        raise ModelError(f"{folder}: no such model folder")
    path = folder / "config.json"
    if not path.is_file():
        raise ModelError(f"{path}: missing; is {folder} a model folder?")
    config = read_fields(path)
    is_part = config.text("model_type", "unknown") in LANGUAGE_PARTS
    if is_part:
        config = _language_part(config)
    model_type = config.text("model_type", "unknown")
    hidden, heads = config.integer("hidden_size"), config.integer("num_attention_heads")
    result = ModelConfig(
        fields=config,
        model_type=model_type,
        hidden=hidden,
        intermediate=config.integer("intermediate_size"),
        layers=config.integer("num_hidden_layers"),
        heads=heads,
        kv_heads=config.integer("num_key_value_heads", heads),
        head_dim=config.integer("head_dim", max(1, hidden // heads)),
        vocabulary=config.integer("vocab_size"),
        context_tokens=config.integer("max_position_embeddings", 2048),
        norm_eps=config.number("rms_norm_eps", 1e-6),
        rope=read_rope(config),
        # Hub-style configurations of Gemma leave out what is their class's default.
        tied_embeddings=config.flag("tie_word_embeddings", model_type.startswith("gemma")),
        attention_bias=config.flag("attention_bias"),
        mlp_bias=config.flag("mlp_bias"),
        activation=config.text("hidden_activation", config.text("hidden_act", "silu")),
        dtype=config.text("dtype", config.text("torch_dtype", "float32")),
        stop_tokens=_stop_tokens(folder, config),
        prefix=_PREFIX if is_part else "",
    )
    if result.heads % result.kv_heads:
        raise ModelError(
            f"{path}: num_attention_heads {result.heads} is not a multiple of num_key_value_heads {result.kv_heads}"
        )
    if result.head_dim % 2:
        raise ModelError(f"{path}: head_dim {result.head_dim} is odd, but rotary embedding turns pairs")
    return result
