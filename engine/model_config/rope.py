"""Reads the rotary embedding of a configuration, in hub style (`rope_theta`, `rope_scaling`) and in version 5 style
(`rope_parameters`, possibly one for each type of layer).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from engine.errors import ModelError
from engine.model_config.config_class import ConfigClass, RopeKind
from engine.model_config.fields import Fields

_KNOWN = frozenset(
    {
        "attention_factor",
        "beta_fast",
        "beta_slow",
        "factor",
        "high_freq_factor",
        "long_factor",
        "low_freq_factor",
        "mscale",
        "mrope_interleaved",
        "mrope_section",
        "mscale_all_dim",
        "original_max_position_embeddings",
        "partial_rotary_factor",
        "rope_theta",
        "rope_type",
        "short_factor",
        "truncate",
        "type",
    }
)


@dataclass(frozen=True)
class RopeConfig:
    """Rotary embedding: the base `theta`, and how frequencies are scaled for long contexts, by `kind`.

    default: not scaled. linear: all divided by `factor`. llama3 (Grattafiori et al. 2024) and yarn (Peng et al. 2023):
    low frequencies divided by `factor`, high ones not. longrope (Ding et al. 2024): each by its own factor of one of
    two sets (see `stretched`). `partial`: the part of a head's elements that is rotated. `magnitude`: multiplies
    cosines and sines.
    """

    theta: float
    kind: RopeKind = "default"
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_context: int = 8192
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True
    short_factors: tuple[float, ...] = ()
    long_factors: tuple[float, ...] = ()
    partial: float = 1.0
    magnitude: float = 1.0
    score_magnitude: float = 1.0
    """DeepSeek multiplies attention scores by its square (`mscale_all_dim`)."""

    def stretched(self, context_tokens: int) -> bool:
        """Whether longrope's long factors apply in a replica that serves contexts of up to `context_tokens` tokens.

        transformers switches to the long factors when a sequence grows beyond the original context, over keys that were
        rotated with the short ones. Here a position's key is the same in every request, so that it can be cached.
        """
        return self.kind == "longrope" and context_tokens > self.original_context


def _mscale(factor: float, weight: float = 1.0) -> float:
    """YaRN's correction of the attention temperature for a context that is longer by `factor`."""
    return 0.1 * weight * math.log(factor) + 1.0 if factor > 1 else 1.0


def read_rope(config: Fields, config_class: ConfigClass, layer_type: str = "full_attention") -> RopeConfig:
    """The rotary embedding of the layers of this type. Raises ModelError for what is not supported.

    `config` has all fields of the class.
    """
    scaling = _parameters(config, config_class, layer_type)
    theta, partial = scaling.number("rope_theta"), scaling.number("partial_rotary_factor", 1.0)
    if partial > 1:
        raise ModelError(f"{config.path}: field partial_rotary_factor must be at most 1, is {partial}")
    if partial < 1 and "partial_rotary_factor" not in config_class.defaults:
        raise ModelError(
            f"{config.path}: field partial_rotary_factor {partial} is not supported for model_type"
            f" {config_class.model_type}: its heads are rotated whole"
        )
    rope_type = scaling.text("rope_type", scaling.text("type", "default"))
    if rope_type not in config_class.rope_kinds:
        supported = ", ".join(sorted(config_class.rope_kinds))
        raise ModelError(f"{config.path}: rope_type {rope_type!r} is not supported (supported: {supported})")
    rope = _of_kind(config_class.rope_kinds[rope_type], config, scaling, theta, partial)
    if rope.kind != "default" and scaling.fields.get("mscale_all_dim"):
        return replace(rope, score_magnitude=_mscale(rope.factor, scaling.number("mscale_all_dim")))
    return rope


def _of_kind(kind: RopeKind, config: Fields, scaling: Fields, theta: float, partial: float) -> RopeConfig:
    # The outer field takes precedence.
    named = config if "original_max_position_embeddings" in config else scaling
    original = named.integer("original_max_position_embeddings", config.integer("max_position_embeddings"))
    match kind:
        case "default":
            return RopeConfig(theta, partial=partial)
        case "linear":
            return RopeConfig(theta, kind, scaling.number("factor"), partial=partial)
        case "llama3":
            return RopeConfig(
                theta,
                kind,
                factor=scaling.number("factor"),
                low_freq_factor=scaling.number("low_freq_factor"),
                high_freq_factor=scaling.number("high_freq_factor"),
                original_context=original,
                partial=partial,
            )
        case "yarn":
            return _yarn(config, scaling, RopeConfig(theta, kind, original_context=original, partial=partial))
        case "longrope":
            return _longrope(config, scaling, RopeConfig(theta, kind, original_context=original, partial=partial))


