"""Makes the drafters of a replica from their names."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from engine.speculation.drafter import Drafter
from engine.speculation.grammar_drafter import GrammarDrafter
from engine.speculation.ngram_drafter import NgramDrafter
from engine.speculation.suffix_drafter import SuffixDrafter

_MAKERS: Mapping[str, Callable[[], Drafter]] = {
    "grammar": GrammarDrafter,
    "ngram": NgramDrafter,
    "suffix": SuffixDrafter,
}


def make_drafters(names: Sequence[str]) -> Sequence[Drafter]:
    """The drafters of these names, in order."""
    return [_MAKERS[name]() for name in names]
