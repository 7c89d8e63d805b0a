"""How a configuration says that positions are turned: hub style (`rope_theta`, `rope_scaling`) and version 5 style
(`rope_parameters`, possibly one for each kind of layer).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from engine.errors import ModelError
from engine.models.fields import Fields


@dataclass(frozen=True)
class RopeConfig:
    """Rotary embedding: `theta`, and how frequencies are stretched for long contexts, which depends on `kind`.

    default: not at all; linear: all by `factor`; llama3 (Grattafiori et al. 2024) and yarn (Peng et al. 2023): long
    waves by `factor`, short ones not; longrope (Ding et al. 2024): each by its own of two sets (see `stretched`).
    `partial`: the share of a head's elements that is turned; `magnitude`: what cosines and sines are multiplied by.
    """

    theta: float
    kind: str = "default"
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
    """What DeepSeek multiplies attention scores by, squared (`mscale_all_dim`)."""

    def stretched(self, context_tokens: int) -> bool:
        """Whether longrope's long factors are used in a replica that serves contexts of up to so many tokens.

        transformers takes the short ones until a sequence is longer than the original context, and from then on the
        long ones over keys that were turned with the short ones. Here a position's key is the same in every request.
        """
        return self.kind == "longrope" and context_tokens > self.original_context


def _mscale(factor: float, weight: float = 1.0) -> float:
    """YaRN's correction of the attention's temperature for a context stretched by `factor`."""
    return 0.1 * weight * math.log(factor) + 1.0 if factor > 1 else 1.0


def read_rope(config: Fields, layer_type: str = "full_attention") -> RopeConfig:
    """The rotary embedding of the layers of this type. Raises ModelError for kinds that are not supported."""
    scaling = config.inner("rope_parameters" if config.fields.get("rope_parameters") else "rope_scaling")
    if layer_type in scaling:
        scaling = scaling.inner(layer_type)
    theta = (scaling if "rope_theta" in scaling else config).number("rope_theta", 10000.0)
    partial = (scaling if "partial_rotary_factor" in scaling else config).number("partial_rotary_factor", 1.0)
    if partial > 1:
        raise ModelError(f"{config.path}: field partial_rotary_factor must be at most 1, is {partial}")
    kind = scaling.text("rope_type", scaling.text("type", "default"))
    kind = {"su": "longrope"}.get(kind, kind)
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
                original_context=scaling.integer("original_max_position_embeddings"),
                partial=partial,
            )
        case "yarn":
            return _yarn(config, scaling, theta, partial)
        case "longrope":
            return _longrope(config, scaling, theta, partial)
    supported = "default, linear, llama3, yarn and longrope are"
    raise ModelError(f"{config.path}: rope_type {kind!r} is not supported ({supported})")


def _yarn(config: Fields, scaling: Fields, theta: float, partial: float) -> RopeConfig:
    if theta <= 1:
        raise ModelError(f"{config.path}: field rope_theta must be above 1 for yarn, is {theta}")
    context = config.integer("max_position_embeddings", 2048)
    original = scaling.integer("original_max_position_embeddings", context)
    factor = scaling.number("factor", context / original)
    both = "mscale" in scaling and "mscale_all_dim" in scaling
    total = scaling.number("mscale_all_dim") if scaling.fields.get("mscale_all_dim") else 0.0
    if "attention_factor" in scaling:
        magnitude = scaling.number("attention_factor")
    elif both and total and scaling.fields["mscale"]:
        magnitude = _mscale(factor, scaling.number("mscale")) / _mscale(factor, total)
    else:
        magnitude = _mscale(factor)
    return RopeConfig(
        theta,
        "yarn",
        factor=factor,
        original_context=original,
        beta_fast=scaling.number("beta_fast", 32.0),
        beta_slow=scaling.number("beta_slow", 1.0),
        truncate=scaling.flag("truncate", True),
        partial=partial,
        magnitude=magnitude,
        score_magnitude=_mscale(factor, total) if total else 1.0,
    )


def _longrope(config: Fields, scaling: Fields, theta: float, partial: float) -> RopeConfig:
    context = config.integer("max_position_embeddings", 2048)
    named = scaling if "original_max_position_embeddings" in scaling else config
    original = named.integer("original_max_position_embeddings", context)
    if original < 2:
        raise ModelError(f"{config.path}: field original_max_position_embeddings must be above 1, is {original}")
    factor = scaling.number("factor", context / original)
    stretched = math.sqrt(1 + math.log(factor) / math.log(original)) if factor > 1 else 1.0
    return RopeConfig(
        theta,
        "longrope",
        factor=factor,
        original_context=original,
        short_factors=scaling.numbers("short_factor"),
        long_factors=scaling.numbers("long_factor"),
        partial=partial,
        magnitude=scaling.number("attention_factor", stretched),
    )
