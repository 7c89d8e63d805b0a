"""More threads only where they are worth it: a machine is not always as quiet as when it starts."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from engine import thread_choice
from engine.assembly import assemble
from engine.options import ReplicaOptions
from engine.rehearsal import Part, Rehearsal
from engine.runner import Runner
from engine.threads import Threads


class _Steps:
    """Steps that take so many milliseconds with so many threads: decodes, chunks, decodes with much before them."""

    def __init__(self, took: Sequence[dict[int, float]]) -> None:
        self._took = took
        self.runner = SimpleNamespace(threads=Threads(0, 0), device=SimpleNamespace(type="cpu"))

    def decodes(self, _count: int, before: int = 0) -> list[int]:
        return [2 if before else 0]

    def chunks(self, _tokens: int) -> list[int]:
        return [1]

    def time_step(self, parts: Sequence[int]) -> float:
        return self._took[parts[0]][self.runner.threads.few] * 1000


@pytest.mark.parametrize(
    ("decodes", "chunks", "talking", "chosen"),
    [
        ({1: 4, 2: 3.8}, {1: 8, 2: 4}, {1: 9, 2: 8}, (1, 2, 32)),
        ({1: 4, 2: 3.8}, {1: 8, 2: 4}, {1: 9, 2: 6}, (1, 2, 8)),
        ({1: 4, 2: 1}, {1: 4, 2: 8}, {}, (2, 1, 32)),
        ({1: 8, 2: 7}, {1: 8, 2: 6.5}, {1: 8, 2: 7}, (1, 2, 32)),
    ],
)
def test_a_gain_of_a_few_percent_is_not_worth_it_in_small_steps(
    monkeypatch: pytest.MonkeyPatch,
    decodes: dict[int, float],
    chunks: dict[int, float],
    talking: dict[int, float],
    chosen: tuple[int, int, int],
) -> None:
    steps = _Steps((decodes, chunks, talking))
    monkeypatch.setattr(thread_choice, "Rehearsal", lambda _runner: cast(Rehearsal, steps))
    monkeypatch.setattr(thread_choice, "all_threads", lambda: 2)
    thread_choice.choose_threads(cast(Runner, steps.runner), 512, 2048)
    threads = steps.runner.threads
    assert (threads.few, threads.many, threads.few_rows) == chosen


@pytest.mark.parametrize("context", [64, 128, 256, 300])
def test_no_step_is_tried_that_is_longer_than_the_context(
    tmp_path: Path, tiny_model: Path, monkeypatch: pytest.MonkeyPatch, context: int
) -> None:
    """Where few rows are best served by one thread, so that longer sequences are tried."""
    fastest = thread_choice._fastest

    def few_by_one(rehearsal: Rehearsal, parts: Sequence[Part], candidates: Sequence[int], worth_it: float) -> int:
        fastest(rehearsal, parts, candidates, worth_it)
        return candidates[0] if all(len(part.tokens) == 1 for part in parts) else candidates[-1]

    monkeypatch.setattr(thread_choice, "_fastest", few_by_one)
    monkeypatch.setattr(thread_choice, "all_threads", lambda: 2)
    options = ReplicaOptions(
        tiny_model, "unix:x", tmp_path, "r", b"", device="cpu", kv_memory=1 << 20, max_running=4, context=context
    )
    threads = assemble(options).engine.runner.threads
    assert (threads.few, threads.many) == (1, 2)
