"""The `config.json` and `generation_config.json` that a GGUF file's metadata amounts to.

An architecture that is not in `_FAMILIES` is refused by name, and so is metadata that would change the answer and has
no place in the configuration. What llama.cpp does without metadata is done here too: the scale of Gemma's 27B models,
and the end tokens that it knows by their texts.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

from model_files.gguf_file import GgufModel
from model_files.gguf_tokenizer import CONTROL, special_id
from model_files.gguf_values import GgufError

_EMBEDDING, _HEAD = "token_embd.weight", "output.weight"
_MOST_LAYERS = 1 << 12
_END_TEXTS = frozenset(
    {
        *("<|eot_id|>", "<|im_end|>", "<|end|>", "<|return|>", "<|call|>", "<end_of_turn>", "<|endoftext|>"),
        *("<|eom_id|>", "<EOT>", "_<EOT>", "[EOT]", "[EOS]", "<|end_of_text|>", "<end_of_utterance>"),
    }
)
"""Control tokens that end an output whatever the metadata says, as in llama.cpp."""
_SAMPLING = {"temp": "temperature", "top_k": "top_k", "top_p": "top_p", "min_p": "min_p"}
_OFF: tuple[Any, ...] = (None, 0)
_ONE: tuple[Any, ...] = (None, 0, 1)
_FIXED: Mapping[str, tuple[Any, ...]] = {
    "attention.causal": (None, True),
    "attention.clamp_kqv": _OFF,
    "attention.layer_norm_epsilon": _OFF,
    "attention.max_alibi_bias": _OFF,
    "attention.scale": _OFF,
    "attention.temperature_scale": _ONE,
    "attn_logit_softcapping": _OFF,
    "embedding_scale": _ONE,
    "expert_count": _OFF,
    "expert_group_count": _ONE,
    "expert_shared_count": _OFF,
    "expert_weights_scale": _ONE,
    "final_logit_softcapping": _OFF,
    "interleave_moe_layer_step": _ONE,
    "leading_dense_block_count": _OFF,
    "logit_scale": _ONE,
    "nextn_predict_layers": _OFF,
    "pooling_type": _OFF,
    "residual_scale": _ONE,
    "rope.scaling.yarn_ext_factor": _ONE,
    "rope.scaling.yarn_log_multiplier": _OFF,
    "use_parallel_residual": (None, False),
}
"""metadata that would change the answer, behind the architecture's name -> values with which it does not"""


class _Metadata:
    """The metadata under one architecture's name, and which of it was read."""

    def __init__(self, model: GgufModel, architecture: str) -> None:
        self.model = model
        self.architecture = architecture
        self.read: set[str] = set()

    def refuse(self, what: str) -> NoReturn:
        raise GgufError(f"{self.model.path}: {what}")

    def get(self, key: str) -> Any:
        """A number, text or truth value; None if it is missing."""
        self.read.add(key)
        value = self.model.values.get(f"{self.architecture}.{key}")
        if value is not None and not isinstance(value, int | float | str):
            self.refuse(f"{self.architecture}.{key} is an array, and one value for all layers is supported")
        return value

    def whole(self, key: str, default: int | None = None) -> int:
        """A positive integer, the same for all layers where it is an array."""
        value = self.model.values.get(f"{self.architecture}.{key}")
        self.read.add(key)
        if value is not None and not isinstance(value, int | float | str):
            same = set(self.model.numbers(f"{self.architecture}.{key}"))
            value = same.pop() if len(same) == 1 else f"{len(same)} different numbers"
        value = default if value is None else value
        if type(value) is not int or value < 1:
            self.refuse(f"{self.architecture}.{key} is {value!r}, not a positive integer")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        """A positive number."""
        given = self.get(key)
        value: Any = default if given is None else given
        if type(value) not in (int, float) or not 0 < value < math.inf:
            self.refuse(f"{self.architecture}.{key} is {value!r}, not a positive number")
        return float(value)


Family = Callable[[_Metadata, dict[str, Any]], dict[str, Any]]
"""The fields of an architecture beside those that all have, which it is given."""


def config_json(model: GgufModel) -> dict[str, Any]:
    """The model's `config.json`. Raises GgufError that names what is missing, contradictory or not supported."""
    architecture = model.values.get("general.architecture")
    if architecture not in _FAMILIES:
        supported = ", ".join(sorted(_FAMILIES))
        raise GgufError(f"{model.path}: architecture {architecture!r} is not supported (supported: {supported})")
    metadata = _Metadata(model, str(architecture))
    common = _common(metadata)
    own = _FAMILIES[str(architecture)](metadata, common)
    for key, values in _FIXED.items():
        if key not in metadata.read and metadata.get(key) not in values:
            metadata.refuse(f"{architecture}.{key} {metadata.get(key)!r} is not supported")
    return {**common, **own}


