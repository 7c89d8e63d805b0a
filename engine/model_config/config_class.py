"""The defaults of Hugging Face's configuration class of a model type, as data, and how each of its fields is treated.

Each model family has a `ConfigClass` beside its model. A field of `config.json` is one of these:

- read: the model is built by it, and the class has a default for it;
- fixed: it would change the answer and only one value is implemented; any other value is refused by name;
- ignored: it concerns training, the library's interface or tokens, and changes no answer;
- unknown: it is named in a warning.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias, get_args

from engine.errors import ModelError
from engine.model_config.fields import Fields

RopeKind: TypeAlias = Literal["default", "linear", "llama3", "yarn", "longrope"]
"""How rotary frequencies are scaled (`RopeConfig`)."""
TEXT_POSITIONS: Mapping[str, RopeKind] = {
    **{kind: kind for kind in get_args(RopeKind)},
    "mrope": "default",
}
"""The kinds of models whose positions have three parts, which are equal in texts."""
NOT_SET: tuple[Any, ...] = (None,)
OFF: tuple[Any, ...] = (None, False)
ONE: tuple[Any, ...] = (None, 1)

_FIXED: dict[str, tuple[Any, ...]] = {
    "add_cross_attention": OFF,
    "alibi": OFF,
    "attention_bias": OFF,
    "attention_chunk_size": NOT_SET,
    "attention_multiplier": NOT_SET,
    "attn_logit_softcapping": NOT_SET,
    "clip_qkv": NOT_SET,
    "compression_config": NOT_SET,
    "cross_attention_hidden_size": NOT_SET,
    "embedding_multiplier": ONE,
    "final_logit_softcapping": NOT_SET,
    "is_encoder_decoder": OFF,
    "logit_scale": ONE,
    "logits_scaling": ONE,
    "mlp_bias": OFF,
    "no_rope_layers": (None, []),
    "parallel_attn": OFF,
    "per_layer_config": (None, {}),
    "qk_layernorm": OFF,
    "qk_norm": OFF,
    "query_pre_attn_scalar": NOT_SET,
    "residual_multiplier": ONE,
    "rotary_dim": NOT_SET,
    "rotary_pct": ONE,
    "use_alibi": OFF,
    "use_bidirectional_attention": OFF,
    "use_parallel_residual": OFF,
    "use_qk_norm": OFF,
}
"""field -> implemented values, for every class that does not read the field."""
_ROPE = frozenset({"rope_theta", "rope_scaling", "rope_parameters", "partial_rotary_factor"})
"""Read by `read_rope`."""
_READ_FOR_ALL = frozenset({"model_type", "dtype", "torch_dtype", "eos_token_id", "quantization_config"})
_IGNORED = frozenset(
    {
        # The library's own.
        "_attn_implementation",
        "_attn_implementation_autoset",
        "_attn_implementation_internal",
        "_commit_hash",
        "_experts_implementation_internal",
        "_flash_attn_2_enabled",
        "_name_or_path",
        "architectures",
        "attn_implementation",
        "auto_map",
        "chunk_size_feed_forward",
        "is_decoder",
        "name_or_path",
        "output_attentions",
        "output_hidden_states",
        "output_router_logits",
        "pruned_heads",
        "return_dict",
        "tf_legacy_loss",
        "tie_encoder_decoder",
        "tie_last_hidden_states",
        "torchscript",
        "transformers.js_config",
        "transformers_version",
        "unsloth_fixed",
        "unsloth_version",
        "use_bfloat16",
        "use_cache",
        # Training.
        "attention_dropout",
        "attn_pdrop",
        "embd_pdrop",
        "initializer_range",
        "pretraining_tp",
        "resid_pdrop",
        "residual_dropout",
        "router_aux_loss_coef",
        "router_jitter_noise",
        # Classifiers.
        "finetuning_task",
        "id2label",
        "label2id",
        "num_labels",
        "problem_type",
        # Tokens; what ends an output is the gateway's.
        "begin_suppress_tokens",
        "bos_token_id",
        "decoder_start_token_id",
        "forced_bos_token_id",
        "forced_eos_token_id",
        "pad_token_id",
        "prefix",
        "sep_token_id",
        "suppress_tokens",
        "task_specific_params",
        "tokenizer_class",
        # Sampling: set by requests and `generation_config.json`.
        "bad_words_ids",
        "diversity_penalty",
        "do_sample",
        "early_stopping",
        "encoder_no_repeat_ngram_size",
        "exponential_decay_length_penalty",
        "length_penalty",
        "max_length",
        "min_length",
        "no_repeat_ngram_size",
        "num_beam_groups",
        "num_beams",
        "num_return_sequences",
        "output_scores",
        "remove_invalid_values",
        "repetition_penalty",
        "return_dict_in_generate",
        "temperature",
        "top_k",
        "top_p",
        "typical_p",
    }
)


@dataclass(frozen=True)
class ConfigClass:
    """The configuration class of one `model_type`.

    `defaults`: the default of every field that is read, None for those that the class does not have itself.
    `rope`, `rope_theta`: defaults of `rope_parameters` and `rope_theta`. `local_theta`: the rotary base of layers with
    a window, for classes with parameters per type of layer. `rope_kinds`: supported `rope_type` -> kind; any other is
    refused. `aliases`: other name of a field -> its own name. `fixed`: field -> implemented values. `ignored`: fields.
    """

    model_type: str
    defaults: Mapping[str, Any]
    rope: Mapping[str, Any] = field(default_factory=dict)
    rope_theta: float = 10000.0
    local_theta: float | None = None
    rope_kinds: Mapping[str, RopeKind] = field(default_factory=lambda: {kind: kind for kind in get_args(RopeKind)})
    aliases: Mapping[str, str] = field(default_factory=dict)
    fixed: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    ignored: frozenset[str] = frozenset()
    head_dim: str = "head_dim"
    """The field with the number of a head's elements to which rotary embedding applies."""
    norm_eps: str = "rms_norm_eps"
    """The field with the epsilon of norms."""

    @property
    def read(self) -> frozenset[str]:
        """All fields by which the model is built."""
        return _READ_FOR_ALL | _ROPE | self.defaults.keys() | self.aliases.keys()

    @property
    def all_fixed(self) -> dict[str, tuple[Any, ...]]:
        """field that is not read and would change the answer -> values with which it does not."""
        own = {name: values for name, values in _FIXED.items() if name not in self.read}
        return {**own, **self.fixed}

    @property
    def all_ignored(self) -> frozenset[str]:
        """All fields that change no answer."""
        return _IGNORED | self.ignored

    def complete(self, given: Fields) -> Fields:
        """The fields of `config.json` under their own names, with the class's defaults for those that are missing.

        Raises ModelError for two names of one field with different values.
        """
        fields = dict(given.fields)
        for alias, name in self.aliases.items():
            if alias not in fields:
                continue
            value = fields.pop(alias)
            if fields.setdefault(name, value) != value:
                raise ModelError(
                    f"{given.path}: fields {name} ({fields[name]!r}) and {alias} ({value!r}) mean the same and differ"
                )
        return Fields(given.path, {**self.defaults, **fields})

    def check_fixed(self, given: Fields) -> None:
        """Raise ModelError naming a field whose value would change the answer and is not implemented."""
        for name, values in self.all_fixed.items():
            value = given.fields.get(name)
            if value not in values:
                raise ModelError(
                    f"{given.path}: field {name} {value!r} is not supported for model_type {self.model_type}"
                    f" ({' and '.join(repr(value) for value in values if value is not None) or 'leaving it out'} is)"
                )

    def unknown(self, given: Fields) -> list[str]:
        """The names of fields that are neither read nor fixed nor known to change nothing."""
        known = self.read | self.all_fixed.keys() | self.all_ignored
        return sorted(name for name in given.fields if name not in known)
