"""Makes the drafters of a replica from their names."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from engine.options import DRAFT_MODEL
from engine.speculation.drafter import Drafter
from engine.speculation.ngram_drafter import NgramDrafter
from engine.startup.draft_checkpoint import ServedParts, load_drafter

_MAKERS: Mapping[str, Callable[[], Drafter]] = {"ngram": NgramDrafter}


def make_drafters(names: Sequence[str], draft_model: Path | None, served: ServedParts) -> Sequence[Drafter]:
    """The drafters of these names, in order. `draft_model`: the folder of the one with weights.

    Raises ModelError or StartError where that does not fit the served model.
    """
    return [
        load_drafter(draft_model, served) if name == DRAFT_MODEL and draft_model else _MAKERS[name]() for name in names
    ]
