"""How much a runner must be able to do at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Sizes:
    """`running` requests at most, `budget` tokens a step, `context` tokens; `blocks` of each layer group."""

    running: int
    budget: int
    context: int
    blocks: Sequence[int]
