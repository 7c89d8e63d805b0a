"""What formats of few bits cost: how many per cent more bits per byte the demo model needs for a text of docstrings.

Figures of `python -m benchmarks.quality`, as docs/quality.md has them. A test compares the two.
"""

from __future__ import annotations

from collections.abc import Mapping

WEIGHT_LOSSES: Mapping[str, float] = {}
"""Format of weights -> per cent."""
KV_LOSSES: Mapping[str, float] = {}
"""Format of KV -> per cent."""
