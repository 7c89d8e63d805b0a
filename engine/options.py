"""The choices that an operator has for a replica's device, types and weights, by the names in the settings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

Device = Literal["auto", "cpu", "cuda"]
Dtype = Literal["auto", "float32", "bfloat16"]
"""What the model computes in; `auto` is bfloat16 on a GPU and float32 on a CPU."""
Quantize = Literal["none", "fp8", "mxfp4"]
"""What linear weights are rounded to on loading."""
KvDtype = Literal["auto", "fp8"]
"""What KV is stored in; `auto` is the model's own type."""
Weights = Literal["auto", "decoded", "packed"]
"""Whether packed weights (a few bits each) are decoded on loading (faster) or stay packed (smaller).

`auto` decodes them if they then fit well into memory.
"""

TEXT_DRAFTERS = ("ngram",)
"""The drafters that need no weights, the preferred first."""
DRAFTERS = TEXT_DRAFTERS
"""All drafters that `parse_speculation` knows."""


def parse_speculation(text: str) -> Sequence[str]:
    """The drafters of `auto`, `off` or `NAME,…`, in the order in which they are asked. Raises ValueError."""
    names = [name.strip() for name in text.split(",") if name.strip()]
    if names == ["auto"]:
        return TEXT_DRAFTERS
    if names == ["off"]:
        return ()
    for name in names:
        if name not in DRAFTERS:
            raise ValueError(f"{name!r} is not auto, off, or one of the drafters {', '.join(DRAFTERS)}")
        if names.count(name) > 1:
            raise ValueError(f"{name} is given twice")
    if not names:
        raise ValueError("say auto, off, or which drafters")
    return [name for name in DRAFTERS if name in names]