def unknown_rope_fields(config: Fields) -> list[str]:
    """The fields within `rope_scaling` and `rope_parameters` that are not read."""
    return [
        f"{outer}.{name}"
        for outer in ("rope_scaling", "rope_parameters")
        for name, value in config.inner(outer).fields.items()
        if name not in _KNOWN and not isinstance(value, dict)
    ]


def _parameters(config: Fields, config_class: ConfigClass, layer_type: str) -> Fields:
    """The rotary parameters of this type of layer, with `rope_theta` and `partial_rotary_factor` from outside them.

    `rope_scaling` takes precedence over `rope_parameters`, as in transformers.
    """
    default = dict(config_class.rope)
    partial = default.pop("partial_rotary_factor", None)
    if config.fields.get("partial_rotary_factor") is not None:
        partial = config.fields["partial_rotary_factor"]
    old, new = config.inner("rope_scaling").fields, config.inner("rope_parameters").fields
    nested = sorted(name for name, value in (old | new).items() if isinstance(value, dict))
    if config_class.local_theta is None:
        if nested:
            raise ModelError(
                f"{config.path}: rope parameters of {nested[0]} alone are not supported"
                f" for model_type {config_class.model_type}: all its layers have the same"
            )
        given = old or (default if config.fields.get("rope_parameters") is None else new)
        theta = config.fields.get("rope_theta", config_class.rope_theta)
    else:
        if new and not nested:
            raise ModelError(
                f"{config.path}: field rope_parameters must have full_attention and sliding_attention"
                f" for model_type {config_class.model_type}"
            )
        local = layer_type == "sliding_attention"
        given = {**Fields(config.path, new).inner(layer_type).fields, **({} if local else old)}
        theta = config.fields.get("rope_theta", config_class.rope_theta)
        if local:
            theta = config.number("rope_local_base_freq", config_class.local_theta)
    outside = {"rope_theta": theta, "partial_rotary_factor": partial}
    return Fields(config.path, {**outside, **given})


def _factor(config: Fields, scaling: Fields, original: int) -> float:
    """The field `factor`; by default how much longer the context is than the original one."""
    return scaling.number("factor", config.integer("max_position_embeddings") / original)


def _yarn(config: Fields, scaling: Fields, rope: RopeConfig) -> RopeConfig:
    if rope.theta <= 1:
        raise ModelError(f"{config.path}: field rope_theta must be above 1 for yarn, is {rope.theta}")
    if "factor" not in scaling.fields:
        raise ModelError(f"{config.path}: field factor is missing for yarn")
    factor = _factor(config, scaling, rope.original_context)
    both = "mscale" in scaling and "mscale_all_dim" in scaling
    total = scaling.number("mscale_all_dim") if scaling.fields.get("mscale_all_dim") else 0.0
    if "attention_factor" in scaling:
        magnitude = scaling.number("attention_factor")
    elif both and total and scaling.fields["mscale"]:
        magnitude = _mscale(factor, scaling.number("mscale")) / _mscale(factor, total)
    else:
        magnitude = _mscale(factor)
    return replace(
        rope,
        factor=factor,
        beta_fast=scaling.number("beta_fast", 32.0),
        beta_slow=scaling.number("beta_slow", 1.0),
        truncate=scaling.flag("truncate", "truncate" not in scaling.fields),
        magnitude=magnitude,
    )


def _longrope(config: Fields, scaling: Fields, rope: RopeConfig) -> RopeConfig:
    original = rope.original_context
    if original < 2:
        raise ModelError(f"{config.path}: field original_max_position_embeddings must be above 1, is {original}")
    factor = _factor(config, scaling, original)
    stretched = math.sqrt(1 + math.log(factor) / math.log(original)) if factor > 1 else 1.0
    return replace(
        rope,
        factor=factor,
        short_factors=scaling.numbers("short_factor"),
        long_factors=scaling.numbers("long_factor"),
        magnitude=scaling.number("attention_factor", stretched),
    )
