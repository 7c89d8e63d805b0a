"""Times what a start measures by a few layers of each kind: the others are taken to be as fast."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from engine.layers.decoder_layer import DecoderLayer
from engine.startup.dummy_batch import layers_by_kind

_MOST_OF_A_KIND = 3


class TimedLayers:
    """Runs with one layer of each kind, and with some more of each kind. `clock` gives seconds.

    `spent_s`: what was timed so far.
    """

    def __init__(self, layers: Sequence[DecoderLayer], clock: Callable[[], float]) -> None:
        self._clock = clock
        self.spent_s = 0.0
        kinds = layers_by_kind(layers)
        self.one_of_each = [of_kind[0] for of_kind in kinds]
        more = [(of_kind[1:_MOST_OF_A_KIND], len(of_kind) - 1) for of_kind in kinds if len(of_kind) > 1]
        self._sets: list[list[DecoderLayer]] = [self.one_of_each, *([*self.one_of_each, *layers] for layers, _ in more)]
        self._more = [(len(layers), count) for layers, count in more]
        """Of each kind of several layers: how many more are run, and how many more there are."""

    def time(self, run: Callable[[Sequence[DecoderLayer]], object]) -> list[float]:
        """Seconds of a run with one layer of each kind, and of one with more of each kind in turn."""
        took = []
        for layers in self._sets:
            began = self._clock()
            run(layers)
            took.append(self._clock() - began)
        self.spent_s += sum(took)
        return took

    def of_all(self, took: Sequence[float]) -> float:
        """Seconds with all layers, by what `time` returned."""
        once, *with_more = took
        return once + sum(
            max(0.0, longer - once) / run * there for longer, (run, there) in zip(with_more, self._more, strict=True)
        )


def fastest(one: Sequence[float], other: Sequence[float]) -> list[float]:
    """Of each part the faster of two: what else the machine does only ever adds to it."""
    return list(map(min, one, other))
