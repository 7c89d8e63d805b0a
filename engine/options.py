"""The choices that an operator has for a replica's device, types and weights, by the names in the settings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, get_args

Device = Literal["auto", "cpu", "cuda"]
Dtype = Literal["auto", "float32", "bfloat16"]
"""What the model computes in; `auto` is bfloat16 on a GPU and float32 on a CPU."""
Quantize = Literal["none", "fp8", "mxfp4", "nvfp4", "int4", "int4-g64", "int4-g32"]
"""What linear weights are rounded to on loading. Integers have groups of 128 inputs unless the name says otherwise."""
KvDtype = Literal["auto", "fp8"]
"""What KV is stored in; `auto` is the model's own type."""
Attention = Literal["exact", "fast"]
"""Whether attention has the same bits in any chunk and batch, or is computed by the library that is fastest here."""
ForeignKind = Literal["vllm", "sglang", "llamacpp"]
"""The engines of others that a replica may have behind it."""
FOREIGN_KINDS: tuple[ForeignKind, ...] = get_args(ForeignKind)
Weights = Literal["auto", "decoded", "packed"]
"""Whether packed weights (a few bits each) are decoded on loading (faster) or stay packed (smaller).

`auto` decodes them if they then fit well into memory.
"""
Tiles = Literal["none", "scratch", "copy"]
"""Whether weights of 4 bits are kept in the order in which the GPU's kernel reads them. For products of many rows they
are widened each time in a scratch, or once into a copy."""

TEXT_DRAFTERS = ("grammar", "ngram", "suffix")
"""The drafters that need no weights, the preferred first."""
DRAFT_MODEL = "draft-model"
"""The drafter of the setting `draft_model`: a model or a head."""
WEIGHT_DRAFTERS = (DRAFT_MODEL, "eagle3", "mtp")
"""The names of the drafters that this may be, the heads by their kinds."""
DRAFTERS = (*TEXT_DRAFTERS, DRAFT_MODEL)
"""All drafters that `parse_speculation` knows."""


def split_speculation(text: str) -> Sequence[str]:
    """The choices of several models, in their order; one choice is that of all."""
    return [part.strip() for part in text.split(";")]


def parse_attention(text: str) -> Attention:
    """Raises ValueError."""
    match text:
        case "exact" | "fast":
            return text
    raise ValueError(f"{text!r} is not exact or fast")


def parse_speculation(text: str, *, draft_model: bool = False) -> Sequence[str]:
    """The drafters of `auto`, `off` or `NAME,…`, in the order in which they are asked. Raises ValueError.

    `draft_model`: whether the setting of this name names one.
    """
    names = [name.strip() for name in text.split(",") if name.strip()]
    if names == ["auto"]:
        return DRAFTERS if draft_model else TEXT_DRAFTERS
    if names == ["off"]:
        return ()
    for name in names:
        if name not in DRAFTERS:
            raise ValueError(f"{name!r} is not auto, off, or one of the drafters {', '.join(DRAFTERS)}")
        if names.count(name) > 1:
            raise ValueError(f"{name} is given twice")
    if not names:
        raise ValueError("say auto, off, or which drafters")
    if DRAFT_MODEL in names and not draft_model:
        raise ValueError(f"{DRAFT_MODEL} needs the setting draft_model, which names its folder")
    return [name for name in DRAFTERS if name in names]