def generation_json(model: GgufModel) -> dict[str, Any]:
    """The model's `generation_config.json`: its end tokens, and how the file says that it is sampled."""
    names = ("eos", "eot", "eom")
    ends = [token for name in names if (token := special_id(model, name)) is not None]
    kinds = model.numbers("tokenizer.ggml.token_type")
    texts = model.texts("tokenizer.ggml.tokens")
    ends += [
        token for token, (text, kind) in enumerate(zip(texts, kinds, strict=False))
        if kind == CONTROL and text in _END_TEXTS
    ]  # fmt: skip
    sampling = {name: model.values.get(f"general.sampling.{key}") for key, name in _SAMPLING.items()}
    return {
        "eos_token_id": list(dict.fromkeys(ends)),
        **{name: value for name, value in sampling.items() if type(value) in (int, float)},
    }


def _common(metadata: _Metadata) -> dict[str, Any]:
    """What all architectures have."""
    model = metadata.model
    embedding = model.tensors.get(_EMBEDDING)
    hidden = metadata.whole("embedding_length")
    if embedding is None or len(embedding.shape) != 2 or embedding.shape[1] != hidden:
        shape = None if embedding is None else list(embedding.shape)
        metadata.refuse(f"tensor {_EMBEDDING} has the shape {shape}, and the embedding length is {hidden}")
    vocabulary, named = embedding.shape[0], metadata.get("vocab_size")
    tokens = len(model.texts("tokenizer.ggml.tokens"))
    if named not in (None, vocabulary) or tokens > vocabulary:
        metadata.refuse(
            f"tensor {_EMBEDDING} has rows for {vocabulary} tokens, vocab_size is {named}, the tokenizer has {tokens}"
        )
    heads, layers = metadata.whole("attention.head_count"), metadata.whole("block_count")
    if layers > _MOST_LAYERS:
        metadata.refuse(f"{metadata.architecture}.block_count is {layers}, more than {_MOST_LAYERS}")
    head_dim = metadata.whole("attention.key_length", max(1, hidden // heads))
    if metadata.whole("attention.value_length", head_dim) != head_dim:
        metadata.refuse(f"{metadata.architecture}.attention.value_length differs from key_length, {head_dim}")
    rotated = metadata.whole("rope.dimension_count", head_dim)
    if rotated != head_dim and metadata.architecture != "phi3":
        metadata.refuse(f"{metadata.architecture}.rope.dimension_count is {rotated}, a head has {head_dim} elements")
    context = metadata.whole("context_length")
    fields = {
        "vocab_size": vocabulary,
        "hidden_size": hidden,
        "intermediate_size": metadata.whole("feed_forward_length"),
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": metadata.whole("attention.head_count_kv", heads),
        "head_dim": head_dim,
        "max_position_embeddings": context,
        "rms_norm_eps": metadata.number("attention.layer_norm_rms_epsilon"),
        "rope_theta": metadata.number("rope.freq_base", 10000.0),
        "tie_word_embeddings": _HEAD not in model.tensors,
        "eos_token_id": special_id(model, "eos"),
        "bos_token_id": special_id(model, "bos"),
    }
    scaling = _rope_scaling(metadata, context, rotated)
    return fields if scaling is None else {**fields, "rope_scaling": scaling}


def _rope_scaling(metadata: _Metadata, context: int, rotated: int) -> dict[str, Any] | None:
    """The `rope_scaling` of a model with so many rotated elements of a head."""
    kind = metadata.get("rope.scaling.type")
    factor = metadata.get("rope.scaling.factor") or metadata.get("rope.scale_linear")
    tensors = [
        name
        for name in ("rope_freqs", "rope_factors_long", "rope_factors_short")
        if f"{name}.weight" in metadata.model.tensors
    ]
    if tensors:
        return _rotary_factors(metadata, tensors, context, rotated)
    if kind == "linear" or (kind in (None, "none") and factor not in (None, 0, 1)):
        return {"rope_type": "linear", "factor": factor}
    if kind in (None, "none"):
        return None
    if kind != "yarn":
        metadata.refuse(f"rope.scaling.type {kind!r} is not supported (none, linear, yarn and rotary factors are)")
    scaling = {"rope_type": "yarn", "factor": factor}
    others = {
        "original_context_length": "original_max_position_embeddings",
        "yarn_beta_fast": "beta_fast",
        "yarn_beta_slow": "beta_slow",
    }
    scaling |= {
        name: value for key, name in others.items() if (value := metadata.get(f"rope.scaling.{key}")) is not None
    }
    if metadata.get("rope.scaling.attn_factor") not in _ONE:
        # llama.cpp's is a factor of YaRN's own correction, transformers' is the whole.
        own = 0.1 * math.log(metadata.number("rope.scaling.factor")) + 1.0
        scaling["attention_factor"] = metadata.number("rope.scaling.attn_factor") * own
    return scaling


def _rotary_factors(metadata: _Metadata, tensors: Sequence[str], context: int, rotated: int) -> dict[str, Any]:
    """The scaling by factors of each frequency, which are in tensors."""
    sets = {name: metadata.model.floats(f"{name}.weight") for name in tensors}
    for name, numbers in sets.items():
        if len(numbers) != rotated // 2:
            metadata.refuse(f"tensor {name}.weight has {len(numbers)} factors for {rotated // 2} frequencies")
    kind, stretch = metadata.get("rope.scaling.type"), metadata.get("rope.scaling.attn_factor")
    if sets.keys() == {"rope_freqs"} and kind in (None, "none"):
        # Llama 3's scaling: the same factors at each length, as one set that is never changed for another.
        same = sets["rope_freqs"]
        return {
            "rope_type": "longrope",
            "short_factor": same,
            "long_factor": same,
            "attention_factor": 1.0,
            "original_max_position_embeddings": context,
        }
    if sets.keys() == {"rope_factors_long", "rope_factors_short"} and metadata.architecture == "phi3":
        return {
            "rope_type": "longrope",
            "short_factor": sets["rope_factors_short"],
            "long_factor": sets["rope_factors_long"],
            **({} if stretch is None else {"attention_factor": stretch}),
        }
    return metadata.refuse(f"rotary factors {', '.join(sets)} with rope.scaling.type {kind!r} are not supported")


def _llama(metadata: _Metadata, common: dict[str, Any]) -> dict[str, Any]:
    tensors, window = metadata.model.tensors, metadata.get("attention.sliding_window")
    biases = {
        "attention_bias": "blk.0.attn_q.bias" in tensors,
        "mlp_bias": "blk.0.ffn_up.bias" in tensors,
    }
    if metadata.get("expert_count"):
        count, used = metadata.whole("expert_count"), metadata.whole("expert_used_count")
        return {"model_type": "mixtral", "num_local_experts": count, "num_experts_per_tok": used}
    if window:
        return {"model_type": "mistral", "sliding_window": window}
    return {"model_type": "llama", **biases}


def _qwen3_moe(metadata: _Metadata, common: dict[str, Any]) -> dict[str, Any]:
    return {
        "model_type": "qwen3_moe",
        "num_experts": metadata.whole("expert_count"),
        "num_experts_per_tok": metadata.whole("expert_used_count"),
        "moe_intermediate_size": metadata.whole("expert_feed_forward_length"),
        "norm_topk_prob": True,
    }


def _gemma(metadata: _Metadata, common: dict[str, Any], largest: int) -> dict[str, Any]:
    """`largest`: the layers of the 27B model, whose scores are scaled by another size than that of a head."""
    heads, hidden = common["num_attention_heads"], common["hidden_size"]
    scaled_by = hidden // heads if common["num_hidden_layers"] == largest else common["head_dim"]
    cap = metadata.get("final_logit_softcapping")
    return {
        "query_pre_attn_scalar": scaled_by,
        "sliding_window": metadata.whole("attention.sliding_window"),
        "final_logit_softcapping": cap or None,
    }


def _gemma2(metadata: _Metadata, common: dict[str, Any]) -> dict[str, Any]:
    cap = metadata.get("attn_logit_softcapping")
    return {"model_type": "gemma2", **_gemma(metadata, common, 46), "attn_logit_softcapping": cap or None}


def _gemma3(metadata: _Metadata, common: dict[str, Any]) -> dict[str, Any]:
    pattern, local = "attention.sliding_window_pattern", "rope.freq_base_swa"
    return {
        "model_type": "gemma3_text",
        **_gemma(metadata, common, 62),
        "rope_local_base_freq": metadata.number(local, 10000.0),
        "sliding_window_pattern": metadata.whole(pattern, 6),
    }


def _phi3(metadata: _Metadata, common: dict[str, Any]) -> dict[str, Any]:
    rotated = metadata.whole("rope.dimension_count", common["head_dim"])
    context = common["max_position_embeddings"]
    return {
        "model_type": "phi3",
        "sliding_window": metadata.get("attention.sliding_window") or None,
        "partial_rotary_factor": rotated / common["head_dim"],
        "original_max_position_embeddings": metadata.whole("rope.scaling.original_context_length", context),
    }


_FAMILIES: Mapping[str, Family] = {
    "gemma2": _gemma2,
    "gemma3": _gemma3,
    "llama": _llama,
    "phi3": _phi3,
    "qwen2": lambda metadata, common: {"model_type": "qwen2"},
    "qwen3": lambda metadata, common: {"model_type": "qwen3"},
    "qwen3moe": _qwen3_moe,
}
"""`general.architecture` -> its own fields"""
