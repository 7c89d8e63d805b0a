"""Hidden states of a pass that others than the model want: heads that draft read what goes into some of its layers."""

from __future__ import annotations

from collections.abc import Sequence

import torch


class HiddenStates:
    """Collects, in one pass, what goes into these `layers`; an index of the number of layers: what the last norm gives.

    The layers do not write to what they are given, so that nothing is copied before `rows`.
    """

    def __init__(self, layers: Sequence[int]) -> None:
        self._layers = tuple(layers)
        self._states: dict[int, torch.Tensor] = {}

    def enter(self, layer: int, h: torch.Tensor) -> None:
        """The layer of this index is given `h`, [rows, hidden]."""
        if layer in self._layers:
            self._states[layer] = h

    def rows(self, count: int) -> torch.Tensor:
        """[count, layers · hidden]: of the first rows the states side by side, in the order of `layers`."""
        return torch.cat([self._states[layer][:count] for layer in self._layers], -1)
