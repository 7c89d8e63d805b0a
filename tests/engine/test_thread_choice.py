"""More threads only where they are worth it: a machine is not always as quiet as when it starts."""

from __future__ import annotations

import time
from collections.abc import Sequence
from types import SimpleNamespace
from typing import cast

import pytest

from engine import thread_choice
from engine.rehearsal import Rehearsal
from engine.runner import Runner


class _Steps:
    """Steps that take so many milliseconds with so many threads, decodes and chunks."""

    def __init__(self, took: tuple[dict[int, float], dict[int, float]]) -> None:
        self._took = took
        self._threads = 0
        self.runner = SimpleNamespace(
            threads=SimpleNamespace(few=0, many=0, set=self._set), device=SimpleNamespace(type="cpu")
        )

    def _set(self, count: int) -> None:
        self._threads = count

    def decodes(self, _count: int) -> list[int]:
        return [0]

    def chunks(self, _tokens: int) -> list[int]:
        return [1]

    def compute(self, parts: Sequence[int]) -> None:
        time.sleep(self._took[parts[0]][self._threads] / 1000)


@pytest.mark.parametrize(
    ("decodes", "chunks", "chosen"),
    [
        ({1: 4, 2: 3.8}, {1: 8, 2: 4}, (1, 2)),
        ({1: 4, 2: 1}, {1: 4, 2: 8}, (2, 1)),
        ({1: 8, 2: 7}, {1: 8, 2: 6.5}, (1, 2)),
    ],
)
def test_a_gain_of_a_few_percent_is_not_worth_it_in_small_steps(
    monkeypatch: pytest.MonkeyPatch, decodes: dict[int, float], chunks: dict[int, float], chosen: tuple[int, int]
) -> None:
    steps = _Steps((decodes, chunks))
    monkeypatch.setattr(thread_choice, "Rehearsal", lambda _runner: cast(Rehearsal, steps))
    monkeypatch.setattr(thread_choice, "all_threads", lambda: 2)
    thread_choice.choose_threads(cast(Runner, steps.runner), 512)
    assert (steps.runner.threads.few, steps.runner.threads.many) == chosen
