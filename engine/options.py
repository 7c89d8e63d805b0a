"""The choices that an operator has for a replica's device, types and weights, by the names in the settings."""

from __future__ import annotations

from typing import Literal

Device = Literal["auto", "cpu", "cuda"]
Dtype = Literal["auto", "float32", "bfloat16"]
"""What the model computes in; `auto` is bfloat16 on a GPU and float32 on a CPU."""
Quantize = Literal["none", "fp8", "mxfp4", "nvfp4", "int4", "int4-g64", "int4-g32"]
"""What linear weights are rounded to on loading. Integers have groups of 128 inputs unless the name says otherwise."""
KvDtype = Literal["auto", "fp8"]
"""What KV is stored in; `auto` is the model's own type."""
Weights = Literal["auto", "decoded", "packed"]
"""Whether packed weights (a few bits each) are decoded on loading (faster) or stay packed (smaller).

`auto` decodes them if they then fit well into memory.
"""
