"""Makes the drafters of a replica from their names."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from engine.options import DRAFT_MODEL
from engine.speculation.drafter import Drafter
from engine.speculation.grammar_drafter import GrammarDrafter
from engine.speculation.ngram_drafter import NgramDrafter
from engine.speculation.suffix_drafter import SuffixDrafter
from engine.startup.draft_checkpoint import ServedParts, load_drafter

_MAKERS: Mapping[str, Callable[[], Drafter]] = {
    "grammar": GrammarDrafter,
    "ngram": NgramDrafter,
    "suffix": SuffixDrafter,
}


def make_drafters(
    names: Sequence[str], draft_model: Path | None = None, served: ServedParts | None = None
) -> Sequence[Drafter]:
    """The drafters of these names, in order. `draft_model`: the folder of the one with weights, which must fit what is
    `served`. Raises ModelError or StartError where it does not."""
    return [
        load_drafter(draft_model, served) if name == DRAFT_MODEL and draft_model and served else _MAKERS[name]()
        for name in names
    ]
