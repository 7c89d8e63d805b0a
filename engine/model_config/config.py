"""Reads a Hugging Face `config.json` strictly, in hub style (`rope_theta`, `torch_dtype`) and in version 5 style
(`rope_parameters`, `dtype`). A value that is not implemented is an error that names the field.

`ModelConfig` has what all architectures need. An architecture reads its own fields from `ModelConfig.fields`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import structlog

from engine.errors import ModelError
from engine.model_config.config_class import ConfigClass
from engine.model_config.fields import Fields, has_fields, read_fields
from engine.model_config.rope import RopeConfig, read_rope, unknown_rope_fields
from model_files.context_length import context_length

logger = structlog.get_logger("engine.model_config.config")

_LONGEST_CONTEXT = 1 << 24
"""The most tokens of a context: rotary tables have a row for each position."""
_SIZES = ("_size", "_dim", "_rank", "_experts")
_ELEMENTS_PER_BYTE = 8
"""More elements in a byte of weights than any format has."""
_SLIDING, _FULL = "sliding_attention", "full_attention"
_OTHER_TASKS = ("ForSequenceClassification", "ForTokenClassification", "ForQuestionAnswering", "ForMultipleChoice")


@dataclass(frozen=True)
class ModelConfig:
    """The configuration of a model. Sizes are in elements, `context_tokens` in tokens."""

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
    """The prefix of all tensor names in the files, for the language part of a larger model."""

    def windows(self, window: int, slides: Callable[[int], bool]) -> tuple[int, ...]:
        """The sliding window of each layer in tokens, 0 for full attention.

        The layers with a window are those of `layer_types`; without that field, those for whose index `slides` is true.
        """
        types = self._layer_types()
        if not types:
            return tuple(window if window and slides(index) else 0 for index in range(self.layers))
        if _SLIDING in types and not window:
            raise ModelError(f"{self.fields.path}: field layer_types: {_SLIDING} without a sliding_window in use")
        return tuple(window if kind == _SLIDING else 0 for kind in types)

    def same_windows(self, window: int) -> tuple[int, ...]:
        """The window of each layer of a family with equal layers. Raises ModelError if `layer_types` differ."""
        wanted = _SLIDING if window else _FULL
        if other := sorted(set(self._layer_types()) - {wanted}):
            raise ModelError(
                f"{self.fields.path}: field layer_types: {other[0]!r} is not supported for model_type"
                f" {self.model_type}, whose layers are all {wanted}"
            )
        return (window,) * self.layers

    def _layer_types(self) -> tuple[str, ...]:
        types = self.fields.texts("layer_types")
        if not types:
            return ()
        if len(types) != self.layers:
            raise ModelError(
                f"{self.fields.path}: field layer_types has {len(types)} entries, num_hidden_layers is {self.layers}"
            )
        if unknown := sorted(set(types) - {_SLIDING, _FULL}):
            raise ModelError(
                f"{self.fields.path}: field layer_types: {unknown[0]!r} is not supported ({_SLIDING}, {_FULL} are)"
            )
        return types


def _stop_tokens(folder: Path, config: Fields) -> tuple[int, ...]:
    """The end tokens in the model's files; gateways decide which of them to use."""
    fields = config.fields
    path = folder / "generation_config.json"
    if has_fields(path):
        fields = {**fields, **read_fields(path).fields}
    value = fields.get("eos_token_id")
    ids = value if isinstance(value, list) else [] if value is None else [value]
    if not all(isinstance(token, int) for token in ids):
        raise ModelError(f"{path}: field eos_token_id must be token ids, is {value!r}")
    return tuple(ids)


def _context_tokens(folder: Path, given: Fields, config: Fields) -> int:
    path = folder / "tokenizer_config.json"
    tokenizer = read_fields(path).fields if has_fields(path) else {}
    return context_length(config.integer("max_position_embeddings"), given.fields, tokenizer)


def check_sizes(config: ModelConfig, stored: int) -> None:
    """Raise ModelError that names the field if sizes ask for more weights than files of `stored` bytes can hold.

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
    # Sizes that only some families have, such as experts and ranks: each is a side of a matrix with the hidden size.
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


def model_config(folder: Path, given: Fields, config_class: ConfigClass, prefix: str = "") -> ModelConfig:
    """The configuration of a model of this class from the fields `given` in its file.

    Raises ModelError that names a field which is invalid, or which would change the answer and is not implemented.
    Unknown fields are named in a warning.
    """
    config_class.check_fixed(given)
    _check_task(given)
    unknown = [*config_class.unknown(given), *unknown_rope_fields(given)]
    if unknown:
        logger.warning("fields of config.json that are not known are ignored", path=str(given.path), fields=unknown)
    config = config_class.complete(given)
    hidden, heads = config.integer("hidden_size"), config.integer("num_attention_heads")
    activation = "hidden_activation" if "hidden_activation" in config_class.defaults else "hidden_act"
    result = ModelConfig(
        fields=config,
        model_type=config_class.model_type,
        hidden=hidden,
        intermediate=config.integer("intermediate_size"),
        layers=config.integer("num_hidden_layers"),
        heads=heads,
        kv_heads=config.integer("num_key_value_heads", heads),
        head_dim=config.integer(config_class.head_dim, max(1, hidden // heads)),
        vocabulary=config.integer("vocab_size"),
        context_tokens=_context_tokens(folder, given, config),
        norm_eps=config.number(config_class.norm_eps),
        rope=read_rope(config, config_class),
        tied_embeddings=config.flag("tie_word_embeddings"),
        attention_bias=config.flag("attention_bias"),
        mlp_bias=config.flag("mlp_bias"),
        activation=config.text(activation, ""),
        dtype=config.text("dtype", config.text("torch_dtype", "float32")),
        stop_tokens=_stop_tokens(folder, config),
        prefix=prefix,
    )
    if result.heads % result.kv_heads:
        raise ModelError(
            f"{given.path}: num_attention_heads {result.heads} is not a multiple of"
            f" num_key_value_heads {result.kv_heads}"
        )
    if result.head_dim % 2:
        raise ModelError(
            f"{given.path}: {config_class.head_dim} {result.head_dim} is odd, but rotary embedding rotates pairs"
        )
    return result


def _check_task(given: Fields) -> None:
    for name in given.texts("architectures"):
        if name.endswith(_OTHER_TASKS):
            raise ModelError(f"{given.path}: field architectures: {name} does not write text, and is not supported")
