"""Makes the drafters of a replica from their names."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from engine.speculation.drafter import Drafter
from engine.speculation.ngram_drafter import NgramDrafter

_MAKERS: Mapping[str, Callable[[], Drafter]] = {"ngram": NgramDrafter}


def make_drafters(names: Sequence[str]) -> Sequence[Drafter]:
    """The drafters of these names, in order."""
    return [_MAKERS[name]() for name in names]
