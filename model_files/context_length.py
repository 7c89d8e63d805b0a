"""How many tokens of context a model's files name: gateway and replica both read it from there."""

from __future__ import annotations

from collections.abc import Mapping

_LENGTHENED = ("gemma3", "gemma3_text")
"""Families whose `max_position_embeddings` names the length that their `factor` leads to."""


def context_length(positions: int, config: Mapping[str, object], tokenizer: Mapping[str, object]) -> int:
    """The context of a model of `positions` positions (`max_position_embeddings`), by its `config.json` and its
    `tokenizer_config.json`.

    YaRN and linear scaling lengthen it by their `factor`, as in vLLM: their users add them to a configuration and leave
    the rest as it is. Linear scaling does not say whether the positions were multiplied already; the tokenizer's
    `model_max_length` does. Of llama3 and longrope the positions are those of the long context.
    """
    scaling = config.get("rope_scaling") or config.get("rope_parameters")
    if not isinstance(scaling, Mapping) or config.get("model_type") in _LENGTHENED:
        return positions
    kind, factor = scaling.get("rope_type", scaling.get("type")), scaling.get("factor")
    if kind not in ("yarn", "linear") or type(factor) not in (int, float):
        return positions
    outer = config.get("original_max_position_embeddings")
    original = scaling.get("original_max_position_embeddings") if outer is None else outer
    try:
        lengthened = int((original if type(original) is int else positions) * factor)  # type: ignore[operator]
    except (OverflowError, ValueError):
        return positions
    most = tokenizer.get("model_max_length")
    if kind == "linear" and type(most) in (int, float):
        lengthened = min(lengthened, int(most))  # type: ignore[call-overload]
    return max(positions, lengthened)
