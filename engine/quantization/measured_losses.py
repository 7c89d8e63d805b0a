"""What formats of few bits cost: how many per cent more bits per byte the demo model needs for a text of docstrings.

Figures of `python -m benchmarks.quality`, as docs/quality.md has them. A test compares the two.
"""

from __future__ import annotations

from collections.abc import Mapping

WEIGHT_LOSSES: Mapping[str, float] = {
    "fp8": 1.19,
    "mxfp4": 6.50,
    "nvfp4": 10.04,
    "int4 g128": 4.04,
    "int4 g64": 2.72,
    "int4 g32": 2.03,
}
"""Format of weights -> per cent."""
KV_LOSSES: Mapping[str, float] = {"fp8": 0.10}
"""Format of KV -> per cent."""
